//! Messages that have come in part: what there is of each, counted on the session's account, and since when.
//!
//! QUIC has no deadline for what a session has read, so that it has one here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use expressway_web::memory::{Account, Charge};

use crate::moq::wire::MAX_MESSAGE;

/// How long a message may take from its first byte to its last.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// How many of the longest messages' worth of bytes a session keeps. Parts are what packets cut, so that a peer has one or, after a
/// loss, a few.
const MESSAGES: usize = 16;

/// Cost of a part beside its bytes: its map entry, and what the session and QUIC have of a stream.
const BESIDE: usize = 1 << 10;

/// The part of a message that there is.
#[derive(Debug)]
struct Kept {
    octets: Vec<u8>,
    since: Instant,
    _charge: Charge,
}

/// A part that is being read on, and when its message began.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) octets: Vec<u8>,
    since: Instant,
}

impl Part {
    /// The message is complete, and the next one begins with what is left.
    pub(super) fn begin_next(&mut self, now: Instant) {
        self.since = now;
    }
}

/// More is incomplete than a session may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMuch;

/// Parts by stream.
#[derive(Debug, Default)]
pub(super) struct Incomplete {
    kept: HashMap<u64, Kept>,
    bytes: usize,
    /// No part is older than this, and one was as old.
    oldest: Option<Instant>,
}

impl Incomplete {
    /// What there is of a stream's message.
    pub(super) fn octets(&self, stream: u64) -> &[u8] {
        self.kept.get(&stream).map_or(&[], |kept| &kept.octets)
    }

    /// What there is, to go on with it: nothing if a message begins `now`.
    pub(super) fn take(&mut self, stream: u64, now: Instant) -> Part {
        match self.remove(stream) {
            Some(Kept { octets, since, .. }) => Part { octets, since },
            None => Part { octets: Vec::new(), since: now },
        }
    }

    /// Keeps what is not a whole message; nothing is kept of nothing.
    ///
    /// # Errors
    /// It is too much, for all streams together.
    pub(super) fn keep(&mut self, stream: u64, part: Part, account: &Account) -> Result<(), TooMuch> {
        let Part { mut octets, since } = part;
        if octets.is_empty() {
            return Ok(());
        }
        octets.shrink_to_fit();
        self.bytes += octets.len();
        self.oldest = Some(self.oldest.map_or(since, |oldest| oldest.min(since)));
        let charge = account.charge_request(BESIDE + octets.capacity());
        self.kept.insert(stream, Kept { octets, since, _charge: charge });
        if self.bytes > MESSAGES * MAX_MESSAGE { Err(TooMuch) } else { Ok(()) }
    }

    /// Nothing more comes of a stream, or nobody wants it.
    pub(super) fn forget(&mut self, stream: u64) {
        self.remove(stream);
    }

    fn remove(&mut self, stream: u64) -> Option<Kept> {
        let kept = self.kept.remove(&stream)?;
        self.bytes -= kept.octets.len();
        if self.kept.is_empty() {
            self.oldest = None;
        }
        Some(kept)
    }

    /// When it is to be looked for messages that take too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.oldest.map(|oldest| oldest + TIMEOUT)
    }

    /// The streams whose messages have taken too long by now.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<u64> {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return Vec::new();
        }
        let late = |kept: &Kept| kept.since + TIMEOUT <= now;
        let in_time = self.kept.values().filter(|kept| !late(kept));
        self.oldest = in_time.map(|kept| kept.since).min();
        self.kept.iter().filter(|(_, kept)| late(kept)).map(|(stream, _)| *stream).collect()
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.kept.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use expressway_web::memory::Memory;

    use super::*;

    fn account() -> Account {
        Account::new(&Memory::new(1 << 20).ledger(), 1 << 20, 1 << 20)
    }

    #[test]
    fn parts_are_counted_and_bounded_for_all_streams_together() {
        let (account, now) = (account(), Instant::now());
        let mut incomplete = Incomplete::default();
        let mut keep = |stream: u64, octets: usize| {
            let mut part = incomplete.take(stream, now);
            part.octets.extend(vec![0; octets]);
            incomplete.keep(stream, part, &account)
        };
        assert_eq!(keep(0, 0), Ok(()));
        assert_eq!(account.requests(), 0);
        for stream in 0..MESSAGES as u64 {
            assert_eq!([keep(stream, 1), keep(stream, MAX_MESSAGE - 1)], [Ok(()), Ok(())]);
        }
        assert_eq!(account.requests(), MESSAGES * (BESIDE + MAX_MESSAGE));
        assert_eq!(keep(100, 1), Err(TooMuch));
        (0..=100).for_each(|stream| incomplete.forget(stream));
        assert_eq!((account.requests(), incomplete.bytes, incomplete.deadline()), (0, 0, None));
    }

    #[test]
    fn a_message_has_its_time_from_its_first_byte_and_the_next_one_anew() {
        let (account, start) = (account(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut incomplete = Incomplete::default();
        let go_on = |incomplete: &mut Incomplete, stream: u64, seconds: u64, is_next: bool| {
            let mut part = incomplete.take(stream, at(seconds));
            part.octets.push(0);
            if is_next {
                part.begin_next(at(seconds));
            }
            assert_eq!(incomplete.keep(stream, part, &account), Ok(()));
        };
        for seconds in 0..9 {
            // A byte now and then gains nothing.
            go_on(&mut incomplete, 4, seconds, false);
            go_on(&mut incomplete, 8, seconds, seconds == 5);
        }
        assert_eq!(incomplete.deadline(), Some(at(10)));
        assert!(incomplete.overdue(at(9)).is_empty());
        assert_eq!(incomplete.overdue(at(10)), [4]);
        incomplete.forget(4);
        assert_eq!(incomplete.deadline(), Some(at(15)));
        assert_eq!(incomplete.overdue(at(15)), [8]);
        incomplete.forget(8);
        assert_eq!(incomplete.deadline(), None);
    }
}
