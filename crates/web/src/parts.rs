//! The parts of a body: one span of a file, or the parts of a multipart/byteranges body (RFC 9110, 14.6), each made
//! when its turn comes. Until then, a request for many ranges only costs its list of ranges.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::vec::IntoIter;

use bytes::Bytes;
use http::HeaderValue;

/// Digits of a boundary.
const BOUNDARY: usize = 20;

/// A piece of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Octets as they are.
    Octets(Bytes),
    /// Octets of the file, first to past the last.
    Span(Range<u64>),
}

/// The pieces of a body in order.
#[derive(Debug)]
pub enum BodyParts {
    /// One span of the file.
    Single(Option<Range<u64>>),
    /// Several, each with its own header.
    Multipart(Box<Multipart>),
}

/// A multipart body, laid out as nginx lays it out.
#[derive(Debug)]
pub struct Multipart {
    boundary: String,
    content_type: Option<HeaderValue>,
    /// Octets of the file.
    size: u64,
    ranges: IntoIter<Range<u64>>,
    /// The span whose header has been taken.
    due: Option<Range<u64>>,
    is_closed: bool,
}

impl Part {
    /// Octets that it adds to the body.
    pub fn length(&self) -> u64 {
        match self {
            Self::Octets(octets) => octets.len() as u64,
            Self::Span(span) => span.end - span.start,
        }
    }
}

impl BodyParts {
    /// `span` of the file and nothing else.
    pub fn single(span: Range<u64>) -> Self {
        Self::Single(Some(span))
    }

    /// Octets of all parts that have not been taken.
    pub fn length(&self) -> u64 {
        match self {
            Self::Single(span) => span.as_ref().map_or(0, |span| span.end - span.start),
            Self::Multipart(multipart) => multipart.length(),
        }
    }

    /// Whether there are several.
    pub fn are_many(&self) -> bool {
        matches!(self, Self::Multipart(_))
    }

    /// Bytes of memory in addition to their own size.
    pub fn footprint(&self) -> usize {
        match self {
            Self::Single(_) => 0,
            Self::Multipart(multipart) => {
                size_of::<Multipart>() + BOUNDARY + size_of_val(multipart.ranges.as_slice())
            }
        }
    }

    /// The offset in the file of the first octet that comes from it.
    pub fn first_offset(&self) -> Option<u64> {
        match self {
            Self::Single(span) => span.as_ref().map(|span| span.start),
            Self::Multipart(multipart) => {
                multipart.due.as_ref().or(multipart.ranges.as_slice().first()).map(|span| span.start)
            }
        }
    }
}

impl Iterator for BodyParts {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        match self {
            Self::Single(span) => span.take().map(Part::Span),
            Self::Multipart(multipart) => multipart.next(),
        }
    }
}

impl Multipart {
    /// The body of `ranges` of a file of `size` octets.
    pub fn new(content_type: Option<HeaderValue>, ranges: Vec<Range<u64>>, size: u64) -> Self {
        // Digits that content cannot foresee: std's hash keys are random.
        let boundary = format!("{:01$}", RandomState::new().build_hasher().finish(), BOUNDARY);
        Self { boundary, content_type, size, ranges: ranges.into_iter(), due: None, is_closed: false }
    }

    /// The media type of the whole.
    pub fn content_type(&self) -> String {
        format!("multipart/byteranges; boundary={}", self.boundary)
    }

    fn length(&self) -> u64 {
        let type_line =
            self.content_type.as_ref().map_or(0, |value| "Content-Type: \r\n".len() + value.len());
        let fixed = "\r\n--\r\nContent-Range: bytes -/\r\n\r\n".len() + BOUNDARY + type_line;
        let header =
            |range: &Range<u64>| fixed + digits(range.start) + digits(range.end - 1) + digits(self.size);
        let parts = self.ranges.as_slice().iter();
        let parts: u64 = parts.map(|range| header(range) as u64 + (range.end - range.start)).sum();
        let due = self.due.as_ref().map_or(0, |span| span.end - span.start);
        let closing = if self.is_closed { 0 } else { "\r\n----\r\n".len() + BOUNDARY };
        due + parts + closing as u64
    }

    fn next(&mut self) -> Option<Part> {
        if let Some(span) = self.due.take() {
            return Some(Part::Span(span));
        }
        if let Some(range) = self.ranges.next() {
            let header = self.header(&range);
            self.due = Some(range);
            return Some(Part::Octets(header.into()));
        }
        if std::mem::replace(&mut self.is_closed, true) {
            return None;
        }
        Some(Part::Octets(format!("\r\n--{}--\r\n", self.boundary).into()))
    }

    fn header(&self, range: &Range<u64>) -> Vec<u8> {
        let mut header = format!("\r\n--{}\r\n", self.boundary).into_bytes();
        if let Some(content_type) = &self.content_type {
            header.extend_from_slice(b"Content-Type: ");
            header.extend_from_slice(content_type.as_bytes());
            header.extend_from_slice(b"\r\n");
        }
        let content_range = content_range(range, self.size);
        header.extend_from_slice(format!("Content-Range: {content_range}\r\n\r\n").as_bytes());
        header
    }
}

/// The value of `content-range` for `range` of a file of `size` octets.
pub fn content_range(range: &Range<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", range.start, range.end - 1)
}

/// Decimal digits of `number`.
fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |tens| tens as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_length_is_that_of_what_is_still_to_come(
            ranges in prop::collection::vec((0u64..1 << 40, 1u64..1 << 20), 1..20),
            size in 1u64 << 41..1 << 50,
            typed in any::<bool>(),
        ) {
            let ranges: Vec<_> = ranges.iter().map(|(start, length)| *start..start + length).collect();
            let content_type = typed.then(|| HeaderValue::from_static("video/mp4"));
            let mut parts = BodyParts::Multipart(Box::new(Multipart::new(content_type, ranges.clone(), size)));
            let mut left = parts.length();
            prop_assert_eq!(parts.first_offset(), Some(ranges[0].start));
            let mut spans = Vec::new();
            while let Some(part) = parts.next() {
                left -= part.length();
                prop_assert_eq!(parts.length(), left);
                spans.extend(match part {
                    Part::Span(span) => Some(span),
                    Part::Octets(_) => None,
                });
            }
            prop_assert_eq!(left, 0);
            prop_assert_eq!(spans, ranges);
            prop_assert_eq!(parts.next(), None);
        }
    }

    #[test]
    fn numbers_have_their_digits() {
        for number in [0, 9, 10, 99, 100, u64::MAX] {
            assert_eq!(digits(number), number.to_string().len());
        }
    }
}
