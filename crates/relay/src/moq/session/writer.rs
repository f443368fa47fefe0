//! Bytes on their way to streams that accept less than there is.

use std::collections::{BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use expressway_gateway::quic::{SendError, Transport};
use expressway_web::memory::Account;

/// Octets of answers that may wait on a stream before what can be left out is.
pub(super) const ENOUGH: usize = 4096;

/// What streams have by themselves.
const URGENCY: u8 = 127;

/// What waits on streams, and the numbers of those to come.
#[derive(Debug)]
pub(super) struct Writers {
    /// Where what waits, or is on its way, is counted.
    account: Account,
    waiting: HashMap<u64, Waiting>,
    /// Streams of ours that QUIC has not heard of.
    fresh: HashSet<u64>,
    /// Those of them that the peer does not let us open yet.
    unopened: Unopened,
    /// Those that were given up before QUIC heard of them. The peer counts streams by their numbers: one that is passed over is lost.
    free: [BTreeSet<u64>; 2],
    /// The numbers behind all, by direction.
    next: [u64; 2],
}

/// Streams that wait for the peer's limit, by direction: both, one.
#[derive(Debug, Default)]
struct Unopened([BTreeSet<u64>; 2]);

impl Unopened {
    fn of(&mut self, stream: u64) -> &mut BTreeSet<u64> {
        &mut self.0[direction(stream)]
    }

    /// The first that `open` opens, the lowest number first: once one is refused, so are all behind it.
    fn next(&mut self, mut open: impl FnMut(u64) -> bool) -> Option<u64> {
        self.0.iter_mut().find_map(|streams| {
            let stream = streams.first().copied().filter(|stream| open(*stream))?;
            streams.remove(&stream);
            Some(stream)
        })
    }
}

/// 0: both, 1: one.
fn direction(stream: u64) -> usize {
    usize::from(stream & 2 != 0)
}

/// A server has opened it, which we are.
pub(super) fn is_ours(stream: u64) -> bool {
    stream & 1 != 0
}

#[derive(Debug, Default)]
struct Waiting {
    octets: Bytes,
    is_last: bool,
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
    /// On the streams of `transport`.
    pub(super) fn new(account: Account, transport: &Transport) -> Self {
        Self::from(account, [true, false].map(|is_bidirectional| transport.first_own(is_bidirectional)))
    }

    /// The first streams to be opened are these, by direction.
    fn from(account: Account, next: [u64; 2]) -> Self {
        Self {
            account,
            waiting: HashMap::new(),
            fresh: HashSet::new(),
            unopened: Unopened::default(),
            free: Default::default(),
            next,
        }
    }

    /// A new stream of ours in both directions.
    pub(super) fn open_bidirectional(&mut self) -> u64 {
        self.open(0)
    }

    /// A new stream of ours in one direction.
    pub(super) fn open_unidirectional(&mut self) -> u64 {
        self.open(1)
    }

    fn open(&mut self, direction: usize) -> u64 {
        let stream = self.free[direction].pop_first().unwrap_or_else(|| {
            self.next[direction] += 4;
            self.next[direction] - 4
        });
        self.fresh.insert(stream);
        stream
    }

    /// A stream is given up. False: QUIC has heard of it.
    fn give_back(&mut self, stream: u64) -> bool {
        self.waiting.remove(&stream);
        self.unopened.of(stream).remove(&stream);
        self.fresh.remove(&stream) && self.free[direction(stream)].insert(stream)
    }

    /// QUIC has not heard of a stream of ours.
    pub(super) fn is_fresh(&self, stream: u64) -> bool {
        self.fresh.contains(&stream)
    }

    /// Has streams of lower `urgency` sent before this one.
    pub(super) fn set_urgency(&self, transport: &mut Transport, stream: u64, urgency: u8) {
        if self.is_fresh(stream) {
            transport.begin(stream);
        }
        transport.set_urgency(stream, urgency);
    }

    /// Sends what a stream takes of `octets`, which is taken from their front.
    pub(super) fn send(
        &mut self,
        transport: &mut Transport,
        stream: u64,
        octets: &mut Bytes,
        is_last: bool,
    ) -> Sent {
        if self.fresh.contains(&stream) {
            transport.begin(stream);
        }
        let sent = match transport.send(stream, octets, is_last) {
            Ok(_) if octets.is_empty() => Sent::All,
            Err(SendError::Over) => Sent::Over,
            Ok(_) | Err(SendError::Blocked) => Sent::Blocked,
        };
        if sent != Sent::Blocked || transport.capacity(stream).is_some() {
            self.fresh.remove(&stream);
            self.unopened.of(stream).remove(&stream);
        } else if !self.fresh.contains(&stream) {
            // It was there, and QUIC has let go of it.
            return Sent::Over;
        } else {
            // Nobody names a stream that is not there yet.
            self.unopened.of(stream).insert(stream);
        }
        sent
    }

    /// Sends octets behind what waits already, and ends the stream if they are the last.
    pub(super) fn write(&mut self, transport: &mut Transport, stream: u64, octets: Vec<u8>, is_last: bool) {
        let waiting = self.waiting.entry(stream).or_default();
        if !octets.is_empty() {
            let all = match waiting.octets.is_empty() {
                true => octets,
                false => [&waiting.octets[..], &octets].concat(),
            };
            waiting.octets = self.account.own(all);
        }
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

    /// Nobody reads a stream: what waits does not any more.
    pub(super) fn forget(&mut self, stream: u64) {
        self.waiting.remove(&stream);
    }

    /// Ends our side of a stream by a code.
    pub(super) fn reset(&mut self, transport: &mut Transport, stream: u64, code: u64) {
        if !self.give_back(stream) {
            transport.reset_stream(stream, code);
        }
    }

    /// [`Self::open_next`] would return a stream.
    pub(super) fn can_open(&self, transport: &Transport) -> bool {
        let waits = |direction: usize| !self.unopened.0[direction].is_empty();
        waits(0) && transport.streams_left(true) > 0 || waits(1) && transport.streams_left(false) > 0
    }

    /// The next stream that waited for the peer's limit, and is open now.
    pub(super) fn open_next(&mut self, transport: &mut Transport) -> Option<u64> {
        let stream = self.unopened.next(|stream| {
            // A stream is there from when it gets a priority, if the limit permits.
            transport.begin(stream);
            transport.set_urgency(stream, URGENCY);
            transport.capacity(stream).is_some()
        })?;
        self.fresh.remove(&stream);
        Some(stream)
    }
}

#[cfg(test)]
mod tests {
    use expressway_web::memory::Memory;

    use super::*;

    fn writers() -> Writers {
        Writers::from(Account::new(&Memory::new(1 << 20).ledger(), 1 << 20, 1 << 20), [1, 3])
    }

    #[test]
    fn numbers_that_were_given_up_are_used_again() {
        let mut writers = writers();
        let streams: Vec<_> = (0..4).map(|_| writers.open_unidirectional()).collect();
        assert_eq!(streams, [3, 7, 11, 15]);
        // QUIC has heard of the first.
        writers.fresh.remove(&3);
        assert!(!writers.give_back(3));
        for stream in [15, 7] {
            writers.unopened.of(stream).insert(stream);
            assert!(writers.give_back(stream));
        }
        assert!(writers.unopened.of(7).is_empty());
        let again: Vec<_> = (0..3).map(|_| writers.open_unidirectional()).collect();
        assert_eq!(again, [7, 15, 19], "the lowest first");
        assert_eq!([writers.open_bidirectional(), writers.open_bidirectional()], [1, 5]);
        assert!(writers.give_back(1));
        assert_eq!(writers.open_bidirectional(), 1);
    }

    #[test]
    fn streams_are_tried_until_the_first_refusal_of_a_direction() {
        let mut unopened = Unopened::default();
        for stream in [9, 1, 5, 7, 3, 5] {
            unopened.of(stream).insert(stream);
        }
        let mut tried = Vec::new();
        let mut next = |limit: u64| {
            unopened.next(|stream| {
                tried.push(stream);
                stream <= limit
            })
        };
        assert_eq!(next(0), None);
        assert_eq!(next(5), Some(1));
        assert_eq!(next(5), Some(5));
        assert_eq!(next(5), Some(3));
        assert_eq!(next(5), None);
        assert_eq!(tried, [1, 3, 1, 5, 9, 3, 9, 7]);
        assert_eq!(unopened.0.map(|streams| streams.len()), [1, 1]);
        assert!(is_ours(1) && is_ours(3) && !is_ours(0) && !is_ours(2));
    }
}
