//! Maglev rings with weights (Eisenbud et al., "Maglev: a fast and reliable software network load balancer", NSDI 2016,
//! section 3.4).
//!
//! Each node walks the ring in its own order, which only depends on its name, and takes the next free entry when its
//! turn comes. Balancers with the same nodes therefore make the same ring, in whatever order they list them. When a
//! node is removed, mostly its own entries move: of the 65,537 entries, those of other nodes that move as well are 26
//! with 3 nodes, 183 with 10 and 367 with 100 (the test below). A node with a higher weight gets more turns.

/// What makes up a ring's part of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share<'a> {
    /// What the node is known by, to all balancers of the service alike.
    pub name: &'a str,
    /// Its part is its weight by the sum of all weights. None with 0.
    pub weight: u32,
}

/// The node of each of `size` entries, as an index into `shares`. Empty if no share has a weight.
///
/// `size` is a prime, and a hundred times the nodes at least: then parts differ from weights by about a hundredth.
pub fn ring(shares: &[Share<'_>], size: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..shares.len()).filter(|index| shares[*index].weight > 0).collect();
    // Turns follow names, so that every balancer takes them alike.
    order.sort_by(|a, b| shares[*a].name.cmp(shares[*b].name));
    let Some(greatest) = order.iter().map(|index| u64::from(shares[*index].weight)).max() else {
        return Vec::new();
    };
    let mut walks: Vec<Walk> = order.iter().map(|index| Walk::new(shares[*index].name, size)).collect();
    let mut entries = vec![u32::MAX; size];
    let mut filled = 0;
    while filled < size {
        for (walk, index) in walks.iter_mut().zip(&order) {
            walk.credit += u64::from(shares[*index].weight);
            if walk.credit < greatest {
                continue;
            }
            walk.credit -= greatest;
            let entry = walk.next_free(&entries);
            entries[entry] = *index as u32;
            filled += 1;
            if filled == size {
                break;
            }
        }
    }
    entries
}

/// A node's way over the entries, and what it has saved for its next turn.
struct Walk {
    at: usize,
    step: usize,
    credit: u64,
}

impl Walk {
    fn new(name: &str, size: usize) -> Self {
        let size = size as u64;
        let at = hash(name, 0x6f66_6673_6574) % size;
        let step = hash(name, 0x736b_6970) % (size - 1) + 1;
        Self { at: at as usize, step: step as usize, credit: 0 }
    }

    /// The next entry that nobody has; there is one, and as the number of entries is a prime, the walk comes by it.
    fn next_free(&mut self, entries: &[u32]) -> usize {
        loop {
            let entry = self.at;
            self.at = (self.at + self.step) % entries.len();
            if entries[entry] == u32::MAX {
                return entry;
            }
        }
    }
}

/// FNV-1a with a finish, as names differ in their last bytes mostly. No peer chooses names.
fn hash(name: &str, seed: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ seed;
    for byte in name.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 65537;

    fn names(count: usize) -> Vec<String> {
        (1..=count).map(|number| format!("192.0.2.{number}")).collect()
    }

    fn shares<'a>(names: &'a [String], weights: &[u32]) -> Vec<Share<'a>> {
        names.iter().zip(weights).map(|(name, weight)| Share { name, weight: *weight }).collect()
    }

    fn parts(ring: &[u32], nodes: usize) -> Vec<usize> {
        let mut parts = vec![0; nodes];
        for entry in ring {
            parts[*entry as usize] += 1;
        }
        parts
    }

    #[test]
    fn without_weight_there_is_no_ring() {
        assert!(ring(&[], SIZE).is_empty());
        assert!(ring(&[Share { name: "a", weight: 0 }], SIZE).is_empty());
    }

    #[test]
    fn a_node_that_goes_moves_few_entries_of_others() {
        for count in [3, 10, 100] {
            let names = names(count);
            let before = ring(&shares(&names, &vec![1; count]), SIZE);
            let mut weights = vec![1; count];
            weights[count / 2] = 0;
            let after = ring(&shares(&names, &weights), SIZE);
            let gone = (count / 2) as u32;
            let moved = before.iter().zip(&after).filter(|(old, new)| **old != gone && old != new).count();
            println!("{count} nodes: {moved} of {SIZE} entries moved without need");
            assert!(moved < SIZE / 100, "{count} nodes: {moved} of {SIZE} entries moved without need");
        }
    }

    #[test]
    fn the_order_of_nodes_does_not_matter() {
        let names = names(7);
        let forth = ring(&shares(&names, &[1, 2, 3, 4, 5, 6, 7]), SIZE);
        let reversed: Vec<String> = names.iter().rev().cloned().collect();
        let back = ring(&shares(&reversed, &[7, 6, 5, 4, 3, 2, 1]), SIZE);
        assert!(forth.iter().zip(&back).all(|(a, b)| names[*a as usize] == reversed[*b as usize]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn parts_follow_weights(weights in prop::collection::vec(0u32..=200, 1..24)) {
            let names = names(weights.len());
            let ring = ring(&shares(&names, &weights), SIZE);
            let total: u32 = weights.iter().sum();
            prop_assert_eq!(ring.len(), if total == 0 { 0 } else { SIZE });
            for (part, weight) in parts(&ring, weights.len()).into_iter().zip(&weights) {
                if total > 0 {
                    let due = SIZE as f64 * f64::from(*weight) / f64::from(total);
                    // Turns are whole: each node may be short of one when the last round ends.
                    let apart = (part as f64 - due).abs();
                    prop_assert!(apart <= weights.len() as f64 + 1.0, "{part} entries, {due} are due");
                }
            }
        }
    }
}
