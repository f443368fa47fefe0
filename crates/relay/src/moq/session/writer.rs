//! Octets on their way to streams, where these take less than there is.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use expressway_gateway::quic::{SendError, Transport};

/// Octets of answers that may wait on a stream before what can be left out is.
pub(super) const ENOUGH: usize = 4096;

/// What waits on streams, and the numbers of those to come.
#[derive(Debug)]
pub(super) struct Writers {
    waiting: HashMap<u64, Waiting>,
    /// Streams of ours that QUIC has not heard of.
    fresh: HashSet<u64>,
    /// Those of them that the peer does not let us open yet.
    unopened: Vec<u64>,
    bidirectional: u64,
    unidirectional: u64,
}

#[derive(Debug, Default)]
struct Waiting {
    octets: Bytes,
    is_last: bool,
}

impl Default for Writers {
    fn default() -> Self {
        // The first that a server opens (RFC 9000, section 2.1).
        let (bidirectional, unidirectional) = (1, 3);
        Self {
            waiting: HashMap::new(),
            fresh: HashSet::new(),
            unopened: Vec::new(),
            bidirectional,
            unidirectional,
        }
    }
}

/// What became of octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// QUIC has all of them.
    All,
    /// The stream has no room for more.
    Blocked,
    /// Nobody reads them.
    Over,
}

impl Writers {
    /// The next stream of ours in both directions.
    pub(super) fn open_bidirectional(&mut self) -> u64 {
        self.bidirectional += 4;
        self.fresh.insert(self.bidirectional - 4);
        self.bidirectional - 4
    }

    /// The next stream of ours in one direction.
    pub(super) fn open_unidirectional(&mut self) -> u64 {
        self.unidirectional += 4;
        self.fresh.insert(self.unidirectional - 4);
        self.unidirectional - 4
    }

    /// Sends what a stream takes of `octets`, which is taken from their front.
    pub(super) fn send(
        &mut self,
        transport: &mut Transport,
        stream: u64,
        octets: &mut Bytes,
        is_last: bool,
    ) -> Sent {
        let sent = match transport.send(stream, octets, is_last) {
            Ok(_) if octets.is_empty() => Sent::All,
            Err(SendError::Over) => Sent::Over,
            Ok(_) | Err(SendError::Blocked) => Sent::Blocked,
        };
        if sent != Sent::Blocked || transport.capacity(stream).is_some() {
            self.fresh.remove(&stream);
        } else if !self.fresh.contains(&stream) {
            // It was there, and QUIC has let go of it.
            return Sent::Over;
        } else if !self.unopened.contains(&stream) {
            // Nobody names a stream that is not there yet.
            self.unopened.push(stream);
        }
        sent
    }

    /// Sends octets behind what waits already, and ends the stream if they are the last.
    pub(super) fn write(&mut self, transport: &mut Transport, stream: u64, octets: Vec<u8>, is_last: bool) {
        let waiting = self.waiting.entry(stream).or_default();
        waiting.octets = match waiting.octets.is_empty() {
            true => octets.into(),
            false => [&waiting.octets[..], &octets].concat().into(),
        };
        waiting.is_last |= is_last;
        self.flush(transport, stream);
    }

    /// Sends what waits. True: nothing does any more.
    pub(super) fn flush(&mut self, transport: &mut Transport, stream: u64) -> bool {
        let Some(mut waiting) = self.waiting.remove(&stream) else { return true };
        match self.send(transport, stream, &mut waiting.octets, waiting.is_last) {
            Sent::All | Sent::Over => true,
            Sent::Blocked => {
                self.waiting.insert(stream, waiting);
                false
            }
        }
    }

    /// Octets that wait on a stream.
    pub(super) fn waiting(&self, stream: u64) -> usize {
        self.waiting.get(&stream).map_or(0, |waiting| waiting.octets.len())
    }

    /// Ends our side of a stream by a code.
    pub(super) fn reset(&mut self, transport: &mut Transport, stream: u64, code: u64) {
        self.waiting.remove(&stream);
        self.unopened.retain(|unopened| *unopened != stream);
        if !self.fresh.remove(&stream) {
            transport.reset_stream(stream, code);
        }
    }

    /// Streams to try again, since the peer may have let us open them.
    pub(super) fn take_unopened(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unopened)
    }
}
