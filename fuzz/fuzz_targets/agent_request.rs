//! libFuzzer's entry to [`expressway_fuzz::agent::request`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| expressway_fuzz::agent::request(data));
