//! Packets of a stream, in order, to frames.

use super::{h264, vp8};
use crate::config::{Codec, Kind};
use crate::moq::local::HEAD;

/// A payload is not what its codec has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Why there is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Packets of it are missing.
    Lost,
    /// Its payload is not what its codec has.
    Malformed,
    /// It is longer than it may be.
    TooLong,
    /// It is a key frame, and there are no parameter sets to decode it with.
    NoParameters,
}

/// A frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its RTP timestamp.
    pub timestamp: u32,
    /// It refers to none before.
    pub is_key: bool,
    /// Its octets, behind [`HEAD`] that are free.
    pub octets: Vec<u8>,
}

/// A packet of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// What it carries.
    pub payload: &'a [u8],
    /// Its RTP timestamp.
    pub timestamp: u32,
    /// It is the last of its frame.
    pub marker: bool,
}

/// What a codec has beside its frames.
#[derive(Debug)]
enum Format {
    H264(h264::Parameters),
    Vp8,
    Opus,
}

impl Format {
    fn new(codec: Codec) -> Option<Self> {
        match codec {
            Codec::H264 => Some(Self::H264(h264::Parameters::default())),
            Codec::Vp8 => Some(Self::Vp8),
            Codec::Opus => Some(Self::Opus),
            Codec::Vp9 | Codec::Av1 | Codec::Pcmu | Codec::Pcma => None,
        }
    }
}

/// A frame that is coming.
#[derive(Debug)]
struct Open {
    timestamp: u32,
    octets: Vec<u8>,
    unit: h264::AccessUnit,
    fault: Option<Fault>,
}

/// What a stream is decoded as, as far as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoding {
    /// The codec as WebCodecs names it.
    pub codec: String,
    /// Width and height.
    pub size: Option<(u16, u16)>,
}

/// Makes frames of a stream's packets.
#[derive(Debug)]
pub struct Assembler {
    codec: Codec,
    format: Format,
    /// The longest frame.
    longest: usize,
    open: Option<Open>,
    /// What came before the next packet is not known.
    has_lost: bool,
    /// The size of the last key frame.
    size: Option<(u16, u16)>,
}

impl Assembler {
    /// For streams of a codec, with frames up to so many octets; `None`: no frames are made of that codec.
    pub fn new(codec: Codec, longest: usize) -> Option<Self> {
        let format = Format::new(codec)?;
        Some(Self { codec, format, longest, open: None, has_lost: true, size: None })
    }

    /// Another stream of the same codec begins.
    pub fn restart(&mut self) {
        if let Some(new) = Self::new(self.codec, self.longest) {
            *self = new;
        }
    }

    /// The codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Packets before the next are missing.
    pub fn lose(&mut self) {
        self.has_lost = true;
        if let Some(open) = &mut self.open {
            open.fault.get_or_insert(Fault::Lost);
            open.octets = Vec::new();
        }
    }

    /// A frame has begun that has not ended.
    pub fn is_within(&self) -> bool {
        self.open.is_some()
    }

    /// Takes the next packet, and gives frames that it ends, or why there is none: the one before, if that had no marker, and its own.
    pub fn push(&mut self, packet: Packet<'_>) -> [Option<Result<Frame, Fault>>; 2] {
        let is_next = self.open.as_ref().is_some_and(|open| open.timestamp != packet.timestamp);
        let before = is_next.then(|| self.end()).flatten();
        self.add(packet);
        let is_last = packet.marker || self.codec.kind() == Kind::Audio;
        [before, is_last.then(|| self.end()).flatten()]
    }

    fn add(&mut self, Packet { payload, timestamp, .. }: Packet<'_>) {
        let has_lost = std::mem::take(&mut self.has_lost);
        let is_new = self.open.is_none();
        let open = self.open.get_or_insert_with(|| Open {
            timestamp,
            octets: vec![0; HEAD],
            unit: h264::AccessUnit::default(),
            fault: None,
        });
        let (payload, begins) = match &self.format {
            Format::H264(_) => (Ok(payload), h264::begins(payload)),
            Format::Vp8 => match vp8::parse(payload) {
                Ok((octets, begins)) => (Ok(octets), begins),
                Err(wrong) => (Err(wrong), false),
            },
            Format::Opus => (Ok(payload), true),
        };
        // A frame of VP8 has one beginning, and others need none behind a whole frame.
        let is_cut = match self.format {
            Format::Vp8 => begins != is_new && payload.is_ok() || has_lost && !is_new,
            _ => has_lost && !(is_new && begins),
        };
        if is_cut {
            open.fault.get_or_insert(Fault::Lost);
        }
        if open.fault.is_some() {
            open.octets = Vec::new();
            return;
        }
        let added = match (payload, &mut self.format) {
            (Err(wrong), _) => Err(wrong),
            (Ok(payload), Format::H264(parameters)) => open.unit.add(payload, parameters, &mut open.octets),
            (Ok([]), Format::Opus) => Err(Malformed),
            (Ok(payload), Format::Vp8 | Format::Opus) => {
                open.octets.extend_from_slice(payload);
                Ok(())
            }
        };
        open.fault = match added {
            Err(Malformed) => Some(Fault::Malformed),
            // A packet goes beyond it by less than twice its own length.
            Ok(()) => (open.octets.len() > self.longest + HEAD).then_some(Fault::TooLong),
        };
        if open.fault.is_some() {
            open.octets = Vec::new();
        }
    }

    /// The frame that is open ends.
    fn end(&mut self) -> Option<Result<Frame, Fault>> {
        let Open { timestamp, mut octets, unit, fault } = self.open.take()?;
        if let Some(fault) = fault {
            return Some(Err(fault));
        }
        let is_key = match &self.format {
            // Parameter sets alone: they are kept, and go with the next key frame.
            Format::H264(_) if !unit.has_picture => return None,
            Format::H264(parameters) if unit.is_key && parameters.codec().is_none() => {
                return Some(Err(Fault::NoParameters));
            }
            Format::H264(parameters) => unit.end(parameters, HEAD, &mut octets).map(|()| unit.is_key),
            Format::Vp8 => vp8::size(&octets[HEAD..]).map(|size| {
                self.size = size.or(self.size);
                size.is_some()
            }),
            Format::Opus => Ok(true),
        };
        Some(match is_key {
            Ok(_) if octets.len() > self.longest + HEAD => Err(Fault::TooLong),
            Ok(is_key) => Ok(Frame { timestamp, is_key, octets }),
            Err(Malformed) => Err(Fault::Malformed),
        })
    }

    /// What it is decoded as, once a key frame has said so.
    pub fn decoding(&self) -> Option<Decoding> {
        let codec = match &self.format {
            Format::H264(parameters) => parameters.codec()?,
            Format::Vp8 => "vp8".to_owned(),
            Format::Opus => "opus".to_owned(),
        };
        Some(Decoding { codec, size: self.size })
    }
}

/// Whether frames are made of a codec.
pub fn is_bridged(codec: Codec) -> bool {
    Format::new(codec).is_some()
}

#[cfg(test)]
mod tests;
