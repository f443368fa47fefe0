//! Packets that have not arrived and are requested again (generic NACK, RFC 4585, section 6.2.1).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Packets of a stream that are asked for at a time. A gap that leaves more is no loss but a pause, or hopeless.
pub const MOST: usize = 256;
/// How long a packet may be late before it is asked for: reordering is no loss.
const LATE: Duration = Duration::from_millis(10);
/// Between two requests for a packet, about a round trip on the way to a publisher.
const AGAIN: Duration = Duration::from_millis(100);
/// Requests for a packet.
const TRIES: u8 = 5;

/// What is missing of a stream.
#[derive(Debug, Default)]
pub struct Missing {
    /// In the order in which they are due at first.
    packets: VecDeque<Wanted>,
    /// No later than the first of them is due, and `None` if there are none.
    due: Option<Instant>,
}

#[derive(Debug)]
struct Wanted {
    sequence: u16,
    tries: u8,
    due: Instant,
}

impl Missing {
    /// The packets of a gap in front of `sequence` are missing. Of a gap too long nothing is, nor of what was before.
    pub fn note_gap(&mut self, sequence: u16, gap: u16, now: Instant) {
        if usize::from(gap) + self.packets.len() > MOST {
            self.clear();
        }
        if usize::from(gap) > MOST {
            return;
        }
        if gap > 0 {
            self.due = Some(self.due.map_or(now + LATE, |due| due.min(now + LATE)));
        }
        for behind in (1..=gap).rev() {
            self.packets.push_back(Wanted {
                sequence: sequence.wrapping_sub(behind),
                tries: 0,
                due: now + LATE,
            });
        }
    }

    /// One has come, or is not wanted any more.
    pub fn found(&mut self, sequence: u16) {
        // There are few, and the oldest comes first.
        if let Some(index) = self.packets.iter().position(|wanted| wanted.sequence == sequence) {
            self.packets.remove(index);
            self.due = self.due.filter(|_| !self.packets.is_empty());
        }
    }

    /// Nothing is missing any more.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.due = None;
    }

    /// When to look at [`Self::poll`]. It is asked at every packet, so it is not looked for.
    pub fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// The numbers that are to be asked for now.
    pub fn poll(&mut self, now: Instant) -> Vec<u16> {
        if self.due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.packets.retain(|wanted| wanted.tries < TRIES || wanted.due > now);
        let due = self.packets.iter_mut().filter(|wanted| wanted.due <= now);
        let wanted = due
            .map(|wanted| {
                wanted.tries += 1;
                wanted.due = now + AGAIN;
                wanted.sequence
            })
            .collect();
        self.due = self.packets.iter().map(|wanted| wanted.due).min();
        wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_asked_for_a_few_times_and_then_given_up() {
        let (mut missing, start) = (Missing::default(), Instant::now());
        missing.note_gap(1, 3, start);
        assert_eq!(missing.poll(start), [0u16; 0], "it may only be late");
        assert_eq!(missing.deadline(), Some(start + LATE));
        missing.found(0);
        missing.found(7);
        for round in 0..u32::from(TRIES) {
            let now = start + LATE + AGAIN * round;
            assert_eq!(missing.poll(now), [65_534, 65_535], "round {round}");
            assert_eq!(missing.poll(now), [0u16; 0], "once a round");
        }
        assert_eq!(missing.poll(start + AGAIN * 10), [0u16; 0]);
        assert_eq!(missing.deadline(), None);
    }

    #[test]
    fn there_is_a_bound() {
        let (mut missing, now) = (Missing::default(), Instant::now());
        missing.note_gap(1000, 200, now);
        missing.note_gap(1100, 99, now);
        assert_eq!(missing.packets.len(), 99, "the older ones gave way");
        missing.note_gap(9000, 2000, now);
        assert!(missing.packets.is_empty(), "a pause is no loss");
    }
}
