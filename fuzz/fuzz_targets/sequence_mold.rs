//! libFuzzer's entry to [`expressway_fuzz::sequence::mold`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| expressway_fuzz::sequence::mold(data));
