//! libFuzzer's entry to [`expressway_fuzz::h3::control`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| expressway_fuzz::h3::control(data));
