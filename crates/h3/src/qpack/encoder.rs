//! Encoding of field sections (RFC 9204, section 4.5).

use super::integer;
use super::static_table::{Match, find};

/// Appends fields to a section. Strings are literal: coding them would save some 30 bytes of a response
/// head, and those who serve small objects pay by the cycle, not by the byte.
#[derive(Debug)]
pub struct Encoder<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Encoder<'a> {
    /// Begins a section at the end of `out`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        // Required Insert Count 0, Base 0.
        out.extend_from_slice(&[0, 0]);
        Self { out }
    }

    /// Appends a field; `name` is in lower case.
    #[inline]
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        match find(name, value) {
            Some(Match::Field(index)) => {
                integer::write(u64::from(index), 0xc0, 6, self.out);
                return;
            }
            Some(Match::Name(index)) => integer::write(u64::from(index), 0x50, 4, self.out),
            None => {
                integer::write(name.len() as u64, 0x20, 3, self.out);
                self.out.extend_from_slice(name);
            }
        }
        integer::write(value.len() as u64, 0, 7, self.out);
        self.out.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_take_their_shortest_form() {
        for (name, value, expected) in [
            (":status", "200", &b"\x00\x00\xd9"[..]),
            (":status", "206", b"\x00\x00\xff\x02"),
            (":path", "/index.html", b"\x00\x00\x51\x0b/index.html"),
            ("content-length", "0", b"\x00\x00\xc4"),
            ("content-length", "7", b"\x00\x00\x54\x017"),
            ("server", "x", b"\x00\x00\x5f\x4d\x01x"),
            ("x-a", "", b"\x00\x00\x23x-a\x00"),
        ] {
            let mut out = Vec::new();
            Encoder::new(&mut out).field(name.as_bytes(), value.as_bytes());
            assert_eq!(out, expected, "{name}: {value}");
        }
    }
}
