//! Parses a client's control stream (RFC 9114, sections 6.2.1 and 7.2; RFC 9218, section 7.2).

use crate::reader::{Event, FrameReader, Plan};
use crate::settings::{self, Settings};
use crate::{Error, code, frame, varint};

/// The longest PRIORITY_UPDATE payload that is read, in bytes.
const MAX_PRIORITY_UPDATE: u64 = 256;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub enum ControlEvent<'a> {
    /// The client's settings.
    Settings(Settings),
    /// A request's priority changes; the value is a priority field value.
    Priority(u64, &'a [u8]),
    /// A frame that was checked and asks for nothing.
    Other,
}

/// Reads a client's control stream.
#[derive(Debug, Default)]
pub struct ControlReader {
    frames: FrameReader,
    has_settings: bool,
    max_push_id: Option<u64>,
    goaway: Option<u64>,
}

impl ControlReader {
    /// The next event out of `input`, whose front is taken; `None` when all of it is taken.
    pub fn next<'s, 'i: 's>(&'s mut self, input: &mut &'i [u8]) -> Result<Option<ControlEvent<'s>>, Error> {
        let Self { frames, has_settings, max_push_id, goaway } = self;
        let event = frames.next(input, |kind, length| plan(has_settings, kind, length))?;
        let Some(Event::Whole(kind, payload)) = event else { return Ok(None) };
        let id = || {
            varint::read_only(payload)
                .ok_or(Error::connection(code::FRAME_ERROR, "a control frame that is not one ID"))
        };
        match kind {
            frame::SETTINGS => return settings::parse(payload).map(|all| Some(ControlEvent::Settings(all))),
            frame::PRIORITY_UPDATE => {
                let (stream, length) = varint::read(payload)
                    .ok_or(Error::connection(code::FRAME_ERROR, "PRIORITY_UPDATE without an ID"))?;
                if stream & 3 != 0 {
                    return Err(Error::connection(code::ID_ERROR, "PRIORITY_UPDATE of no request stream"));
                }
                return Ok(Some(ControlEvent::Priority(stream, &payload[length..])));
            }
            frame::MAX_PUSH_ID => {
                let id = id()?;
                if max_push_id.is_some_and(|max| id < max) {
                    return Err(Error::connection(code::ID_ERROR, "MAX_PUSH_ID went down"));
                }
                *max_push_id = Some(id);
            }
            frame::GOAWAY => {
                let id = id()?;
                if goaway.is_some_and(|last| id > last) {
                    return Err(Error::connection(code::ID_ERROR, "GOAWAY went up"));
                }
                *goaway = Some(id);
            }
            frame::CANCEL_PUSH => {
                id()?;
                return Err(Error::connection(code::ID_ERROR, "CANCEL_PUSH of what was never promised"));
            }
            _ => {}
        }
        Ok(Some(ControlEvent::Other))
    }
}

fn plan(has_settings: &mut bool, kind: u64, length: u64) -> Result<Plan, Error> {
    let unexpected = |reason| Err(Error::connection(code::FRAME_UNEXPECTED, reason));
    if kind != frame::SETTINGS && !*has_settings {
        return Err(Error::connection(code::MISSING_SETTINGS, "the control stream begins without SETTINGS"));
    }
    let (max, reason) = match kind {
        frame::SETTINGS if *has_settings => return unexpected("a second SETTINGS frame"),
        frame::SETTINGS => {
            *has_settings = true;
            if length > settings::MAX_LEN {
                return Err(Error::connection(code::EXCESSIVE_LOAD, "a SETTINGS frame beyond the limit"));
            }
            return Ok(Plan::Whole);
        }
        frame::PRIORITY_UPDATE => {
            if length > MAX_PRIORITY_UPDATE {
                return Err(Error::connection(code::EXCESSIVE_LOAD, "a PRIORITY_UPDATE beyond the limit"));
            }
            return Ok(Plan::Whole);
        }
        frame::PRIORITY_UPDATE_PUSH => {
            return Err(Error::connection(code::ID_ERROR, "PRIORITY_UPDATE of what was never promised"));
        }
        frame::CANCEL_PUSH | frame::GOAWAY | frame::MAX_PUSH_ID => {
            (varint::MAX_LEN as u64, "a control frame that is not one ID")
        }
        frame::DATA | frame::HEADERS | frame::PUSH_PROMISE => {
            return unexpected("a frame of request streams on the control stream");
        }
        kind if frame::is_http2(kind) => return unexpected("a frame of HTTP/2"),
        _ => return Ok(Plan::Skip),
    };
    if length > max { Err(Error::connection(code::FRAME_ERROR, reason)) } else { Ok(Plan::Whole) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::testing::stream;
    use proptest::prelude::*;

    /// The priorities seen, reading in chunks of `size`.
    fn read(bytes: &[u8], size: usize) -> Result<Vec<(u64, Vec<u8>)>, u64> {
        let (mut reader, mut seen) = (ControlReader::default(), Vec::new());
        for chunk in bytes.chunks(size) {
            let mut input = chunk;
            while let Some(event) = reader.next(&mut input).map_err(|error| error.code)? {
                if let ControlEvent::Priority(stream, value) = event {
                    seen.push((stream, value.to_vec()));
                }
            }
        }
        Ok(seen)
    }

    #[test]
    fn what_a_client_may_say_is_understood() {
        let bytes = stream(&[
            (4, &[6, 0x40, 0x64]),
            (0x21, b"grease"),
            (0xd, &[5]),
            (0xd, &[5]),
            (7, &[9]),
            (7, &[0]),
            (0xf0700, b"\x04u=1"),
            (0xf0700, b"\x40\x08"),
        ]);
        for size in [1, 2, 1000] {
            assert_eq!(read(&bytes, size), Ok(vec![(4, b"u=1".to_vec()), (8, Vec::new())]));
        }
    }

    #[test]
    fn what_it_may_not_say_has_its_code() {
        let long = [0; 3000];
        type Frames<'a> = &'a [(u64, &'a [u8])];
        let cases: &[(&str, Frames<'_>, u64)] = &[
            ("no settings", &[(0x21, b"")], code::MISSING_SETTINGS),
            ("GOAWAY first", &[(7, &[0])], code::MISSING_SETTINGS),
            ("DATA first", &[(0, &[0])], code::MISSING_SETTINGS),
            ("settings twice", &[(4, b""), (4, b"")], code::FRAME_UNEXPECTED),
            ("long settings", &[(4, &long)], code::EXCESSIVE_LOAD),
            ("HTTP/2 setting", &[(4, &[2, 0])], code::SETTINGS_ERROR),
            ("half a setting", &[(4, &[6])], code::FRAME_ERROR),
            ("DATA", &[(4, b""), (0, b"")], code::FRAME_UNEXPECTED),
            ("HEADERS", &[(4, b""), (1, b"")], code::FRAME_UNEXPECTED),
            ("PUSH_PROMISE", &[(4, b""), (5, b"")], code::FRAME_UNEXPECTED),
            ("PRIORITY", &[(4, b""), (2, b"")], code::FRAME_UNEXPECTED),
            ("PING", &[(4, b""), (6, b"")], code::FRAME_UNEXPECTED),
            ("WINDOW_UPDATE", &[(4, b""), (8, b"")], code::FRAME_UNEXPECTED),
            ("CONTINUATION", &[(4, b""), (9, b"")], code::FRAME_UNEXPECTED),
            ("CANCEL_PUSH", &[(4, b""), (3, &[0])], code::ID_ERROR),
            ("empty CANCEL_PUSH", &[(4, b""), (3, b"")], code::FRAME_ERROR),
            ("MAX_PUSH_ID down", &[(4, b""), (0xd, &[5]), (0xd, &[4])], code::ID_ERROR),
            ("MAX_PUSH_ID and more", &[(4, b""), (0xd, &[5, 0])], code::FRAME_ERROR),
            ("empty MAX_PUSH_ID", &[(4, b""), (0xd, b"")], code::FRAME_ERROR),
            ("GOAWAY up", &[(4, b""), (7, &[5]), (7, &[6])], code::ID_ERROR),
            ("long GOAWAY", &[(4, b""), (7, &[0; 9])], code::FRAME_ERROR),
            ("priority of a push", &[(4, b""), (0xf0701, &[0])], code::ID_ERROR),
            ("priority of a server stream", &[(4, b""), (0xf0700, &[1])], code::ID_ERROR),
            ("priority of nothing", &[(4, b""), (0xf0700, b"")], code::FRAME_ERROR),
            ("long priority", &[(4, b""), (0xf0700, &long)], code::EXCESSIVE_LOAD),
        ];
        for (what, frames, expected) in cases {
            for size in [1, 1000] {
                assert_eq!(read(&stream(frames), size), Err(*expected), "{what}");
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_little_is_kept(bytes in prop::collection::vec(any::<u8>(), 0..600), size in 1usize..90) {
            let mut reader = ControlReader::default();
            let settings = stream(&[(4, b"")]);
            'stream: for chunk in [settings.as_slice()].into_iter().chain(bytes.chunks(size)) {
                let mut input = chunk;
                loop {
                    match reader.next(&mut input) {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(_) => break 'stream,
                    }
                }
                prop_assert!(reader.frames.kept() as u64 <= settings::MAX_LEN);
            }
        }
    }
}
