//! libFuzzer's entry to [`expressway_fuzz::h3::qpack`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| expressway_fuzz::h3::qpack(data));
