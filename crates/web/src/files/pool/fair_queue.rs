//! Waiting items by owner: each owner's in order, and owners in turn.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Things that wait, named by numbers that grow.
pub(super) struct FairQueue<T> {
    queues: HashMap<usize, BTreeMap<u64, T>>,
    /// Owners in turn, each with a queue that may meanwhile be empty.
    turn: VecDeque<usize>,
    count: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { queues: HashMap::new(), turn: VecDeque::new(), count: 0 }
    }
}

impl<T> FairQueue<T> {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Things of `owner`.
    pub(super) fn of(&self, owner: usize) -> usize {
        self.queues.get(&owner).map_or(0, BTreeMap::len)
    }

    /// Puts `thing` in order into the owner's queue.
    pub(super) fn insert(&mut self, owner: usize, number: u64, thing: T) {
        let turn = &mut self.turn;
        let queue = self.queues.entry(owner).or_insert_with(|| {
            turn.push_back(owner);
            BTreeMap::new()
        });
        self.count += usize::from(queue.insert(number, thing).is_none());
    }

    pub(super) fn remove(&mut self, owner: usize, number: u64) {
        if let Some(queue) = self.queues.get_mut(&owner)
            && queue.remove(&number).is_some()
        {
            self.count -= 1;
            self.shrink();
        }
    }

    /// The first of the owner whose turn it is.
    pub(super) fn pop(&mut self) -> Option<T> {
        loop {
            let owner = self.turn.pop_front()?;
            let Some(queue) = self.queues.get_mut(&owner) else { continue };
            let first = queue.pop_first();
            if queue.is_empty() {
                self.queues.remove(&owner);
            } else {
                self.turn.push_back(owner);
            }
            if let Some((_, thing)) = first {
                self.count -= 1;
                self.shrink();
                return Some(thing);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets owners whose things have gone without their turn.
    fn shrink(&mut self) {
        if self.count == 0 {
            self.queues.clear();
            self.turn.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_take_turns_and_each_keeps_its_order() {
        let mut queue = FairQueue::default();
        for number in 0..4 {
            queue.insert(1, number, (1, number));
        }
        queue.insert(2, 4, (2, 4));
        queue.insert(3, 5, (3, 5));
        queue.insert(2, 6, (2, 6));
        queue.remove(3, 5);
        queue.remove(1, 1);
        assert_eq!((queue.len(), queue.of(1), queue.of(3)), (5, 3, 0));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(1, 0), (2, 4), (1, 2), (2, 6), (1, 3)]);
        assert!(queue.is_empty() && queue.queues.is_empty() && queue.turn.is_empty());
    }

    #[test]
    fn whoever_leaves_leaves_nothing() {
        let mut queue = FairQueue::default();
        for number in 0..1000 {
            queue.insert(number as usize, number, ());
            queue.remove(number as usize, number);
        }
        assert!(queue.is_empty() && queue.queues.is_empty() && queue.turn.is_empty());
    }
}
