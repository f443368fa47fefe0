//! Numbers for objects that the program knows by number: each keeps its number while it exists, and a reused number
//! gets a new generation.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// Numbers below a limit, each held by at most one key.
#[derive(Clone, Debug)]
pub struct Slots<K> {
    held: HashMap<K, Slot>,
    free: BTreeSet<u32>,
    generation: u32,
}

/// A number, and which holder of it this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The number.
    pub number: u32,
    /// Differs from that of every other holder of any number.
    pub generation: u32,
}

impl<K: Clone + Eq + Hash> Slots<K> {
    /// All numbers below `limit`, free.
    pub fn new(limit: u32) -> Self {
        Self { held: HashMap::new(), free: (0..limit).collect(), generation: 0 }
    }

    /// Has `key` hold what it held in an earlier process, before anything else is held. False if that is no number here, or
    /// held already.
    pub fn restore(&mut self, key: K, slot: Slot) -> bool {
        if self.held.contains_key(&key) || !self.free.remove(&slot.number) {
            return false;
        }
        self.generation = self.generation.max(slot.generation);
        self.held.insert(key, slot);
        true
    }

    /// The number of `key`, a free one if it has none; `None` if there is none.
    pub fn hold(&mut self, key: &K) -> Option<Slot> {
        if let Some(slot) = self.held.get(key) {
            return Some(*slot);
        }
        let number = self.free.pop_first()?;
        self.generation = self.generation.wrapping_add(1);
        let slot = Slot { number, generation: self.generation };
        self.held.insert(key.clone(), slot);
        Some(slot)
    }

    /// Frees the numbers of all keys but those that `keep` wants, and tells which.
    pub fn release(&mut self, keep: impl Fn(&K) -> bool) -> Vec<(K, Slot)> {
        let gone: Vec<(K, Slot)> =
            self.held.iter().filter(|(key, _)| !keep(key)).map(|(key, slot)| (key.clone(), *slot)).collect();
        for (key, slot) in &gone {
            self.held.remove(key);
            self.free.insert(slot.number);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_come_back_as_others() {
        let mut slots = Slots::new(2);
        let a = slots.hold(&"a").unwrap();
        let b = slots.hold(&"b").unwrap();
        assert_eq!(slots.hold(&"a"), Some(a));
        assert_eq!(slots.hold(&"c"), None, "all are held");
        assert_eq!(slots.release(|key| *key == "b"), [("a", a)]);
        let c = slots.hold(&"c").unwrap();
        assert_eq!(c.number, a.number);
        assert_ne!(c.generation, a.generation);
        assert_eq!(slots.hold(&"b"), Some(b));
    }

    #[test]
    fn what_was_held_before_is_held_again() {
        let mut slots = Slots::new(3);
        let before = Slot { number: 1, generation: 40 };
        assert!(slots.restore("a", before));
        assert!(!slots.restore("a", Slot { number: 2, generation: 41 }), "it has one");
        assert!(!slots.restore("b", Slot { number: 1, generation: 41 }), "another's");
        assert!(!slots.restore("b", Slot { number: 3, generation: 41 }), "no such number");
        assert_eq!(slots.hold(&"a"), Some(before));
        assert_eq!(slots.hold(&"b"), Some(Slot { number: 0, generation: 41 }));
    }
}
