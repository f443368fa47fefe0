//! What hyper has read of a connection and nobody has taken from it, as its octets and the requests tell: hyper does not say.
//!
//! Over HTTP/1 it reads when it has nothing left to go on with, so that this is the part of a head that there is, or what it read last.
//! Over HTTP/2 it reads whatever comes, so that frames are counted: bodies until they are taken, a frame or a header block until it is whole.
//! With the last request that is under way all bodies are over.

use expressway_web::memory::{Account, Charge};

/// What a frame of a body takes beside its octets.
const FRAME: usize = 256;

/// Frames of HTTP/2 that hyper takes have this many octets at most.
const LARGEST: usize = 16 << 10;

const HEADER: usize = 9;
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct Unread {
    charge: Charge,
    protocol: Protocol,
}

#[derive(Debug)]
enum Protocol {
    /// What is unread, and how much was read last.
    H1 {
        octets: usize,
        last: usize,
    },
    H2(Frames),
}

impl Unread {
    /// Nothing so far. Over HTTP/2, `window` octets of bodies may be unread, and header sections have `section` decoded at most.
    pub(crate) fn new(account: &Account, is_h2: bool, window: usize, section: usize) -> Self {
        let protocol = if is_h2 {
            Protocol::H2(Frames::new(window, section))
        } else {
            Protocol::H1 { octets: 0, last: 0 }
        };
        Self { charge: account.charge_received(), protocol }
    }

    /// Octets, with what they take beside.
    pub(crate) fn octets(&self) -> usize {
        self.charge.octets()
    }

    /// Some have come, while there is no request (`is_idle`) or while there is.
    pub(crate) fn receive(&mut self, came: &[u8], is_idle: bool) {
        match &mut self.protocol {
            Protocol::H1 { octets, last } => {
                *last = came.len();
                *octets = if is_idle { *octets + came.len() } else { came.len() };
            }
            Protocol::H2(frames) => frames.receive(came),
        }
        self.count();
    }

    /// A request has come, and with it its head.
    pub(crate) fn take_head(&mut self) {
        if let Protocol::H1 { octets, last } = &mut self.protocol {
            *octets = *last;
            self.count();
        }
    }

    /// A piece of a body was taken.
    pub(crate) fn take(&mut self, taken: usize) {
        match &mut self.protocol {
            Protocol::H1 { octets, .. } => *octets = octets.saturating_sub(taken),
            Protocol::H2(frames) => {
                frames.bodies = frames.bodies.saturating_sub(taken);
                frames.pieces = frames.pieces.saturating_sub(1);
            }
        }
        self.count();
    }

    /// No request is under way any more.
    pub(crate) fn rest(&mut self) {
        if let Protocol::H2(frames) = &mut self.protocol {
            (frames.bodies, frames.pieces) = (0, 0);
            self.count();
        }
    }

    /// A header section has begun and is not whole (HTTP/2).
    pub(crate) fn is_in_section(&self) -> bool {
        matches!(&self.protocol, Protocol::H2(frames) if frames.is_in_section)
    }

    fn count(&mut self) {
        let octets = match &self.protocol {
            Protocol::H1 { octets, .. } => *octets,
            Protocol::H2(frames) => frames.held(),
        };
        if octets != self.charge.octets() {
            self.charge.resize(octets);
        }
    }
}

/// Frames of HTTP/2 (RFC 9113, section 4.1).
#[derive(Debug)]
struct Frames {
    window: usize,
    section: usize,
    /// Octets that are still to come before the next frame: of the preface, then of a frame.
    left: usize,
    header: [u8; HEADER],
    /// How much of it there is.
    length: usize,
    /// Kind and length of the last frame.
    kind: u8,
    frame: usize,
    /// A header block has no end yet.
    is_in_section: bool,
    /// Octets and frames of bodies that were not taken.
    bodies: usize,
    pieces: usize,
    /// The most of these: hyper keeps the places.
    places: usize,
}

impl Frames {
    fn new(window: usize, section: usize) -> Self {
        Self {
            window,
            section,
            left: PREFACE,
            header: [0; HEADER],
            length: 0,
            kind: 0,
            frame: 0,
            is_in_section: false,
            bodies: 0,
            pieces: 0,
            places: 0,
        }
    }

    fn receive(&mut self, mut came: &[u8]) {
        while !came.is_empty() {
            if self.left > 0 {
                let passed = self.left.min(came.len());
                self.left -= passed;
                came = &came[passed..];
                continue;
            }
            let part = (HEADER - self.length).min(came.len());
            self.header[self.length..self.length + part].copy_from_slice(&came[..part]);
            self.length += part;
            came = &came[part..];
            if self.length == HEADER {
                self.length = 0;
                self.begin();
            }
        }
    }

    fn begin(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.frame = u32::from_be_bytes([0, high, middle, low]) as usize;
        (self.left, self.kind) = (self.frame, kind);
        match kind {
            DATA => {
                self.bodies += self.frame;
                self.pieces += 1;
                self.places = self.places.max(self.pieces);
            }
            HEADERS | CONTINUATION => self.is_in_section = flags & END_HEADERS == 0,
            _ => {}
        }
    }

    /// Octets that all of that takes.
    fn held(&self) -> usize {
        // There is room for all of a frame as soon as its header is there.
        let frame = if self.left > 0 && self.kind != DATA { self.frame.min(LARGEST) } else { 0 };
        let section = if self.is_in_section { self.section } else { 0 };
        // What came beyond the window, or for streams that were over, is not kept.
        self.bodies.min(self.window) + self.places * FRAME + frame + section
    }
}

#[cfg(test)]
mod tests {
    use expressway_web::memory::Memory;

    use super::*;

    const WINDOW: usize = 100_000;
    const SECTION: usize = 64 << 10;

    fn unread(is_h2: bool) -> (Unread, Account) {
        let account = Account::new(&Memory::new(1 << 30).ledger(), 1 << 20, 1 << 20);
        (Unread::new(&account, is_h2, WINDOW, SECTION), account)
    }

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let mut frame = (payload as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.extend(vec![0; payload]);
        frame
    }

    #[test]
    fn a_head_counts_while_it_comes_and_a_body_until_it_is_taken() {
        let (mut unread, account) = unread(false);
        for _ in 0..3 {
            unread.receive(&[0; 1000], true);
        }
        assert_eq!((unread.octets(), account.received(), account.requests()), (3000, 3000, 0));
        unread.take_head();
        assert_eq!(account.received(), 1000, "more may have come with the end of the head");
        unread.receive(&[0; 5000], false);
        assert_eq!(account.received(), 5000, "hyper reads when it has nothing left");
        unread.take(4000);
        assert_eq!(account.received(), 1000);
        drop(unread);
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn bodies_count_in_whatever_pieces_their_frames_come() {
        let stream: Vec<u8> = [
            [0; PREFACE].to_vec(),
            frame(HEADERS, END_HEADERS, 50),
            frame(DATA, 0, 1000),
            frame(6, 0, 8),
            frame(DATA, 0, 1),
        ]
        .concat();
        for size in [1, 2, 7, 100, stream.len()] {
            let (mut unread, account) = unread(true);
            stream.chunks(size).for_each(|piece| unread.receive(piece, false));
            assert_eq!(account.received(), 1001 + 2 * FRAME, "{size}");
            unread.take(1000);
            assert_eq!(account.received(), 1 + 2 * FRAME, "places are kept");
            unread.rest();
            assert_eq!(account.received(), 2 * FRAME);
            // No more than the window is kept.
            (0..100).for_each(|_| unread.receive(&frame(DATA, 0, LARGEST), false));
            assert_eq!(account.received(), WINDOW + 100 * FRAME);
        }
    }

    #[test]
    fn frames_and_sections_count_until_they_are_whole() {
        let (mut unread, account) = unread(true);
        unread.receive(&[0; PREFACE], true);
        let settings = frame(4, 0, 12_000);
        unread.receive(&settings[..HEADER], true);
        assert_eq!(account.received(), 12_000);
        unread.receive(&settings[HEADER..], true);
        assert_eq!((account.received(), unread.is_in_section()), (0, false));
        unread.receive(&frame(HEADERS, 0, 10), true);
        assert_eq!((account.received(), unread.is_in_section()), (SECTION, true));
        unread.receive(&frame(CONTINUATION, END_HEADERS, 10), true);
        assert_eq!((account.received(), unread.is_in_section()), (0, false));
    }
}
