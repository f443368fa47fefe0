//! The order in which a shard sends: its subscribers in a circle, and how many of them are due.
//!
//! ```text
//!        at ──▶ ┌ due ┬ due ┬ … ┐ not due: they have everything
//! ```
//!
//! Whatever is new makes all due, from where the sending stands and not from a first one: who has just been served waits
//! for one turn of the wheel, and nobody is always last. It knows keys, and nothing of subscribers.

/// The circle.
#[derive(Default)]
pub(super) struct Wheel {
    keys: Vec<usize>,
    /// The next in turn.
    at: usize,
    /// How many are due, from the next on.
    due: usize,
}

impl Wheel {
    /// Subscribers in the circle.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// All of them, in no order that means anything.
    pub(super) fn keys(&self) -> &[usize] {
        &self.keys
    }

    /// Adds one at the end of the turn that is under way. It is not due by being there.
    pub(super) fn add(&mut self, key: usize) {
        // Before the next in turn, so that those that are due stay those behind it.
        self.keys.insert(self.at, key);
        self.at += 1;
    }

    /// Takes one out; nothing happens if it is not there.
    pub(super) fn remove(&mut self, key: usize) {
        let Some(index) = self.keys.iter().position(|other| *other == key) else { return };
        let behind = (index + self.keys.len() - self.at % self.keys.len()) % self.keys.len();
        self.keys.remove(index);
        self.at -= usize::from(index < self.at);
        self.due -= usize::from(behind < self.due);
    }

    /// There is something new: all are due.
    pub(super) fn all_due(&mut self) {
        self.due = self.keys.len();
    }

    /// Whether somebody is due.
    pub(super) fn is_due(&self) -> bool {
        self.due != 0
    }

    /// Who is due so many after the next, if somebody is.
    pub(super) fn ahead(&self, by: usize) -> Option<usize> {
        let length = self.keys.len();
        (by < self.due).then(|| self.keys[(self.at + by) % length])
    }

    /// The next that is due, which is then due no more.
    pub(super) fn next(&mut self) -> Option<usize> {
        self.due = self.due.checked_sub(1)?;
        if self.at >= self.keys.len() {
            self.at = 0;
        }
        self.at += 1;
        Some(self.keys[self.at - 1])
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
        assert_eq!(wheel.keys(), [1, 9, 2, 3]);
        wheel.remove(2);
        assert_eq!(rest(&mut wheel), [3], "who came is not due");
        wheel.all_due();
        assert_eq!(rest(&mut wheel), [1, 9, 3]);
        wheel.remove(7);
        [1, 9, 3].iter().for_each(|key| wheel.remove(*key));
        wheel.all_due();
        assert_eq!((wheel.len(), wheel.next()), (0, None));
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
        /// Whoever comes, goes or is served meanwhile: those that are due are served once each, and no others.
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
                prop_assert_eq!(wheel.is_due(), !due.is_empty());
            }
        }
    }
}
