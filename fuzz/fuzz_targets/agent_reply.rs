//! libFuzzer's entry to [`expressway_fuzz::agent::reply`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| expressway_fuzz::agent::reply(data));
