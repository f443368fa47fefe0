//! Puts a packet that came in several frames together in one buffer.
//!
//! With `XDP_USE_SG` a packet larger than a frame comes as several descriptors, all but the last marked
//! `XDP_PKT_CONTD`. Parsers and QUIC want it in one piece, so the parts are copied into a buffer made once
//! for the socket. Packets that fit one frame, all of them at an MTU of 1500, never come here.

/// Bytes of the largest packet that is put together: more than the largest IP packet with its link header.
pub(crate) const ASSEMBLY_SIZE: usize = 65_536 + 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between packets.
    Idle,
    /// Parts have come, more will.
    Gathering,
    /// A part could not be used: the rest of the packet is skipped.
    Spoiled,
}

/// What a part did to the packet that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    /// More parts follow.
    Partial,
    /// It was the last: the packet is whole.
    Complete,
    /// It was the last of a packet that is skipped.
    Skipped,
    /// The packet does not fit and is skipped from here on (told once a packet).
    Overflow,
}

/// The buffer of the packet in the making.
#[derive(Debug)]
pub(crate) struct Assembly {
    buffer: Box<[u8]>,
    length: usize,
    state: State,
}

impl Assembly {
    /// A buffer of `capacity` bytes; 0 for a socket whose packets come in one frame each.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { buffer: vec![0; capacity].into_boxed_slice(), length: 0, state: State::Idle }
    }

    /// True when the next descriptor begins a packet.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Adds a part; `more` says that others follow.
    pub(crate) fn add(&mut self, part: &[u8], more: bool) -> Added {
        if self.state == State::Idle {
            self.length = 0;
        }
        let mut overflow = false;
        if self.state != State::Spoiled {
            match self.buffer.get_mut(self.length..self.length + part.len()) {
                Some(room) => {
                    room.copy_from_slice(part);
                    self.length += part.len();
                    self.state = State::Gathering;
                }
                None => {
                    self.state = State::Spoiled;
                    overflow = true;
                }
            }
        }
        let spoiled = self.state == State::Spoiled;
        if !more {
            self.state = State::Idle;
        }
        match (overflow, spoiled, more) {
            (true, _, _) => {
                self.length = 0;
                Added::Overflow
            }
            (_, true, false) => Added::Skipped,
            (_, _, true) => Added::Partial,
            (_, false, false) => Added::Complete,
        }
    }

    /// A part of the packet could not be read: skips the packet's other parts, if `more` follow.
    pub(crate) fn spoil(&mut self, more: bool) {
        self.length = 0;
        self.state = if more { State::Spoiled } else { State::Idle };
    }

    /// The whole packet, after [`Added::Complete`] and until the next part comes.
    pub(crate) fn packet(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.length]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn parts_become_one_packet() {
        let mut assembly = Assembly::new(16);
        assert_eq!(assembly.add(b"abc", true), Added::Partial);
        assert_eq!(assembly.add(b"def", false), Added::Complete);
        assert_eq!(assembly.packet(), b"abcdef");
        assert!(assembly.is_idle());
        assert_eq!(assembly.add(b"xyz", true), Added::Partial);
        assert_eq!(assembly.add(b"", false), Added::Complete);
        assert_eq!(assembly.packet(), b"xyz");
    }

    #[test]
    fn a_packet_too_large_is_told_once_and_skipped_to_its_end() {
        let mut assembly = Assembly::new(4);
        assert_eq!(assembly.add(b"abc", true), Added::Partial);
        assert_eq!(assembly.add(b"de", true), Added::Overflow);
        assert_eq!(assembly.add(b"f", true), Added::Partial);
        assert!(!assembly.is_idle());
        assert_eq!(assembly.add(b"g", false), Added::Skipped);
        assert_eq!(assembly.add(b"next", false), Added::Complete);
        assert_eq!(assembly.packet(), b"next");
    }

    #[test]
    fn an_overflow_by_the_last_part_ends_the_packet() {
        let mut assembly = Assembly::new(0);
        assert_eq!(assembly.add(b"a", false), Added::Overflow);
        assert!(assembly.is_idle());
        assert_eq!(assembly.add(b"", false), Added::Complete);
    }

    #[test]
    fn a_spoiled_packet_is_skipped_to_its_end() {
        let mut assembly = Assembly::new(16);
        assert_eq!(assembly.add(b"abc", true), Added::Partial);
        assembly.spoil(true);
        assert_eq!(assembly.add(b"def", false), Added::Skipped);
        assembly.spoil(false);
        assert_eq!(assembly.add(b"new", false), Added::Complete);
        assert_eq!(assembly.packet(), b"new");
    }
}
