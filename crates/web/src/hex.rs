//! Octets as hexadecimal digits.

/// Two digits for each octet, in lower case.
pub fn encode(octets: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).expect("four bits are a digit");
    octets.iter().flat_map(|octet| [digit(octet >> 4), digit(octet & 15)]).collect()
}

/// The octets of digits in either case; `None` of anything else, and of an odd number.
pub fn decode(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    digits.chunks(2).map(|pair| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_come_back() {
        assert_eq!(encode(&[0, 0x0f, 0xa5, 0xff]), "000fa5ff");
        assert_eq!(decode(b"000Fa5Ff"), Some(vec![0, 0x0f, 0xa5, 0xff]));
        assert_eq!(decode(b""), Some(Vec::new()));
        for wrong in ["0", "000", "0g", "+1", "\u{e9}"] {
            assert_eq!(decode(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
