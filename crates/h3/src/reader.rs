//! Parses frames from a stream's bytes, wherever these are split.

use crate::{Error, varint};

/// What becomes of a frame, decided from its type and length before its payload is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Handed over whole. Who says so has bounded its length.
    Whole,
    /// Handed over as it comes.
    Pieces,
    /// Passed over.
    Skip,
}

/// What came out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// A frame's type and whole payload.
    Whole(u64, &'a [u8]),
    /// Some payload, never empty, of a frame that is handed over in pieces.
    Piece(&'a [u8]),
}

/// Bytes of the longest frame header: two varints.
const MAX_HEADER: usize = 2 * varint::MAX_LEN;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Header,
    Whole { kind: u64, length: usize },
    Pieces { left: u64 },
    Skip { left: u64 },
}

/// Reads frames. What comes in one piece is lent from the input; only frames to be handed over whole that
/// come in parts are kept.
#[derive(Debug)]
pub(crate) struct FrameReader {
    phase: Phase,
    header: [u8; MAX_HEADER],
    header_len: u8,
    /// The beginning of a frame that came in parts, or a whole one that was handed over last.
    parts: Vec<u8>,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self { phase: Phase::Header, header: [0; MAX_HEADER], header_len: 0, parts: Vec::new() }
    }
}

impl FrameReader {
    /// The next event out of `input`, whose front is taken; `None` when all of it is taken.
    #[inline]
    pub(crate) fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
        mut plan: impl FnMut(u64, u64) -> Result<Plan, Error>,
    ) -> Result<Option<Event<'s>>, Error> {
        if self.phase == Phase::Header && self.parts.capacity() > 0 {
            // Of a frame that was handed over.
            self.parts = Vec::new();
        }
        let kind = loop {
            match self.phase {
                Phase::Header => {
                    let Some((kind, length)) = self.read_header(input) else { return Ok(None) };
                    self.phase = match plan(kind, length)? {
                        Plan::Whole => {
                            let length = usize::try_from(length).unwrap_or(usize::MAX);
                            Phase::Whole { kind, length }
                        }
                        Plan::Pieces => Phase::Pieces { left: length },
                        Plan::Skip => Phase::Skip { left: length },
                    };
                }
                Phase::Pieces { left: 0 } | Phase::Skip { left: 0 } => self.phase = Phase::Header,
                Phase::Pieces { .. } | Phase::Skip { .. } if input.is_empty() => return Ok(None),
                Phase::Pieces { left } => {
                    let piece = take(input, left);
                    self.phase = Phase::Pieces { left: left - piece.len() as u64 };
                    return Ok(Some(Event::Piece(piece)));
                }
                Phase::Skip { left } => {
                    let passed = take(input, left).len() as u64;
                    self.phase = Phase::Skip { left: left - passed };
                }
                Phase::Whole { kind, length } if self.parts.is_empty() && input.len() >= length => {
                    self.phase = Phase::Header;
                    return Ok(Some(Event::Whole(kind, take(input, length as u64))));
                }
                Phase::Whole { kind, length } => {
                    let part = take(input, (length - self.parts.len()) as u64);
                    self.parts.extend_from_slice(part);
                    if self.parts.len() < length {
                        return Ok(None);
                    }
                    self.phase = Phase::Header;
                    break kind;
                }
            }
        };
        Ok(Some(Event::Whole(kind, &self.parts)))
    }

    /// True between frames, where a stream may end.
    pub(crate) fn is_between_frames(&self) -> bool {
        match self.phase {
            Phase::Header => self.header_len == 0,
            Phase::Pieces { left } | Phase::Skip { left } => left == 0,
            Phase::Whole { .. } => false,
        }
    }

    /// Bytes kept of a frame that came in parts.
    pub(crate) fn kept(&self) -> usize {
        match self.phase {
            Phase::Whole { .. } => self.parts.len(),
            _ => 0,
        }
    }

    /// Bytes of memory that what is kept takes.
    pub(crate) fn capacity(&self) -> usize {
        self.parts.capacity()
    }

    /// Type and length of the frame at the front of `input`, after what was kept of its header.
    #[inline]
    fn read_header(&mut self, input: &mut &[u8]) -> Option<(u64, u64)> {
        if self.header_len == 0
            && let Some((kind, length, size)) = parse_header(input)
        {
            *input = &input[size..];
            return Some((kind, length));
        }
        loop {
            let (byte, rest) = input.split_first()?;
            *input = rest;
            self.header[usize::from(self.header_len)] = *byte;
            self.header_len += 1;
            if let Some((kind, length, _)) = parse_header(&self.header[..usize::from(self.header_len)]) {
                self.header_len = 0;
                return Some((kind, length));
            }
        }
    }
}

#[inline]
fn parse_header(input: &[u8]) -> Option<(u64, u64, usize)> {
    let (kind, one) = varint::read(input)?;
    let (length, two) = varint::read(&input[one..])?;
    Some((kind, length, one + two))
}

#[inline]
fn take<'i>(input: &mut &'i [u8], length: u64) -> &'i [u8] {
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(input.len());
    let (taken, rest) = input.split_at(length);
    *input = rest;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;
    use proptest::prelude::*;

    /// Frames of types below 4 are whole, those below 8 come in pieces, others are skipped.
    fn plan(kind: u64, length: u64) -> Result<Plan, Error> {
        Ok(match kind {
            0..4 if length <= 1000 => Plan::Whole,
            4..8 => Plan::Pieces,
            _ => Plan::Skip,
        })
    }

    /// Whole frames, pieces, whether the end is between frames, and the most that was kept.
    type Read = (Vec<(u64, Vec<u8>)>, Vec<u8>, bool, usize);

    fn read_all(chunks: &[&[u8]]) -> Read {
        let mut reader = FrameReader::default();
        let (mut whole, mut pieces, mut most) = (Vec::new(), Vec::new(), 0);
        for chunk in chunks {
            let mut input = *chunk;
            while let Some(event) = reader.next(&mut input, plan).unwrap() {
                match event {
                    Event::Whole(kind, payload) => whole.push((kind, payload.to_vec())),
                    Event::Piece(piece) => pieces.extend_from_slice(piece),
                }
            }
            assert!(input.is_empty());
            most = most.max(reader.kept());
        }
        (whole, pieces, reader.is_between_frames(), most)
    }

    proptest! {
        #[test]
        fn frames_come_out_the_same_however_they_are_cut(
            frames in prop::collection::vec((0u64..12, prop::collection::vec(any::<u8>(), 0..90)), 0..12),
            cuts in prop::collection::vec(0usize..600, 0..12),
        ) {
            let mut bytes = Vec::new();
            for (kind, payload) in &frames {
                frame::write_header(*kind, payload.len() as u64, &mut bytes);
                bytes.extend_from_slice(payload);
            }
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let (whole, pieces, between, _) = read_all(&chunks);
            let of = |low: u64, high: u64| frames.iter().filter(move |(kind, _)| (low..high).contains(kind));
            prop_assert_eq!(whole, of(0, 4).cloned().collect::<Vec<_>>());
            prop_assert_eq!(pieces, of(4, 8).flat_map(|(_, payload)| payload.clone()).collect::<Vec<_>>());
            prop_assert!(between);
            let single: Vec<&[u8]> = bytes.chunks(1).collect();
            prop_assert_eq!(read_all(&single).0, of(0, 4).cloned().collect::<Vec<_>>());
        }

        #[test]
        fn nothing_panics_or_keeps_more_than_planned(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
        ) {
            let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
            prop_assert!(read_all(&chunks).3 <= 1000);
        }
    }

    #[test]
    fn the_longest_header_is_read_byte_by_byte_and_the_end_within_a_frame_is_seen() {
        let mut bytes = [0xff; 16];
        (bytes[0], bytes[8]) = (0xc0, 0xff);
        let parts: Vec<&[u8]> = bytes.chunks(1).collect();
        let (whole, pieces, between, _) = read_all(&parts);
        assert!(whole.is_empty() && pieces.is_empty() && !between);
        assert!(!read_all(&[&[1]]).2, "half a header");
        assert!(!read_all(&[&[1, 5, 0]]).2, "half a frame");
        assert!(read_all(&[&[1, 1, 0]]).2);
        assert!(read_all(&[&[]]).2);
    }
}
