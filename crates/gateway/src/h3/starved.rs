//! Streams that wait for room in the connection's window: the most urgent first, and among the same urgency
//! the one that has waited longest (RFC 9218, section 10).

use std::collections::BTreeMap;
use std::ops::Bound;

/// A stream's place: its urgency, and its number among all that have come to wait.
pub(super) type Place = (u8, u64);

/// The streams of a connection that wait. Whatever is done costs the logarithm of their number.
#[derive(Debug, Default)]
pub(super) struct Starved {
    line: BTreeMap<Place, u64>,
    next: u64,
}

impl Starved {
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// The number that the next to come will have.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Puts a stream last among those of its urgency.
    pub(super) fn add(&mut self, urgency: u8, stream: u64) -> Place {
        let place = (urgency, self.next);
        self.next += 1;
        self.line.insert(place, stream);
        place
    }

    /// Takes the stream of a place away.
    pub(super) fn remove(&mut self, place: Place) {
        self.line.remove(&place);
    }

    /// Moves the stream of a place to another urgency, where its turn is as if it had waited there.
    pub(super) fn change(&mut self, place: Place, urgency: u8) -> Place {
        match self.line.remove(&place) {
            Some(stream) => {
                self.line.insert((urgency, place.1), stream);
                (urgency, place.1)
            }
            None => place,
        }
    }

    /// The first after `place`, or of all, among those that queued before number `limit`.
    pub(super) fn after(&self, place: Option<Place>, limit: u64) -> Option<(Place, u64)> {
        let mut from = place.map_or(Bound::Unbounded, Bound::Excluded);
        loop {
            let (place, stream) = self.line.range((from, Bound::Unbounded)).next()?;
            if place.1 < limit {
                return Some((*place, *stream));
            }
            // All behind it of that urgency have come later still.
            from = Bound::Excluded((place.0, u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(starved: &Starved, limit: u64) -> Vec<u64> {
        let (mut streams, mut at) = (Vec::new(), None);
        while let Some((place, stream)) = starved.after(at, limit) {
            streams.push(stream);
            at = Some(place);
        }
        streams
    }

    #[test]
    fn the_most_urgent_goes_first_and_then_who_has_waited_longest() {
        let mut starved = Starved::default();
        let places: Vec<_> =
            [(3, 0), (1, 4), (3, 8), (1, 12)].map(|(urgency, stream)| starved.add(urgency, stream)).into();
        assert_eq!(order(&starved, u64::MAX), [4, 12, 0, 8]);
        let limit = starved.next();
        starved.remove(places[1]);
        starved.add(1, 4);
        assert_eq!(order(&starved, limit), [12, 0, 8], "who has come meanwhile is not met");
        assert_eq!(order(&starved, u64::MAX), [12, 4, 0, 8]);
        let moved = starved.change(places[2], 0);
        assert_eq!(order(&starved, u64::MAX), [8, 12, 4, 0]);
        starved.remove(moved);
        assert_eq!(starved.change(moved, 5), moved, "it has gone");
        assert_eq!(order(&starved, u64::MAX), [12, 4, 0]);
    }
}
