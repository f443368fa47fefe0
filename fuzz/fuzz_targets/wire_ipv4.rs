//! libFuzzer's entry to [`expressway_fuzz::wire::ipv4`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| expressway_fuzz::wire::ipv4(data));
