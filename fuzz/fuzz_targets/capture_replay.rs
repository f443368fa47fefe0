//! libFuzzer's entry to [`expressway_fuzz::capture::replay`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| expressway_fuzz::capture::replay(data));
