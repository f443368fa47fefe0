//! libFuzzer's entry to [`expressway_fuzz::sequence::arbiter`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| expressway_fuzz::sequence::arbiter(data));
