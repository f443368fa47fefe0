//! Round trips, measured from datagrams that come back.

use hdrhistogram::Histogram;

use super::flows::Flows;
use crate::probe::Probe;

/// Echoes further behind the newest than this are not told from duplicates.
const WINDOW: u64 = 1 << 20;

/// What came back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EchoStats {
    /// Datagrams that came back, each counted once.
    pub received: u64,
    /// Datagrams that came back again.
    pub duplicates: u64,
    /// Received after one that was sent later.
    pub reordered: u64,
    /// Datagrams without the probe header, or of no flow or number that was sent.
    pub foreign: u64,
}

/// Takes echoes in. Memory: 128 KiB and a histogram.
pub struct Echoes {
    flows: Flows,
    /// Which of the last [`WINDOW`] datagrams have come back, a bit each.
    seen: Box<[u64]>,
    /// Above the highest index that has come back.
    end: u64,
    stats: EchoStats,
    round_trips: Histogram<u64>,
}

impl Echoes {
    /// For datagrams of these flows. Round trips are kept in nanoseconds to three digits, up to a minute.
    pub fn new(flows: Flows) -> Self {
        Self {
            flows,
            seen: vec![0; (WINDOW / 64) as usize].into(),
            end: 0,
            stats: EchoStats::default(),
            round_trips: super::run::histogram(),
        }
    }

    /// Takes a datagram in that came at `now` (ns of [`Probe::time`]'s clock), when `sent` had been sent.
    pub fn take(&mut self, payload: &[u8], now: u64, sent: u64) {
        let probe = Probe::parse(payload);
        let index = probe.and_then(|probe| self.flows.index(probe.flow, probe.sequence));
        let (Some(probe), Some(index)) = (probe, index.filter(|index| *index < sent)) else {
            self.stats.foreign += 1;
            return;
        };
        if index >= self.end {
            let from = self.end.max(index.saturating_sub(WINDOW - 1));
            (from..=index).for_each(|index| self.clear(index));
            self.end = index + 1;
        } else {
            if index + WINDOW < self.end || self.is_seen(index) {
                self.stats.duplicates += 1;
                return;
            }
            self.stats.reordered += 1;
        }
        self.seen[Self::word(index)] |= 1 << (index % 64);
        self.stats.received += 1;
        self.round_trips.saturating_record(now.saturating_sub(probe.time));
    }

    /// What came back so far.
    pub fn stats(&self) -> EchoStats {
        self.stats
    }

    /// Round trips from the intended time of sending, in nanoseconds.
    pub fn round_trips(&self) -> &Histogram<u64> {
        &self.round_trips
    }

    fn word(index: u64) -> usize {
        (index % WINDOW / 64) as usize
    }

    fn is_seen(&self, index: u64) -> bool {
        self.seen[Self::word(index)] & 1 << (index % 64) != 0
    }

    fn clear(&mut self, index: u64) {
        self.seen[Self::word(index)] &= !(1 << (index % 64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echoes() -> Echoes {
        let to = "192.0.2.9:7000".parse().unwrap();
        Echoes::new(Flows::new(vec![[192, 0, 2, 1].into()], 5000, (to, 1), 2, 1).unwrap())
    }

    fn payload(flow: u32, sequence: u64) -> [u8; 24] {
        Probe { sequence, time: 1000, flow }.to_bytes()
    }

    #[test]
    fn echoes_are_counted_once() {
        let mut echoes = echoes();
        for (flow, sequence) in [(0, 0), (1, 0), (0, 2), (0, 1), (0, 1), (0, 2)] {
            echoes.take(&payload(flow, sequence), 1500, 100);
        }
        let expected = EchoStats { received: 4, duplicates: 2, reordered: 1, foreign: 0 };
        assert_eq!(echoes.stats(), expected);
        assert_eq!(echoes.round_trips().len(), 4);
        assert_eq!(echoes.round_trips().max(), 500);
    }

    #[test]
    fn what_was_not_sent_is_foreign() {
        let mut echoes = echoes();
        echoes.take(b"hello", 0, 100);
        echoes.take(&payload(2, 0), 0, 100);
        echoes.take(&payload(0, 50), 0, 100);
        echoes.take(&payload(u32::MAX, u64::MAX), 0, 100);
        assert_eq!(echoes.stats(), EchoStats { foreign: 4, ..EchoStats::default() });
    }

    #[test]
    fn the_window_moves_on_without_ghosts() {
        let mut echoes = echoes();
        // Index 0, then one a window further on, whose bit is the same.
        echoes.take(&payload(0, 0), 1000, u64::MAX);
        echoes.take(&payload(0, WINDOW / 2), 1000, u64::MAX);
        assert_eq!(echoes.stats().received, 2);
        echoes.take(&payload(0, 0), 1000, u64::MAX);
        assert_eq!(echoes.stats().duplicates, 1, "too old to tell");
        // A jump beyond the window clears all of it.
        echoes.take(&payload(0, 3 * WINDOW), 1000, u64::MAX);
        echoes.take(&payload(0, 3 * WINDOW - 1), 1000, u64::MAX);
        assert_eq!(echoes.stats(), EchoStats { received: 4, duplicates: 1, reordered: 1, foreign: 0 });
    }
}
