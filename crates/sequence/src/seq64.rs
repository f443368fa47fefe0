//! Plain 64-bit sequence headers: a datagram is one message, whose first eight bytes are its number, big endian.
//!
//! The header is a part of the message, which is delivered whole. There are no sessions and no heartbeats, so loss
//! at the end of a stream only shows with the next datagram.

/// Bytes of the number.
pub const HEADER_LEN: usize = 8;

/// The number of a datagram; `None` if it is shorter than a number.
pub fn sequence(datagram: &[u8]) -> Option<u64> {
    datagram.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_big_endian_at_the_start() {
        assert_eq!(sequence(b"\x00\x00\x00\x00\x00\x00\x01\x02rest"), Some(258));
        assert_eq!(sequence(&[0; 7]), None);
    }
}
