//! Capsules on the stream of a WebTransport session (RFC 9297, section 3.2; draft-ietf-webtrans-http3-15, sections 5 and 6).

use crate::reader::{Event, FrameReader, Plan};
use crate::{Error, code, frame, varint};

/// WT_CLOSE_SESSION.
const CLOSE_SESSION: u64 = 0x2843;
/// WT_DRAIN_SESSION.
const DRAIN_SESSION: u64 = 0x78ae;
/// WT_MAX_DATA.
const MAX_DATA: u64 = 0x190b_4d3d;
/// WT_MAX_STREAMS for streams in both directions.
const MAX_STREAMS_BIDI: u64 = 0x190b_4d3f;
/// WT_MAX_STREAMS for streams in one direction.
const MAX_STREAMS_UNI: u64 = 0x190b_4d40;

/// The longest words that close a session, in bytes.
const MAX_REASON: usize = 1024;
/// Bytes of the code in front of them.
const CODE: usize = 4;

/// A count of streams at most (RFC 9000, section 4.6).
pub const MAX_STREAMS: u64 = 1 << 60;

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capsule<'a> {
    /// The session is over, with this code and these words.
    Close(u32, &'a [u8]),
    /// The peer asks for an end of the session.
    Drain,
    /// Bytes that may be sent on all streams of the session, from its beginning on.
    MaxData(u64),
    /// Streams in both directions that may be opened in all.
    MaxStreamsBidi(u64),
    /// Streams in one direction.
    MaxStreamsUni(u64),
}

/// Reads capsules.
#[derive(Debug, Default)]
pub struct CapsuleReader {
    frames: FrameReader,
}

impl CapsuleReader {
    /// The next capsule that means something out of `input`, whose front is taken; `None` when all of it is taken. One that is too
    /// long for its type is an error before any of it is kept; of other types nothing is kept.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Result<Option<Capsule<'s>>, Error> {
        // It has the layout of a frame.
        let Some(Event::Whole(kind, payload)) = self.frames.next(input, plan)? else { return Ok(None) };
        let number = |most: u64| match varint::read_only(payload) {
            Some(number) if number <= most => Ok(number),
            Some(_) => Err(Error::connection(
                code::WT_FLOW_CONTROL_ERROR,
                "a limit of more streams than there can be",
            )),
            None => Err(malformed("a capsule that is not one number")),
        };
        Ok(Some(match kind {
            CLOSE_SESSION => match payload.split_first_chunk::<CODE>() {
                Some((code, reason)) => Capsule::Close(u32::from_be_bytes(*code), reason),
                None => return Err(malformed("a session is closed without a code")),
            },
            MAX_DATA => Capsule::MaxData(number(varint::MAX)?),
            MAX_STREAMS_BIDI => Capsule::MaxStreamsBidi(number(MAX_STREAMS)?),
            MAX_STREAMS_UNI => Capsule::MaxStreamsUni(number(MAX_STREAMS)?),
            _ => Capsule::Drain,
        }))
    }

    /// To be asked when the stream has ended: whether it may end here.
    pub fn end(&self) -> Result<(), Error> {
        match self.frames.is_between_frames() {
            true => Ok(()),
            false => Err(malformed("a stream ends within a capsule")),
        }
    }

    /// Bytes kept of a capsule that came in parts.
    pub fn kept(&self) -> usize {
        self.frames.kept()
    }
}

/// RFC 9297, section 3.3: the message is malformed.
const fn malformed(reason: &'static str) -> Error {
    Error::stream(code::MESSAGE_ERROR, reason)
}

fn plan(kind: u64, length: u64) -> Result<Plan, Error> {
    let most = match kind {
        CLOSE_SESSION => CODE + MAX_REASON,
        DRAIN_SESSION => 0,
        MAX_DATA | MAX_STREAMS_BIDI | MAX_STREAMS_UNI => varint::MAX_LEN,
        _ => return Ok(Plan::Skip),
    };
    if length > most as u64 { Err(malformed("a capsule beyond the limit")) } else { Ok(Plan::Whole) }
}

/// Appends a frame with the capsule that closes a session; words beyond what fits are left out.
pub fn write_close(code: u32, reason: &str, out: &mut Vec<u8>) {
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    frame::write(frame::DATA, out, |out| {
        frame::write_header(CLOSE_SESSION, (CODE + end) as u64, out);
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(&reason.as_bytes()[..end]);
    });
}

/// Appends a frame with the capsule that asks for an end of a session.
pub fn write_drain(out: &mut Vec<u8>) {
    frame::write(frame::DATA, out, |out| frame::write_header(DRAIN_SESSION, 0, out));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::testing::stream;
    use crate::{RequestEvent, RequestReader};
    use proptest::prelude::*;

    /// What was read, reading in chunks of `size`.
    fn read(bytes: &[u8], size: usize) -> Result<Vec<String>, (u64, crate::Scope)> {
        let (mut reader, mut seen) = (CapsuleReader::default(), Vec::new());
        let failed = |error: Error| (error.code, error.scope);
        for chunk in bytes.chunks(size) {
            let mut input = chunk;
            while let Some(capsule) = reader.next(&mut input).map_err(failed)? {
                seen.push(format!("{capsule:?}"));
            }
        }
        reader.end().map_err(failed)?;
        Ok(seen)
    }

    #[test]
    fn capsules_are_read_however_they_are_cut() {
        let bytes = stream(&[
            (0x1234, &[9; 100]),
            (DRAIN_SESSION, b""),
            (MAX_DATA, &[0x40, 100]),
            (MAX_STREAMS_BIDI, &[7]),
            (MAX_STREAMS_UNI, &[0]),
            (0x190b_4d41, &[1]),
            (CLOSE_SESSION, b"\0\0\x01\x02bye"),
        ]);
        let close = format!("{:?}", Capsule::Close(0x102, b"bye"));
        for size in [1, 2, 7, 1000] {
            let seen = read(&bytes, size).unwrap();
            assert_eq!(seen, ["Drain", "MaxData(100)", "MaxStreamsBidi(7)", "MaxStreamsUni(0)", &close]);
        }
    }

    #[test]
    fn what_cannot_be_has_its_code() {
        let malformed = Err((code::MESSAGE_ERROR, crate::Scope::Stream));
        let long = [0; CODE + MAX_REASON + 1];
        let mut too_many = Vec::new();
        varint::write(MAX_STREAMS + 1, &mut too_many);
        for (bytes, expected) in [
            (stream(&[(CLOSE_SESSION, &long)]), malformed.clone()),
            (stream(&[(CLOSE_SESSION, &long[..CODE - 1])]), malformed.clone()),
            (stream(&[(DRAIN_SESSION, b"x")]), malformed.clone()),
            (stream(&[(MAX_DATA, b"")]), malformed.clone()),
            (stream(&[(MAX_DATA, &[0, 0])]), malformed.clone()),
            (stream(&[(MAX_DATA, &[0; 9])]), malformed.clone()),
            (
                stream(&[(MAX_STREAMS_UNI, &too_many)]),
                Err((code::WT_FLOW_CONTROL_ERROR, crate::Scope::Connection)),
            ),
            (stream(&[(CLOSE_SESSION, b"\0\0\0\0")])[..5].to_vec(), malformed.clone()),
            (vec![0x7f], malformed),
        ] {
            for size in [1, 1000] {
                assert_eq!(read(&bytes, size), expected, "{bytes:x?}");
            }
        }
        assert!(read(&stream(&[(CLOSE_SESSION, &long[1..])]), 1000).is_ok(), "just as long as it may be");
    }

    #[test]
    fn what_is_written_is_read() {
        for (reason, length) in [("", 0), ("no such room", 12), (&"é".repeat(1000), 1024)] {
            let mut out = Vec::new();
            write_drain(&mut out);
            write_close(7, reason, &mut out);
            let mut request = RequestReader::default();
            // Behind a head, as it is sent.
            let all = [&stream(&[(frame::HEADERS, b"h")])[..], &out].concat();
            let (mut input, mut payload) = (all.as_slice(), Vec::new());
            while let Some(event) = request.next(&mut input, 10).unwrap() {
                if let RequestEvent::Data(piece) = event {
                    payload.extend_from_slice(piece);
                }
            }
            let mut reader = CapsuleReader::default();
            let mut input = payload.as_slice();
            assert_eq!(reader.next(&mut input), Ok(Some(Capsule::Drain)));
            let Ok(Some(Capsule::Close(7, words))) = reader.next(&mut input) else { panic!("{reason}") };
            assert_eq!(words, &reason.as_bytes()[..length]);
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_little_is_kept(bytes in prop::collection::vec(any::<u8>(), 0..600), size in 1usize..90) {
            let mut reader = CapsuleReader::default();
            'stream: for chunk in bytes.chunks(size) {
                let mut input = chunk;
                loop {
                    match reader.next(&mut input) {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => break 'stream,
                    }
                }
                prop_assert!(reader.kept() <= CODE + MAX_REASON);
            }
        }
    }
}
