//! The streams of one direction that a client opens (RFC 9114, section 6.2), and our control stream.

use expressway_h3::{
    ControlEvent, ControlReader, Error, InstructionReader, Instructions, Settings, code, frame, settings,
    stream_type, varint,
};

use expressway_netio::Slice;

use super::priority;
use super::unsent::Unsent;
use crate::quic::engine::{Priority, Received, SendError, Transport};

/// Our control stream: the first of one direction that a server opens.
const OUR_CONTROL: u64 = 3;

/// Bytes that are read at a time: some hundred frames at most, each of which may move a request to another priority.
const PART: usize = 1 << 10;

/// What is known of a client's stream.
enum Stream {
    /// Its type is incomplete.
    Unknown {
        start: [u8; varint::MAX_LEN],
        length: usize,
    },
    Control(ControlReader),
    Qpack(InstructionReader),
}

impl Stream {
    fn is_critical(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }
}

/// The streams that carry no requests.
pub(crate) struct Peer {
    /// As many as a client may have open at a time, minus those that were closed by us.
    streams: Vec<(u64, Stream)>,
    has_control: bool,
    has_encoder: bool,
    has_decoder: bool,
    /// Data that our control stream has not accepted yet.
    unsent: Unsent,
    /// Our control stream has accepted some.
    is_open: bool,
    goaway: Option<u64>,
    /// What the client has said of itself.
    settings: Option<Settings>,
}

impl Peer {
    /// Begins our control stream with SETTINGS, of which there are `more`, and a reserved frame (RFC 9114, section
    /// 7.2.8). QPACK streams are not opened: without a dynamic table they carry nothing (RFC 9204, section 4.2).
    pub(crate) fn new(max_field_section_size: u64, more: &[(u64, u64)]) -> Self {
        let mut seed = [0; 4];
        // Reserved numbers need no secrecy, so a generator that fails costs only their variety.
        let _ = boring::rand::rand_bytes(&mut seed);
        let seed = u32::from_ne_bytes(seed);
        let mut unsent = Unsent::default();
        unsent.append(|out| {
            out.reserve(64);
            varint::write(stream_type::CONTROL, out);
            settings::write(max_field_section_size, more, seed & 0xffff, out);
            frame::write_header(frame::reserved(seed >> 16), 0, out);
        });
        Self {
            streams: Vec::new(),
            has_control: false,
            has_encoder: false,
            has_decoder: false,
            unsent,
            is_open: false,
            goaway: None,
            settings: None,
        }
    }

    /// The client's settings, once they have come.
    pub(crate) fn settings(&self) -> Option<Settings> {
        self.settings
    }

    /// The beginning of a stream was read that has not ended.
    pub(crate) fn knows(&self, stream: u64) -> bool {
        self.streams.iter().any(|(id, _)| *id == stream)
    }

    /// Tells the client that requests from `first_refused` on will not be processed (RFC 9114, section 5.2).
    pub(crate) fn goaway(&mut self, first_refused: u64) {
        if self.goaway.is_none_or(|last| first_refused < last) {
            self.goaway = Some(first_refused);
            self.unsent.append(|out| frame::write_goaway(first_refused, out));
        }
    }

    /// Writes pending data to our control stream as far as it accepts; the rest is written by a later call.
    /// An error means that the client has stopped it, which the engine does not report by itself.
    #[inline]
    pub(crate) fn flush(&mut self, transport: &mut Transport) -> Result<(), Error> {
        let mut is_over = self.is_open && transport.is_stopped(OUR_CONTROL);
        if !is_over && !self.unsent.is_empty() {
            let sent = self.unsent.send(transport, OUR_CONTROL, false);
            self.is_open |= sent.is_ok_and(|length| length > 0);
            is_over = sent == Err(SendError::Over);
        }
        if is_over {
            return Err(Error::connection(code::CLOSED_CRITICAL_STREAM, "our control stream was stopped"));
        }
        Ok(())
    }

    /// The connection as a whole could take more now, whatever becomes of single streams: our control stream could, which
    /// any client that takes SETTINGS leaves with room.
    pub(crate) fn takes(&self, transport: &mut Transport) -> bool {
        transport.has_capacity(OUR_CONTROL)
    }

    /// Reads `stream` to its end for now, or until the slice is spent (false). Priorities go to `reprioritize`, which may
    /// refuse them.
    pub(crate) fn read(
        &mut self,
        transport: &mut Transport,
        stream: u64,
        scratch: &mut [u8],
        slice: &mut Slice,
        mut reprioritize: impl FnMut(&mut Transport, u64, Priority) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let part = scratch.len().min(PART);
        let scratch = &mut scratch[..part];
        loop {
            let (length, last) = match transport.receive(stream, scratch) {
                Received::Data { length, last } => (length, last),
                Received::Reset => (0, true),
                Received::Nothing => return Ok(true),
            };
            if !self.take(transport, stream, &scratch[..length], &mut reprioritize)? {
                return Ok(true);
            }
            if last {
                return self.close(stream).map(|()| true);
            }
            if length == scratch.len() && slice.spend() {
                return Ok(false);
            }
        }
    }

    /// Takes what was read of `stream`. False: the rest of it is not read.
    pub(crate) fn take(
        &mut self,
        transport: &mut Transport,
        stream: u64,
        mut input: &[u8],
        mut reprioritize: impl FnMut(&mut Transport, u64, Priority) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let at = self.identify(transport, stream, &mut input)?;
        match at.map(|at| &mut self.streams[at].1) {
            Some(Stream::Control(reader)) => {
                while let Some(event) = reader.next(&mut input)? {
                    match event {
                        ControlEvent::Priority(request, value) => {
                            reprioritize(transport, request, priority::parse(value))?;
                        }
                        ControlEvent::Settings(settings) => self.settings = Some(settings),
                        ControlEvent::Other => {}
                    }
                }
            }
            Some(Stream::Qpack(reader)) => reader.read(input)?,
            Some(Stream::Unknown { .. }) => {}
            // Of a type that means nothing here.
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Where the state of `stream` is, after its type was taken off `input` if that is still to come. `None`:
    /// it is of a type that is not read, and the client is asked to stop.
    fn identify(
        &mut self,
        transport: &mut Transport,
        stream: u64,
        input: &mut &[u8],
    ) -> Result<Option<usize>, Error> {
        let known = self.streams.iter().position(|(id, _)| *id == stream);
        let at = known.unwrap_or_else(|| {
            self.streams.push((stream, Stream::Unknown { start: [0; varint::MAX_LEN], length: 0 }));
            self.streams.len() - 1
        });
        let Stream::Unknown { start, length } = &mut self.streams[at].1 else { return Ok(Some(at)) };
        let kind = loop {
            if let Some((kind, _)) = varint::read(&start[..*length]) {
                break kind;
            }
            let Some((byte, rest)) = input.split_first() else { return Ok(Some(at)) };
            start[*length] = *byte;
            *length += 1;
            *input = rest;
        };
        let twice = |seen: &mut bool| {
            if std::mem::replace(seen, true) {
                return Err(Error::connection(code::STREAM_CREATION_ERROR, "a second critical stream"));
            }
            Ok(())
        };
        self.streams[at].1 = match kind {
            stream_type::CONTROL => {
                twice(&mut self.has_control)?;
                Stream::Control(ControlReader::default())
            }
            stream_type::QPACK_ENCODER => {
                twice(&mut self.has_encoder)?;
                Stream::Qpack(InstructionReader::new(Instructions::Encoder))
            }
            stream_type::QPACK_DECODER => {
                twice(&mut self.has_decoder)?;
                Stream::Qpack(InstructionReader::new(Instructions::Decoder))
            }
            stream_type::PUSH => {
                return Err(Error::connection(code::STREAM_CREATION_ERROR, "a push stream from a client"));
            }
            _ => {
                self.streams.swap_remove(at);
                transport.stop_with(stream, code::STREAM_CREATION_ERROR);
                return Ok(None);
            }
        };
        Ok(Some(at))
    }

    /// The client's side of `stream` has ended.
    pub(crate) fn close(&mut self, stream: u64) -> Result<(), Error> {
        let Some(at) = self.streams.iter().position(|(id, _)| *id == stream) else { return Ok(()) };
        let (_, state) = self.streams.swap_remove(at);
        if state.is_critical() {
            return Err(Error::connection(code::CLOSED_CRITICAL_STREAM, "a critical stream was closed"));
        }
        Ok(())
    }
}
