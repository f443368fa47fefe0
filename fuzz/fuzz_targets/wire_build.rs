//! libFuzzer's entry to [`expressway_fuzz::wire::build`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| expressway_fuzz::wire::build(data));
