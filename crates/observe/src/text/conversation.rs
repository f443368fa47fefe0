//! What is known of conversations, for as many of the newest as the table has room for.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;

/// Places of the table. One that is taken is taken over: the loser is shown with less detail.
const PLACES: usize = 4096;

/// A direction of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pair {
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
}

impl Pair {
    pub(super) fn reverse(self) -> Self {
        Self { source: self.destination, destination: self.source }
    }
}

/// What is known of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// QUIC, with destination connection IDs of that length.
    Quic { cid: u8 },
    /// Perhaps RTP: the source, the payload type and the sequence number of the last packet, and how many came in order.
    Rtp { source: u32, kind: u8, sequence: u16, run: u8 },
}

#[derive(Debug)]
pub(super) struct Conversations {
    places: Vec<Option<(Pair, Known)>>,
    hasher: RandomState,
}

impl Conversations {
    pub(super) fn new() -> Self {
        Self { places: vec![None; PLACES], hasher: RandomState::new() }
    }

    pub(super) fn find(&self, pair: Pair) -> Option<Known> {
        self.places[self.place(pair)].filter(|(of, _)| *of == pair).map(|(_, known)| known)
    }

    pub(super) fn learn(&mut self, pair: Pair, known: Known) {
        let place = self.place(pair);
        self.places[place] = Some((pair, known));
    }

    fn place(&self, pair: Pair) -> usize {
        self.hasher.hash_one(pair) as usize % PLACES
    }
}
