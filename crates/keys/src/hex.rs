//! Bytes as hexadecimal digits.

use std::fmt::Write;

/// The digits of `bytes`.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `N` bytes of twice as many digits.
pub(crate) fn decode<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
    }
    Some(bytes)
}
