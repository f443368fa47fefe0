//! Streams that wait for room in the connection's window: the most urgent first, and among the same urgency
//! the one that has waited longest (RFC 9218, section 10).

use std::collections::BTreeMap;
use std::ops::Bound;

/// A stream's position: its urgency, and its number among all that have come to wait.
pub(super) type Position = (u8, u64);

/// The streams of a connection that wait. Whatever is done costs the logarithm of their number.
#[derive(Debug, Default)]
pub(super) struct BlockedStreams {
    queue: BTreeMap<Position, u64>,
    next: u64,
}

impl BlockedStreams {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The number that the next to come will have.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Puts a stream last among those of its urgency.
    pub(super) fn add(&mut self, urgency: u8, stream: u64) -> Position {
        let position = (urgency, self.next);
        self.next += 1;
        self.queue.insert(position, stream);
        position
    }

    /// Takes the stream of a position away.
    pub(super) fn remove(&mut self, position: Position) {
        self.queue.remove(&position);
    }

    /// Moves the stream of a position to another urgency, where its turn is as if it had waited there.
    pub(super) fn change(&mut self, position: Position, urgency: u8) -> Position {
        match self.queue.remove(&position) {
            Some(stream) => {
                self.queue.insert((urgency, position.1), stream);
                (urgency, position.1)
            }
            None => position,
        }
    }

    /// The first after `position`, or of all, among those that queued before number `limit`.
    pub(super) fn after(&self, position: Option<Position>, limit: u64) -> Option<(Position, u64)> {
        let mut from = position.map_or(Bound::Unbounded, Bound::Excluded);
        loop {
            let (position, stream) = self.queue.range((from, Bound::Unbounded)).next()?;
            if position.1 < limit {
                return Some((*position, *stream));
            }
            // All behind it of that urgency have come later still.
            from = Bound::Excluded((position.0, u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(blocked: &BlockedStreams, limit: u64) -> Vec<u64> {
        let (mut streams, mut at) = (Vec::new(), None);
        while let Some((position, stream)) = blocked.after(at, limit) {
            streams.push(stream);
            at = Some(position);
        }
        streams
    }

    #[test]
    fn the_most_urgent_goes_first_and_then_who_has_waited_longest() {
        let mut blocked = BlockedStreams::default();
        let positions: Vec<_> =
            [(3, 0), (1, 4), (3, 8), (1, 12)].map(|(urgency, stream)| blocked.add(urgency, stream)).into();
        assert_eq!(order(&blocked, u64::MAX), [4, 12, 0, 8]);
        let limit = blocked.next();
        blocked.remove(positions[1]);
        blocked.add(1, 4);
        assert_eq!(order(&blocked, limit), [12, 0, 8], "who has come meanwhile is not met");
        assert_eq!(order(&blocked, u64::MAX), [12, 4, 0, 8]);
        let moved = blocked.change(positions[2], 0);
        assert_eq!(order(&blocked, u64::MAX), [8, 12, 4, 0]);
        blocked.remove(moved);
        assert_eq!(blocked.change(moved, 5), moved, "it has gone");
        assert_eq!(order(&blocked, u64::MAX), [12, 4, 0]);
    }
}
