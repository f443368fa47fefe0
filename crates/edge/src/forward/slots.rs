//! Slots in counter maps, which are reused when their holder is gone.

use std::collections::HashMap;
use std::hash::Hash;

/// Gives each key a place, and remembers what the place had counted before.
#[derive(Debug)]
pub(super) struct Slots<K, C> {
    held: HashMap<K, (u32, C)>,
    free: Vec<u32>,
    next: u32,
    end: u32,
}

impl<K: Hash + Eq + Clone, C: Copy> Slots<K, C> {
    /// Places from `start` to before `end`.
    pub(super) fn new(start: u32, end: u32) -> Self {
        Self { held: HashMap::new(), free: Vec::new(), next: start, end }
    }

    /// The place of `key`; for a new one `read` tells what it has counted for others. `None` when all are held.
    pub(super) fn hold<E>(
        &mut self,
        key: &K,
        read: impl FnOnce(u32) -> Result<C, E>,
    ) -> Result<Option<u32>, E> {
        if let Some((slot, _)) = self.held.get(key) {
            return Ok(Some(*slot));
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.next < self.end => {
                self.next += 1;
                self.next - 1
            }
            None => return Ok(None),
        };
        match read(slot) {
            Ok(before) => {
                self.held.insert(key.clone(), (slot, before));
                Ok(Some(slot))
            }
            Err(error) => {
                self.free.push(slot);
                Err(error)
            }
        }
    }

    /// Place and earlier count of `key`.
    pub(super) fn find(&self, key: &K) -> Option<(u32, C)> {
        self.held.get(key).copied()
    }

    /// Frees the places of keys that are not wanted any more.
    pub(super) fn retain(&mut self, wanted: impl Fn(&K) -> bool) {
        let free = &mut self.free;
        self.held.retain(|key, (slot, _)| {
            let keep = wanted(key);
            if !keep {
                free.push(*slot);
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_again_with_what_they_had_counted() {
        let mut slots = Slots::new(1, 3);
        let never = |slot: u32| Ok::<_, ()>(u64::from(slot) * 10);
        assert_eq!(slots.hold(&"a", never), Ok(Some(1)));
        assert_eq!(slots.hold(&"b", never), Ok(Some(2)));
        assert_eq!(slots.hold(&"a", |_| Err(())), Ok(Some(1)), "held already");
        assert_eq!(slots.hold(&"c", never), Ok(None));
        slots.retain(|key| *key == "b");
        assert_eq!(slots.hold(&"c", |_| Err(())), Err(()));
        assert_eq!(slots.hold(&"c", |_| Ok::<_, ()>(77)), Ok(Some(1)));
        assert_eq!((slots.find(&"c"), slots.find(&"a")), (Some((1, 77)), None));
    }
}
