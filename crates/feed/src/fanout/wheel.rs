//! The order in which a shard sends: its subscribers in a circle, and how many of them are due.
//!
//! ```text
//!        at ──▶ ┌ due ┬ due ┬ … ┐ not due: they have everything
//! ```
//!
//! New data makes all of them due, starting at the current position and not at a fixed first one. So a
//! subscriber that has just been served waits for one turn of the wheel, and none is always last. The wheel
//! knows keys, not subscribers. Each step costs the same with one subscriber as with a million, including
//! additions and removals: the circle is a doubly linked list.

/// No key.
const NONE: u32 = u32::MAX;

/// The circle.
pub(super) struct Wheel {
    /// By key.
    links: Vec<Link>,
    length: usize,
    /// The next in turn, if there is anybody.
    at: u32,
    /// How many are due, from the next on.
    due: usize,
    /// Counts the times that all were due.
    round: u64,
}

#[derive(Clone, Copy)]
struct Link {
    /// [`NONE`] for a key that is not there.
    before: u32,
    after: u32,
    /// The round in which it was served last: it is due if that is not this one.
    served: u64,
}

impl Default for Wheel {
    fn default() -> Self {
        Self { links: Vec::new(), length: 0, at: NONE, due: 0, round: 0 }
    }
}

impl Wheel {
    /// Subscribers in the circle.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Adds one at the end of the turn that is under way. It is not due by being there.
    pub(super) fn add(&mut self, key: usize) {
        if self.links.len() <= key {
            self.links.resize(key + 1, Link { before: NONE, after: NONE, served: 0 });
        }
        // A slab of fewer than 2^32 entries has no larger keys.
        let own = key as u32;
        // Before the next in turn, so that those that are due stay after it.
        let (before, after) = match self.at {
            NONE => (own, own),
            at => (self.links[at as usize].before, at),
        };
        self.links[key] = Link { before, after, served: self.round };
        self.links[before as usize].after = own;
        self.links[after as usize].before = own;
        if self.at == NONE {
            self.at = own;
        }
        self.length += 1;
    }

    /// Takes one out; nothing happens if it is not there.
    pub(super) fn remove(&mut self, key: usize) {
        let Some(&Link { before, after, served }) = self.links.get(key) else { return };
        if before == NONE {
            return;
        }
        self.links[before as usize].after = after;
        self.links[after as usize].before = before;
        self.links[key].before = NONE;
        self.length -= 1;
        self.due -= usize::from(served != self.round);
        if self.at as usize == key {
            self.at = if self.length == 0 { NONE } else { after };
        }
    }

    /// There is something new: all are due.
    pub(super) fn all_due(&mut self) {
        self.round += 1;
        self.due = self.length;
    }

    /// Whether somebody is due.
    pub(super) fn is_due(&self) -> bool {
        self.due != 0
    }

    /// Who is due so many after the next, if somebody is.
    pub(super) fn ahead(&self, by: usize) -> Option<usize> {
        (by < self.due).then(|| (0..by).fold(self.at as usize, |key, _| self.links[key].after as usize))
    }

    /// The next that is due, which is then due no more.
    pub(super) fn next(&mut self) -> Option<usize> {
        self.due = self.due.checked_sub(1)?;
        let key = self.at as usize;
        self.links[key].served = self.round;
        self.at = self.links[key].after;
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn wheel(keys: &[usize]) -> Wheel {
        let mut wheel = Wheel::default();
        keys.iter().for_each(|key| wheel.add(*key));
        wheel
    }

    fn rest(wheel: &mut Wheel) -> Vec<usize> {
        std::iter::from_fn(|| wheel.next()).collect()
    }

    /// The circle, from the next in turn on.
    fn circle(wheel: &Wheel) -> Vec<usize> {
        let after = |key: &usize| Some(wheel.links[*key].after as usize);
        std::iter::successors((wheel.length != 0).then_some(wheel.at as usize), after)
            .take(wheel.length)
            .collect()
    }

    #[test]
    fn whoever_is_ahead_is_next_then() {
        let mut wheel = wheel(&[1, 2, 3]);
        assert_eq!(wheel.ahead(0), None, "nobody is due");
        for _ in 0..2 {
            wheel.all_due();
            while let Some(next) = wheel.ahead(0) {
                let after = wheel.ahead(1);
                assert_eq!(wheel.next(), Some(next));
                assert_eq!(wheel.ahead(0), after);
            }
            wheel.all_due();
            wheel.next();
        }
        assert_eq!(Wheel::default().ahead(0), None);
    }

    #[test]
    fn a_turn_begins_where_the_last_one_ended() {
        let mut wheel = wheel(&[1, 2, 3, 4]);
        assert_eq!(wheel.next(), None, "nothing is new");
        wheel.all_due();
        assert_eq!((wheel.next(), wheel.next()), (Some(1), Some(2)));
        wheel.all_due();
        assert_eq!(rest(&mut wheel), [3, 4, 1, 2]);
        assert!(!wheel.is_due());
    }

    #[test]
    fn who_comes_is_last_and_who_goes_is_not_missed() {
        let mut wheel = wheel(&[1, 2, 3]);
        wheel.all_due();
        assert_eq!(wheel.next(), Some(1));
        wheel.add(9);
        assert_eq!(circle(&wheel), [2, 3, 1, 9]);
        wheel.remove(2);
        assert_eq!(rest(&mut wheel), [3], "who came is not due");
        wheel.all_due();
        assert_eq!(rest(&mut wheel), [1, 9, 3]);
        wheel.remove(7);
        [1, 9, 3].iter().for_each(|key| wheel.remove(*key));
        wheel.all_due();
        assert_eq!((wheel.len(), wheel.next()), (0, None));
        // A key is used again by another.
        wheel.add(9);
        wheel.all_due();
        assert_eq!((wheel.ahead(0), wheel.ahead(1)), (Some(9), None));
        assert_eq!(rest(&mut wheel), [9]);
    }

    #[derive(Clone, Debug)]
    enum Deed {
        Add,
        Remove(usize),
        AllDue,
        Next,
    }

    fn deeds() -> impl Strategy<Value = Vec<Deed>> {
        let deed = prop_oneof![
            Just(Deed::Add),
            (0usize..20).prop_map(Deed::Remove),
            Just(Deed::AllDue),
            Just(Deed::Next),
            Just(Deed::Next),
        ];
        prop::collection::vec(deed, 0..100)
    }

    proptest! {
        /// Whoever comes, goes or is served meanwhile: those that are due are served once each, and no
        /// others.
        #[test]
        fn who_is_due_is_served_once(deeds in deeds()) {
            let mut wheel = Wheel::default();
            let (mut present, mut due, mut count) = (BTreeSet::new(), BTreeSet::new(), 0);
            for deed in deeds {
                match deed {
                    Deed::Add => {
                        wheel.add(count);
                        present.insert(count);
                        count += 1;
                    }
                    Deed::Remove(key) => {
                        wheel.remove(key);
                        present.remove(&key);
                        due.remove(&key);
                    }
                    Deed::AllDue => {
                        wheel.all_due();
                        due.clone_from(&present);
                    }
                    Deed::Next => {
                        let next = wheel.next();
                        prop_assert_eq!(next.is_some(), !due.is_empty());
                        prop_assert!(next.is_none_or(|key| due.remove(&key)));
                    }
                }
                prop_assert_eq!(wheel.len(), present.len());
                prop_assert_eq!(circle(&wheel).into_iter().collect::<BTreeSet<_>>(), present.clone());
                prop_assert_eq!(wheel.is_due(), !due.is_empty());
            }
        }
    }
}
