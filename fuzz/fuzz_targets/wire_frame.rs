//! libFuzzer's entry to [`expressway_fuzz::wire::frame`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| expressway_fuzz::wire::frame(data));
