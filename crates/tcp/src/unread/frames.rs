//! Frames of an HTTP/2 connection (RFC 9113, section 4.1), and what hyper has of their bodies.
//!
//! hyper names no stream, but it has requests in the order in which their heads came, less those that it refuses, whose streams it resets.
//! So each body is counted by its stream, until its reader has dropped it, whatever is still on its way. Who does not take these resets
//! can have bodies taken for each other's, within the window of the connection.

use std::collections::{HashMap, VecDeque};

/// What a frame of a body takes beside its octets.
pub(super) const FRAME: usize = 256;

/// Frames of HTTP/2 that hyper takes have this many octets at most.
pub(super) const LARGEST: usize = 16 << 10;

pub(super) const HEADER: usize = 9;
pub(super) const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// The header of a frame.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

/// Follows one direction of a connection from frame to frame.
#[derive(Debug)]
struct Scanner {
    /// Octets that are still to come before the next frame: of the preface, then of a frame.
    left: usize,
    header: [u8; HEADER],
    /// How much of it there is.
    length: usize,
}

/// What a scanner has come to.
enum Found {
    /// A frame begins.
    Begin(Head),
    /// Octets of it, the first of which is this one.
    Part(u8),
}

impl Scanner {
    fn behind(preface: usize) -> Self {
        Self { left: preface, header: [0; HEADER], length: 0 }
    }

    /// The next of what `came`, which goes on behind it; `None`: nothing more begins in it.
    fn next(&mut self, came: &mut &[u8]) -> Option<Found> {
        let first = *came.first()?;
        if self.left > 0 {
            let passed = self.left.min(came.len());
            self.left -= passed;
            *came = &came[passed..];
            return Some(Found::Part(first));
        }
        let part = (HEADER - self.length).min(came.len());
        self.header[self.length..self.length + part].copy_from_slice(&came[..part]);
        self.length += part;
        *came = &came[part..];
        if self.length < HEADER {
            return None;
        }
        self.length = 0;
        let [high, middle, low, kind, flags, stream @ ..] = self.header;
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        self.left = length;
        Some(Found::Begin(Head { length, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff }))
    }
}

/// The body of a request.
#[derive(Debug, Default)]
struct Body {
    /// Octets and frames that were not taken.
    octets: usize,
    pieces: usize,
    /// Its stream was reset: what still comes is not kept.
    is_reset: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Frames {
    window: usize,
    section: usize,
    came: Scanner,
    went: Scanner,
    /// The frame that comes.
    frame: Head,
    /// Its first octet says how much of it is padding.
    is_padded: bool,
    /// A header block has no end yet.
    is_in_section: bool,
    /// Sections that have begun.
    sections: u64,
    /// The newest stream of a request.
    newest: u32,
    /// Streams of requests that hyper has not passed on yet, in order.
    waiting: VecDeque<u32>,
    /// Bodies that may have a reader.
    bodies: HashMap<u32, Body>,
    /// Octets and frames of all of them.
    octets: usize,
    pieces: usize,
    /// The most frames that there were: hyper keeps the places.
    places: usize,
}

impl Frames {
    pub(super) fn new(window: usize, section: usize) -> Self {
        Self {
            window,
            section,
            came: Scanner::behind(PREFACE),
            went: Scanner::behind(0),
            frame: Head::default(),
            is_padded: false,
            is_in_section: false,
            sections: 0,
            newest: 0,
            waiting: VecDeque::new(),
            bodies: HashMap::new(),
            octets: 0,
            pieces: 0,
            places: 0,
        }
    }

    /// Octets have come.
    pub(super) fn receive(&mut self, mut octets: &[u8]) {
        while let Some(found) = self.came.next(&mut octets) {
            match found {
                Found::Begin(head) => self.begin(head),
                Found::Part(first) if self.is_padded => self.unpad(first),
                Found::Part(_) => {}
            }
        }
    }

    /// Octets have gone.
    pub(super) fn send(&mut self, mut octets: &[u8]) {
        while let Some(found) = self.went.next(&mut octets) {
            if let Found::Begin(Head { kind: RST_STREAM, stream, .. }) = found {
                self.refuse(stream);
            }
        }
    }

    fn begin(&mut self, head: Head) {
        let Head { length, kind, flags, stream } = head;
        self.frame = head;
        self.is_padded = kind == DATA && flags & PADDED != 0 && length > 0;
        match kind {
            DATA => {
                let has_piece = length > 0 || flags & END_STREAM != 0;
                let body = self.bodies.get_mut(&stream).filter(|body| !body.is_reset);
                if let Some(body) = body.filter(|_| has_piece) {
                    (body.octets, body.pieces) = (body.octets + length, body.pieces + 1);
                    (self.octets, self.pieces) = (self.octets + length, self.pieces + 1);
                    self.places = self.places.max(self.pieces);
                }
            }
            HEADERS | CONTINUATION => {
                self.sections += u64::from(kind == HEADERS);
                self.is_in_section = flags & END_HEADERS == 0;
                if kind == HEADERS && stream > self.newest {
                    self.newest = stream;
                    self.waiting.push_back(stream);
                    if flags & END_STREAM == 0 {
                        self.bodies.insert(stream, Body::default());
                    }
                }
            }
            RST_STREAM => {
                if let Some(body) = self.bodies.get_mut(&stream) {
                    body.is_reset = true;
                }
            }
            _ => {}
        }
    }

    /// The first octet of a frame of a body says how much of it is padding, which nobody takes (RFC 9113, section 6.1).
    fn unpad(&mut self, padding: u8) {
        self.is_padded = false;
        let Head { length, flags, stream, .. } = self.frame;
        let padding = (1 + usize::from(padding)).min(length);
        let is_empty = padding == length && flags & END_STREAM == 0;
        let body = self.bodies.get_mut(&stream).filter(|body| !body.is_reset);
        if let Some(body) = body {
            forget(body, (&mut self.octets, &mut self.pieces), (padding, usize::from(is_empty)));
        }
    }

    /// Our side has reset a stream: if its request was not passed on, it never is.
    fn refuse(&mut self, stream: u32) {
        if let Ok(place) = self.waiting.binary_search(&stream) {
            self.waiting.remove(place);
            self.drop_body(stream);
        } else if let Some(body) = self.bodies.get_mut(&stream) {
            body.is_reset = true;
        }
    }

    /// hyper has passed on the next request; its stream.
    pub(super) fn pass_on(&mut self) -> u32 {
        self.waiting.pop_front().unwrap_or_default()
    }

    /// A piece of a body was taken.
    pub(super) fn take(&mut self, stream: u32, octets: usize) {
        if let Some(body) = self.bodies.get_mut(&stream) {
            forget(body, (&mut self.octets, &mut self.pieces), (octets, 1));
        }
    }

    /// The reader of a body has dropped it, and with it what it had not taken, and what still comes.
    pub(super) fn drop_body(&mut self, stream: u32) {
        if let Some(body) = self.bodies.remove(&stream) {
            self.octets -= body.octets;
            self.pieces -= body.pieces;
        }
    }

    /// No request is under way any more.
    pub(super) fn rest(&mut self) {
        self.bodies.retain(|stream, _| self.waiting.binary_search(stream).is_ok());
        self.octets = self.bodies.values().map(|body| body.octets).sum();
        self.pieces = self.bodies.values().map(|body| body.pieces).sum();
    }

    /// The number of the header section that has begun and is not whole.
    pub(super) fn open_section(&self) -> Option<u64> {
        let comes = matches!(self.frame.kind, HEADERS | CONTINUATION) && self.came.left > 0;
        (self.is_in_section || comes).then_some(self.sections)
    }

    /// Octets that all of that takes.
    pub(super) fn held(&self) -> usize {
        // There is room for all of a frame as soon as its header is there.
        let is_whole = self.came.left == 0 || self.frame.kind == DATA;
        let frame = if is_whole { 0 } else { self.frame.length.min(LARGEST) };
        let section = if self.is_in_section { self.section } else { 0 };
        // What came beyond the window is not kept.
        self.octets.min(self.window) + self.places * FRAME + frame + section
    }

    /// Bodies and requests that are looked after.
    #[cfg(test)]
    pub(super) fn followed(&self) -> (usize, usize) {
        (self.bodies.len(), self.waiting.len())
    }
}

/// Octets and frames of a body, and so of all bodies, are none of its any more.
fn forget(
    body: &mut Body,
    (all_octets, all_pieces): (&mut usize, &mut usize),
    (octets, pieces): (usize, usize),
) {
    let (octets, pieces) = (octets.min(body.octets), pieces.min(body.pieces));
    (body.octets, body.pieces) = (body.octets - octets, body.pieces - pieces);
    (*all_octets, *all_pieces) = (*all_octets - octets, *all_pieces - pieces);
}
