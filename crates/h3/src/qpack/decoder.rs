//! Decoding of field sections (RFC 9204, section 4.5).

use super::static_table::TABLE;
use super::{huffman, integer};

/// Why a section cannot be decoded: QPACK_DECOMPRESSION_FAILED (RFC 9204, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It needs entries of a dynamic table, and there is none.
    #[error("a field section refers to a dynamic table")]
    DynamicTable,
    /// An index beyond the static table.
    #[error("an index beyond the static table")]
    StaticIndex,
    /// An integer that is cut short or too large, or a string beyond the section.
    #[error("a field section is cut short")]
    Length,
    /// Not a Huffman code.
    #[error("a string is not valid Huffman code")]
    Huffman,
}

/// The fields of a section in order. Names and values are lent: from the static table, from the section, or
/// from the scratch where Huffman-coded strings are decoded to.
#[derive(Debug)]
pub struct Fields<'a> {
    section: &'a [u8],
    scratch: &'a mut [u8],
    error: Option<DecodeError>,
}

impl<'a> Fields<'a> {
    /// Decodes `section`, the payload of a HEADERS frame. `scratch` is grown to 8/5 of its length, if it is
    /// shorter.
    #[inline]
    pub fn new(section: &'a [u8], scratch: &'a mut Vec<u8>) -> Self {
        let needed = huffman::max_decoded(section.len());
        if scratch.len() < needed {
            scratch.resize(needed, 0);
        }
        let mut fields = Self { section, scratch, error: None };
        fields.error = fields.prefix().err();
        fields
    }

    /// What ended the fields early, if anything did.
    #[inline]
    pub fn error(&self) -> Option<DecodeError> {
        self.error
    }

    /// Section 4.5.1: no entry of a dynamic table is required, and so a negative base is wrong.
    #[inline]
    fn prefix(&mut self) -> Result<(), DecodeError> {
        if integer::read(&mut self.section, 8).ok_or(DecodeError::Length)? != 0 {
            return Err(DecodeError::DynamicTable);
        }
        let is_negative = self.section.first().is_some_and(|byte| byte & 0x80 != 0);
        integer::read(&mut self.section, 7).ok_or(DecodeError::Length)?;
        if is_negative { Err(DecodeError::DynamicTable) } else { Ok(()) }
    }

    #[inline]
    fn field(&mut self, first: u8) -> Result<(&'a [u8], &'a [u8]), DecodeError> {
        // Indexed: 1 T index(6).
        if first & 0x80 != 0 {
            return self.entry(first & 0x40 != 0, 6);
        }
        // Literal with name reference: 0 1 N T index(4).
        if first & 0x40 != 0 {
            let (name, _) = self.entry(first & 0x10 != 0, 4)?;
            return Ok((name, self.string(7)?));
        }
        // Literal: 0 0 1 N H length(3).
        if first & 0x20 != 0 {
            return Ok((self.string(3)?, self.string(7)?));
        }
        // What is left counts from a base in the dynamic table.
        Err(DecodeError::DynamicTable)
    }

    #[inline]
    fn entry(&mut self, is_static: bool, bits: u32) -> Result<(&'static [u8], &'static [u8]), DecodeError> {
        if !is_static {
            return Err(DecodeError::DynamicTable);
        }
        let index = integer::read(&mut self.section, bits).ok_or(DecodeError::Length)?;
        let index = usize::try_from(index).map_err(|_| DecodeError::StaticIndex)?;
        TABLE.get(index).copied().ok_or(DecodeError::StaticIndex)
    }

    /// A string whose length has an N-bit prefix behind the Huffman bit (section 4.1.2).
    #[inline]
    fn string(&mut self, bits: u32) -> Result<&'a [u8], DecodeError> {
        let is_coded = self.section.first().is_some_and(|byte| byte >> bits & 1 != 0);
        let length = integer::read(&mut self.section, bits).ok_or(DecodeError::Length)?;
        let length = usize::try_from(length).map_err(|_| DecodeError::Length)?;
        let (bytes, rest) = self.section.split_at_checked(length).ok_or(DecodeError::Length)?;
        self.section = rest;
        if !is_coded {
            return Ok(bytes);
        }
        // What was decoded before is lent, so the scratch is used up from its front; all strings of a section
        // fit, as their codes add up to less than the section.
        let scratch = std::mem::take(&mut self.scratch);
        let decoded = huffman::decode(bytes, scratch).ok_or(DecodeError::Huffman)?;
        let (text, rest) = scratch.split_at_mut(decoded);
        self.scratch = rest;
        Ok(text)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.error.is_some() {
            return None;
        }
        let first = *self.section.first()?;
        match self.field(first) {
            Ok(field) => Some(field),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Encoder;
    use super::*;
    use proptest::prelude::*;
    use quiche::h3::NameValue;

    type Owned = Vec<(Vec<u8>, Vec<u8>)>;

    fn decode(section: &[u8]) -> Result<Owned, DecodeError> {
        let mut scratch = Vec::new();
        let mut fields = Fields::new(section, &mut scratch);
        let list = fields.by_ref().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        fields.error().map_or(Ok(list), Err)
    }

    fn one(name: &str, value: &str) -> Result<Owned, DecodeError> {
        Ok(vec![(name.into(), value.into())])
    }

    #[test]
    fn the_examples_of_rfc_9204_appendix_b() {
        // B.1: a literal with a name reference.
        assert_eq!(decode(b"\x00\x00\x51\x0b/index.html"), one(":path", "/index.html"));
        // B.2 to B.5 use a dynamic table, which this decoder never allows.
        for section in [&[0x03, 0x81, 0x10, 0x11][..], &[0x05, 0x00, 0x80, 0xc1, 0x81], &[0x02, 0x80, 0x10]] {
            assert_eq!(decode(section), Err(DecodeError::DynamicTable));
        }
    }

    #[test]
    fn each_representation_is_read() {
        assert_eq!(decode(&[0, 0, 0xd1]), one(":method", "GET"));
        assert_eq!(decode(&[0, 0, 0xff, 35]), one("x-frame-options", "sameorigin"), "index 98 is 63 + 35");
        assert_eq!(decode(b"\x00\x00\x27\x00abcdefg\x01v"), one("abcdefg", "v"), "a name of seven bytes");
        assert_eq!(decode(b"\x00\x00\x31x\x01v"), one("x", "v"), "never to be indexed");
        assert_eq!(decode(b"\x00\x00\x71\x01/"), one(":path", "/"), "never to be indexed");
        assert_eq!(decode(&[0, 0, 0x2a, 0xf2, 0xff, 0x81, 0x07]), one("x9", "0"), "both strings coded");
        assert_eq!(decode(&[0, 0]), Ok(Vec::new()));
        assert_eq!(decode(&[0, 5]), Ok(Vec::new()), "a base that nothing refers to");
    }

    #[test]
    fn what_cannot_be_decoded_says_why() {
        use DecodeError::{DynamicTable, Huffman, Length, StaticIndex};
        for (section, error) in [
            (&[][..], Length),
            (&[0], Length),
            (&[1, 0], DynamicTable),
            (&[0, 0x80], DynamicTable),
            (&[0, 0, 0x80], DynamicTable),
            (&[0, 0, 0x40, 1, b'x'], DynamicTable),
            (&[0, 0, 0x10], DynamicTable),
            (&[0, 0, 0x00, 1, b'x'], DynamicTable),
            (&[0, 0, 0xff, 36], StaticIndex),
            (&[0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], StaticIndex),
            (&[0, 0, 0xff], Length),
            (&[0, 0, 0x51], Length),
            (&[0, 0, 0x51, 5, b'/'], Length),
            (&[0, 0, 0x51, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Length),
            (&[0, 0, 0x51, 0x81, 0xff], Huffman),
        ] {
            assert_eq!(decode(section), Err(error), "{section:x?}");
        }
    }

    fn token() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(b"abcdefghijklmnopqrstuvwxyz-0123456789".to_vec()), 1..40)
    }

    proptest! {
        #[test]
        fn what_is_encoded_comes_back_here_and_elsewhere(
            list in prop::collection::vec((token(), prop::collection::vec(0x20u8..0x7f, 0..300)), 0..20),
            known in prop::collection::vec(0usize..99, 0..10),
        ) {
            let mut list = list;
            list.extend(known.iter().map(|at| (TABLE[*at].0.to_vec(), TABLE[*at].1.to_vec())));
            let mut out = Vec::new();
            let mut encoder = Encoder::new(&mut out);
            list.iter().for_each(|(name, value)| encoder.field(name, value));
            prop_assert_eq!(decode(&out).unwrap(), list.clone());
            let theirs = quiche::h3::qpack::Decoder::new().decode(&out, u64::MAX).unwrap();
            let theirs: Owned =
                theirs.iter().map(|field| (field.name().to_vec(), field.value().to_vec())).collect();
            prop_assert_eq!(theirs, list);
        }

        #[test]
        fn what_others_encode_is_decoded(
            list in prop::collection::vec((token(), prop::collection::vec(0x20u8..0x7f, 0..300)), 0..20),
        ) {
            let headers: Vec<_> =
                list.iter().map(|(name, value)| quiche::h3::Header::new(name, value)).collect();
            let mut out = vec![0; 16 << 10];
            let length = quiche::h3::qpack::Encoder::new().encode(&headers, &mut out).unwrap();
            prop_assert_eq!(decode(&out[..length]).unwrap(), list);
        }

        #[test]
        fn no_input_panics(section in prop::collection::vec(any::<u8>(), 0..400), prefixed in any::<bool>()) {
            let mut section = section;
            if prefixed && section.len() > 1 {
                section[..2].fill(0);
            }
            let mut scratch = Vec::new();
            let lent: usize = Fields::new(&section, &mut scratch).map(|(name, value)| name.len() + value.len()).sum();
            // One byte can stand for a long entry of the static table, and no more.
            prop_assert!(lent <= section.len() * 90);
            prop_assert!(scratch.len() <= section.len() * 8 / 5);
        }
    }
}
