//! Heads of streams that have come in part, each counted and with a time in which it has to come.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use expressway_h3::webtransport::HeadReader;
use expressway_web::memory::{Account, Charge};

/// Cost of a part: itself, its map entry, the engine's stream.
const HEAD: usize = 1 << 10;

struct Kept {
    head: HeadReader,
    since: Instant,
    _charge: Charge,
}

/// See the module.
#[derive(Default)]
pub(super) struct Heads {
    kept: HashMap<u64, Kept>,
    /// No part is older than this, and one was as old.
    oldest: Option<Instant>,
}

impl Heads {
    /// What there is of a stream's head, and since when; of one that begins `now`, nothing.
    pub(super) fn take(&mut self, stream: u64, now: Instant) -> (HeadReader, Instant) {
        let kept = self.kept.remove(&stream);
        if self.kept.is_empty() {
            self.oldest = None;
        }
        kept.map_or((HeadReader::default(), now), |kept| (kept.head, kept.since))
    }

    /// Keeps it until more comes.
    pub(super) fn keep(&mut self, stream: u64, (head, since): (HeadReader, Instant), account: &Account) {
        self.oldest = Some(self.oldest.map_or(since, |oldest| oldest.min(since)));
        self.kept.insert(stream, Kept { head, since, _charge: account.charge_request(HEAD) });
    }

    /// When it is to be looked for heads that take longer than `timeout`.
    pub(super) fn deadline(&self, timeout: Duration) -> Option<Instant> {
        self.oldest.map(|oldest| oldest + timeout)
    }

    /// Takes away those that have taken so long by now; their streams.
    pub(super) fn overdue(&mut self, timeout: Duration, now: Instant) -> Vec<u64> {
        if self.deadline(timeout).is_none_or(|deadline| deadline > now) {
            return Vec::new();
        }
        let late = self.kept.extract_if(|_, kept| kept.since + timeout <= now).map(|(stream, _)| stream);
        let late = late.collect();
        self.oldest = self.kept.values().map(|kept| kept.since).min();
        late
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.kept.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use expressway_web::memory::Memory;

    use super::*;

    #[test]
    fn a_part_is_counted_and_has_its_time_from_its_first_byte() {
        let account = Account::new(&Memory::new(1 << 20).ledger(), 1 << 20, 1 << 20);
        let (mut heads, start, timeout) = (Heads::default(), Instant::now(), Duration::from_secs(10));
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for (stream, seconds) in [(0, 0), (4, 1), (0, 5), (8, 9)] {
            let (mut head, since) = heads.take(stream, at(seconds));
            head.take(&[0xc0]);
            heads.keep(stream, (head, since), &account);
        }
        assert_eq!((account.requests(), heads.deadline(timeout)), (3 * HEAD, Some(at(10))));
        assert!(heads.overdue(timeout, at(9)).is_empty());
        assert_eq!(heads.overdue(timeout, at(10)), [0]);
        assert_eq!((account.requests(), heads.deadline(timeout)), (2 * HEAD, Some(at(11))));
        assert_eq!(heads.take(4, at(11)).1, at(1));
        heads.take(8, at(11));
        assert_eq!((account.requests(), heads.deadline(timeout)), (0, None));
    }
}
