//! Who waits for a fetch, and how far each has come.
//!
//! A popular URL has thousands of readers, and each looks for its next block by itself, on a worker: none of that may cost what all
//! readers together do. Only waking them does, which a block does once.

use std::collections::BTreeMap;
use std::task::Waker;

use slab::Slab;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Readers {
    readers: Slab<Reader>,
    /// How many are at each position.
    positions: BTreeMap<u32, usize>,
    /// Readers that were looked at.
    #[cfg(test)]
    pub(super) visits: usize,
}

#[derive(Debug)]
struct Reader {
    waker: Option<Waker>,
    /// The block that it needs next.
    position: u32,
}

impl Readers {
    pub(super) fn len(&self) -> usize {
        self.readers.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.readers.is_empty()
    }

    /// One more, which needs the block at `position` next; the key is its own until it leaves.
    pub(super) fn join(&mut self, position: u32) -> usize {
        *self.positions.entry(position).or_default() += 1;
        self.visit(1);
        self.readers.insert(Reader { waker: None, position })
    }

    pub(super) fn leave(&mut self, key: usize) {
        let reader = self.readers.remove(key);
        self.visit(1);
        self.depart(reader.position);
    }

    /// A reader needs the block at `position` next.
    pub(super) fn advance(&mut self, key: usize, position: u32) {
        self.visit(1);
        let Some(reader) = self.readers.get_mut(key) else { return };
        let former = std::mem::replace(&mut reader.position, position);
        if former != position {
            *self.positions.entry(position).or_default() += 1;
            self.depart(former);
        }
    }

    /// A reader waits, to be woken by `waker`.
    pub(super) fn wait(&mut self, key: usize, waker: &Waker) {
        self.visit(1);
        if let Some(reader) = self.readers.get_mut(key) {
            reader.waker = Some(waker.clone());
        }
    }

    /// There are no blocks before `first`: nobody needs one.
    pub(super) fn begin(&mut self, first: u32) {
        self.visit(self.readers.len());
        self.positions.clear();
        for (_, reader) in &mut self.readers {
            reader.position = reader.position.max(first);
            *self.positions.entry(reader.position).or_default() += 1;
        }
    }

    /// The first block that anybody needs.
    pub(super) fn slowest(&self) -> Option<u32> {
        self.positions.first_key_value().map(|(position, _)| *position)
    }

    /// Those who wait, who do so no more.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        self.visit(self.readers.len());
        self.readers.iter_mut().filter_map(|(_, reader)| reader.waker.take()).collect()
    }

    fn depart(&mut self, position: u32) {
        if let Some(count) = self.positions.get_mut(&position) {
            *count -= 1;
            if *count == 0 {
                self.positions.remove(&position);
            }
        }
    }

    #[cfg(test)]
    fn visit(&mut self, readers: usize) {
        self.visits += readers;
    }

    #[cfg(not(test))]
    fn visit(&self, _readers: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_is_known_whoever_comes_goes_and_moves() {
        let mut readers = Readers::default();
        let mut model: Vec<(usize, u32)> = Vec::new();
        let mut seed = 1_u64;
        for _ in 0..5000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (what, which) = ((seed >> 60) as u32, (seed >> 33) as usize);
            match what {
                0..6 => model.push((readers.join(which as u32 % 7), which as u32 % 7)),
                6..12 if !model.is_empty() => {
                    let at = which % model.len();
                    model[at].1 += (which >> 8) as u32 % 3;
                    readers.advance(model[at].0, model[at].1);
                }
                12..15 if !model.is_empty() => {
                    let (key, _) = model.swap_remove(which % model.len());
                    readers.leave(key);
                }
                15 => {
                    let first = readers.slowest().unwrap_or(0) + 1;
                    readers.begin(first);
                    model.iter_mut().for_each(|(_, position)| *position = first.max(*position));
                }
                _ => {}
            }
            assert_eq!(readers.slowest(), model.iter().map(|(_, position)| *position).min());
            assert_eq!(readers.len(), model.len());
        }
    }
}
