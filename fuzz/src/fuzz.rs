//! libFuzzer's entry to the target that the variable EXPRESSWAY_FUZZ_TARGET names; see `scripts/fuzz`.
#![no_main]

use std::sync::LazyLock;

use expressway_fuzz::{Target, mutate};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("EXPRESSWAY_FUZZ_TARGET").expect("EXPRESSWAY_FUZZ_TARGET: the name of a target");
    assert!(expressway_fuzz::cost::counts_steps(), "this build does not count steps");
    Target::find(&name).unwrap_or_else(|| panic!("EXPRESSWAY_FUZZ_TARGET={name}: no such target"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET.run(data));

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate::mutate(&mut data[..max_size], size, seed, |data, size| {
        let most = data.len();
        libfuzzer_sys::fuzzer_mutate(data, size, most)
    })
});
