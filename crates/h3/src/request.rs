//! Parses a request stream (RFC 9114, sections 4.1 and 7.2).

use crate::reader::{Event, FrameReader, Plan};
use crate::{Error, code, frame};

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestEvent<'a> {
    /// A field section, still encoded: the header section first, a trailer section afterwards.
    Headers(&'a [u8]),
    /// Body data, never empty.
    Data(&'a [u8]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Header,
    Body,
    Nothing,
}

/// Reads a request stream.
#[derive(Debug)]
pub struct RequestReader {
    frames: FrameReader,
    expect: Expect,
}

impl Default for RequestReader {
    fn default() -> Self {
        Self { frames: FrameReader::default(), expect: Expect::Header }
    }
}

impl RequestReader {
    /// The next event out of `input`, whose front is taken; `None` when all of it is taken. An encoded field
    /// section of more than `max_section` bytes is an error of the stream before any of it is kept.
    #[inline]
    pub fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
        max_section: u64,
    ) -> Result<Option<RequestEvent<'s>>, Error> {
        let Self { frames, expect } = self;
        let event = frames.next(input, |kind, length| plan(expect, kind, length, max_section))?;
        Ok(event.map(|event| match event {
            Event::Whole(_, section) => RequestEvent::Headers(section),
            Event::Piece(piece) => RequestEvent::Data(piece),
        }))
    }

    /// To be asked when the stream has ended: whether it may end here.
    pub fn end(&self) -> Result<(), Error> {
        if !self.frames.is_between_frames() {
            return Err(Error::connection(code::FRAME_ERROR, "a request stream ends within a frame"));
        }
        match self.expect {
            Expect::Header => Err(Error::stream(code::REQUEST_INCOMPLETE, "no header section")),
            Expect::Body | Expect::Nothing => Ok(()),
        }
    }

    /// True until the header section is announced.
    pub fn is_fresh(&self) -> bool {
        self.expect == Expect::Header
    }

    /// Bytes kept of a section that came in parts.
    pub fn kept(&self) -> usize {
        self.frames.kept()
    }

    /// Bytes of memory that what is kept takes, the section that was handed over last included until the next call of
    /// [`Self::next`].
    pub fn capacity(&self) -> usize {
        self.frames.capacity()
    }
}

#[inline]
fn plan(expect: &mut Expect, kind: u64, length: u64, max_section: u64) -> Result<Plan, Error> {
    let unexpected = |reason| Err(Error::connection(code::FRAME_UNEXPECTED, reason));
    match kind {
        frame::HEADERS => {
            *expect = match expect {
                Expect::Header => Expect::Body,
                Expect::Body => Expect::Nothing,
                Expect::Nothing => return unexpected("HEADERS after trailers"),
            };
            if length > max_section {
                return Err(Error::stream(code::EXCESSIVE_LOAD, "a field section beyond the limit"));
            }
            Ok(Plan::Whole)
        }
        frame::DATA => match expect {
            Expect::Body => Ok(Plan::Pieces),
            Expect::Header => unexpected("DATA before HEADERS"),
            Expect::Nothing => unexpected("DATA after trailers"),
        },
        frame::CANCEL_PUSH
        | frame::SETTINGS
        | frame::GOAWAY
        | frame::MAX_PUSH_ID
        | frame::PRIORITY_UPDATE
        | frame::PRIORITY_UPDATE_PUSH => unexpected("a frame of the control stream on a request stream"),
        frame::PUSH_PROMISE => unexpected("PUSH_PROMISE from a client"),
        kind if frame::is_http2(kind) => unexpected("a frame of HTTP/2"),
        _ => Ok(Plan::Skip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::testing::stream;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let (mut reader, mut input, mut seen) = (RequestReader::default(), bytes, Vec::new());
        while let Some(event) = reader.next(&mut input, 100)? {
            seen.push(match event {
                RequestEvent::Headers(section) => [b"H", section].concat(),
                RequestEvent::Data(piece) => [b"D", piece].concat(),
            });
        }
        reader.end().map(|()| seen)
    }

    #[test]
    fn a_request_with_body_trailers_and_grease_is_read() {
        let bytes = stream(&[(0x21, b"g"), (1, b"head"), (0, b""), (0, b"body"), (0x40, b"?"), (1, b"tail")]);
        assert_eq!(read(&bytes).unwrap(), [&b"Hhead"[..], b"Dbody", b"Htail"]);
    }

    #[test]
    fn each_wrong_frame_has_its_code() {
        let connection = |code| (code, crate::Scope::Connection);
        let stream_scope = |code| (code, crate::Scope::Stream);
        let unexpected = connection(code::FRAME_UNEXPECTED);
        let long = [0; 101];
        let mut cases: Vec<(&str, Vec<u8>, _)> = vec![
            ("data first", stream(&[(0, b"x")]), unexpected),
            ("empty data first", stream(&[(0, b"")]), unexpected),
            ("data after trailers", stream(&[(1, b"a"), (1, b"b"), (0, b"x")]), unexpected),
            ("three sections", stream(&[(1, b"a"), (1, b"b"), (1, b"c")]), unexpected),
            ("too long", stream(&[(1, &long)]), stream_scope(code::EXCESSIVE_LOAD)),
            ("nothing", Vec::new(), stream_scope(code::REQUEST_INCOMPLETE)),
            ("only grease", stream(&[(0x21, b"g")]), stream_scope(code::REQUEST_INCOMPLETE)),
            ("half a frame", vec![1, 5, 0], connection(code::FRAME_ERROR)),
            ("half a body", stream(&[(1, b"a"), (0, b"xyz")])[..6].to_vec(), connection(code::FRAME_ERROR)),
            ("half a header", vec![0x40], connection(code::FRAME_ERROR)),
        ];
        for kind in [2, 3, 4, 5, 6, 7, 8, 9, 0xd, 0xf0700, 0xf0701] {
            cases.push(("control", stream(&[(1, b"a"), (kind, b"x")]), unexpected));
        }
        for (what, bytes, expected) in cases {
            let error = read(&bytes).expect_err(what);
            assert_eq!((error.code, error.scope), expected, "{what}");
        }
    }

    proptest! {
        #[test]
        fn no_more_is_kept_than_a_section_may_have(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
        ) {
            let mut reader = RequestReader::default();
            'stream: for chunk in &chunks {
                let mut input = chunk.as_slice();
                loop {
                    match reader.next(&mut input, 100) {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => break 'stream,
                    }
                }
                prop_assert!(reader.kept() <= 100);
            }
        }
    }
}
