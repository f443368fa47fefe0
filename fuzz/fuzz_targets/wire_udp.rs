//! libFuzzer's entry to [`expressway_fuzz::wire::udp`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| expressway_fuzz::wire::udp(data));
