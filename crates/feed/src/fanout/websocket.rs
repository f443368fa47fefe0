//! What WebSocket subscribers send (RFC 6455, section 5): control frames are answered, data is discarded.

/// RFC 6455, section 5.2.
const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

/// Longest payload of a control frame (section 5.5).
const CONTROL: u64 = 125;

/// What has to be answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// A Ping with its payload, which the Pong has to carry.
    Ping(Vec<u8>),
    /// A Close. With a status code, that is to be sent back.
    Close(Option<u16>),
}

/// Reads frames from a stream that may be cut anywhere. Holds one header and one control payload at most.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    header: Vec<u8>,
    frame: Option<Frame>,
    /// A fragmented data message is under way.
    fragmented: bool,
}

#[derive(Debug)]
struct Frame {
    opcode: u8,
    mask: [u8; 4],
    left: u64,
    /// Of control frames only.
    payload: Vec<u8>,
}

impl Parser {
    /// Reads `bytes` and returns what must be answered. Returns how many frames ended in them.
    ///
    /// # Errors
    /// The peer's violation (section 7.1.7); nothing can be read after that.
    pub(crate) fn read(
        &mut self,
        mut bytes: &[u8],
        answer: &mut dyn FnMut(Input),
    ) -> Result<usize, &'static str> {
        let mut frames = 0;
        loop {
            if self.frame.is_none() {
                let Some((&byte, rest)) = bytes.split_first() else { return Ok(frames) };
                bytes = rest;
                self.header.push(byte);
                self.frame = self.begin()?;
            }
            let Some(frame) = &mut self.frame else { continue };
            let taken = usize::try_from(frame.left).unwrap_or(usize::MAX).min(bytes.len());
            if frame.opcode >= CLOSE {
                frame.payload.extend_from_slice(&bytes[..taken]);
            }
            frame.left -= taken as u64;
            bytes = &bytes[taken..];
            if frame.left != 0 {
                return Ok(frames);
            }
            if let Some(frame) = self.frame.take() {
                frame.finish(answer)?;
                frames += 1;
            }
        }
    }

    /// The frame whose header is complete, if it is.
    fn begin(&mut self) -> Result<Option<Frame>, &'static str> {
        let [first, second, rest @ ..] = &self.header[..] else { return Ok(None) };
        let (opcode, finished) = (first & 0x0f, first & 0x80 != 0);
        if first & 0x70 != 0 {
            return Err("a reserved bit is set");
        }
        if second & 0x80 == 0 {
            return Err("client frame is not masked");
        }
        let extended = match second & 0x7f {
            127 => 8,
            126 => 2,
            _ => 0,
        };
        if rest.len() < extended + 4 {
            return Ok(None);
        }
        let left = match extended {
            0 => u64::from(second & 0x7f),
            _ => rest[..extended].iter().fold(0, |value, byte| value << 8 | u64::from(*byte)),
        };
        if left >> 63 != 0 {
            return Err("length has its highest bit set");
        }
        match opcode {
            CLOSE | PING | PONG if !finished || left > CONTROL => {
                return Err("control frame is fragmented or too long");
            }
            CLOSE | PING | PONG => {}
            CONTINUATION if !self.fragmented => return Err("continuation without a first frame"),
            TEXT | BINARY if self.fragmented => return Err("new message inside a fragmented message"),
            CONTINUATION | TEXT | BINARY => self.fragmented = !finished,
            _ => return Err("unknown opcode"),
        }
        let mask = [rest[extended], rest[extended + 1], rest[extended + 2], rest[extended + 3]];
        self.header.clear();
        Ok(Some(Frame { opcode, mask, left, payload: Vec::new() }))
    }
}

impl Frame {
    fn finish(mut self, answer: &mut dyn FnMut(Input)) -> Result<(), &'static str> {
        for (byte, mask) in self.payload.iter_mut().zip(self.mask.iter().cycle()) {
            *byte ^= mask;
        }
        match (self.opcode, &self.payload[..]) {
            (PING, _) => answer(Input::Ping(self.payload)),
            (CLOSE, []) => answer(Input::Close(None)),
            (CLOSE, [high, low, ..]) => answer(Input::Close(Some(u16::from_be_bytes([*high, *low])))),
            (CLOSE, _) => return Err("close frame with a truncated status code"),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut out = vec![first];
        match payload.len() {
            length @ 0..126 => out.push(0x80 | length as u8),
            length => {
                out.push(0x80 | 126);
                out.extend((length as u16).to_be_bytes());
            }
        }
        out.extend(mask);
        out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        out
    }

    fn read(parser: &mut Parser, bytes: &[u8]) -> Result<Vec<Input>, &'static str> {
        let mut inputs = Vec::new();
        parser.read(bytes, &mut |input| inputs.push(input)).map(|_| inputs)
    }

    #[test]
    fn control_frames_are_answered_and_data_is_not() {
        let mut bytes = frame(0x81, b"text");
        bytes.extend(frame(0x02, &[7; 300]));
        bytes.extend(frame(0x89, b"are you there"));
        bytes.extend(frame(0x80, b"end of the binary one"));
        bytes.extend(frame(0x88, &[0x03, 0xe8, b'b', b'y', b'e']));
        let inputs = read(&mut Parser::default(), &bytes);
        assert_eq!(inputs, Ok(vec![Input::Ping(b"are you there".to_vec()), Input::Close(Some(1000))]));
        assert_eq!(read(&mut Parser::default(), &frame(0x88, b"")), Ok(vec![Input::Close(None)]));
    }

    #[test]
    fn what_the_protocol_forbids_is_refused() {
        for bytes in [
            vec![0x82, 0x01, 0xff],
            frame(0xc2, b""),
            frame(0x83, b""),
            frame(0x80, b""),
            frame(0x09, b""),
            frame(0x89, &[0; 126]),
            frame(0x88, &[3]),
            [&[0x82, 0xff, 0x80][..], &[0; 11]].concat(),
            [frame(0x02, b""), frame(0x82, b"")].concat(),
        ] {
            assert!(read(&mut Parser::default(), &bytes).is_err(), "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(
            cuts in prop::collection::vec(1usize..9, 0..200),
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..125), 1..6),
        ) {
            let bytes: Vec<u8> = payloads.iter().flat_map(|payload| frame(0x89, payload)).collect();
            let (mut parser, mut rest, mut inputs) = (Parser::default(), &bytes[..], Vec::new());
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                inputs.extend(read(&mut parser, now).unwrap());
                rest = later;
            }
            inputs.extend(read(&mut parser, rest).unwrap());
            let expected: Vec<Input> = payloads.into_iter().map(Input::Ping).collect();
            prop_assert_eq!(inputs, expected);
        }

        #[test]
        fn anything_may_come(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut parser = Parser::default();
            let _ = read(&mut parser, &bytes);
            prop_assert!(parser.header.len() <= 14);
        }
    }
}
