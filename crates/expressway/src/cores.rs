//! How many workers there are and which core each has: near the NIC, within what the process may use.
//!
//! A socket for each receive channel in use (`[io] queues` for some); queue *n* belongs to worker *n* modulo their
//! number. Queues without a socket pass to the kernel's sockets, workers without a queue serve by those alone. Workers
//! are pinned to the cores that the process may use, those of the NIC's NUMA node first; `workers = "auto"` is their
//! number, or what the cgroup's CPU quota allows.

use std::num::NonZeroUsize;

use expressway_netio::device::Locality;

/// The most workers: their number has one byte in connection IDs.
const MOST: usize = 256;

/// The number of workers where the configuration leaves it open: the cores that the process may run on, and no
/// more than its cgroup's CPU quota pays for (`cpu.max`).
pub(crate) fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(MOST)
}

/// The cores that the process may run on, those near the devices first.
pub(crate) fn cores(places: Vec<Locality>) -> Vec<usize> {
    let cores = arrange(&allowed(), &places);
    if let Some(place) = places.iter().find(|place| place.node.is_some()) {
        tracing::info!(node = place.node, ?cores, "workers placed near the NIC");
    }
    cores
}

/// The cores that the process may run on, ascending.
pub(crate) fn allowed() -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(None).unwrap_or_default();
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

/// Orders cores: first those near the first device, then those near the others, then the rest. Each queue of a
/// device belongs to the worker of its number, so the first workers have the queues.
fn arrange(allowed: &[usize], places: &[Locality]) -> Vec<usize> {
    let distance =
        |core: &usize| places.iter().position(|place| place.cores.contains(core)).unwrap_or(usize::MAX);
    let mut cores = allowed.to_vec();
    cores.sort_by_key(|core| (distance(core), *core));
    cores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_near_the_nic_come_first_and_none_is_taken_that_is_not_allowed() {
        let place = |cores: &[usize]| Locality { node: Some(1), cores: cores.to_vec() };
        assert_eq!(arrange(&[0, 1, 2, 3], &[place(&[2, 3, 4])]), [2, 3, 0, 1]);
        assert_eq!(arrange(&[0, 1, 2, 3], &[place(&[3]), place(&[1, 3])]), [3, 1, 0, 2]);
        assert_eq!(arrange(&[5, 7], &[]), [5, 7]);
        assert_eq!(arrange(&[5, 7], &[place(&[0, 1])]), [5, 7]);
    }

    #[test]
    fn there_is_a_core_and_a_worker() {
        assert!(!allowed().is_empty());
        assert!((1..=MOST).contains(&workers()));
    }
}
