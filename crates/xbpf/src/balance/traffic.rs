//! What was counted of a service or a node.

use crate::skeleton::balance::types::balance_traffic;

use super::counters::BalanceCounter;

/// What a service or a node was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceTraffic {
    /// Packets.
    pub packets: u64,
    /// Bytes of IP packets, before encapsulation.
    pub bytes: u64,
    /// Flows that began.
    pub flows: u64,
    /// Flows that were seen to be established.
    pub established: u64,
    /// Packets routed by a QUIC connection ID.
    pub by_id: u64,
    /// Packets too big for the way to their node, which an ICMP error answered.
    pub answered: u64,
    /// Established flows that came from another node because that was down.
    pub moved_down: u64,
    /// Likewise, because it had left the configuration.
    pub moved_gone: u64,
    /// Packets dropped, in the order of [`BalanceTraffic::DROPS`].
    pub dropped: [u64; DROPS],
}

const DROPS: usize = BalanceTraffic::DROPS.len();
const TRAFFIC: usize = 8 + DROPS;

impl BalanceTraffic {
    /// Why packets of a service are dropped.
    pub const DROPS: [BalanceCounter; 4] = [
        BalanceCounter::DropNoNode,
        BalanceCounter::DropUnresolved,
        BalanceCounter::DropTooBig,
        BalanceCounter::DropNoRoom,
    ];

    pub(super) fn from_cpus(cpus: &[Vec<u8>]) -> Option<Self> {
        let mut sum = [0u64; TRAFFIC];
        for cpu in cpus {
            let (values, rest) = cpu.as_chunks::<8>();
            if values.len() != sum.len() || !rest.is_empty() {
                return None;
            }
            for (total, value) in sum.iter_mut().zip(values) {
                *total += u64::from_ne_bytes(*value);
            }
        }
        Some(Self::from_values(sum))
    }

    fn from_values(values: [u64; TRAFFIC]) -> Self {
        let [packets, bytes, flows, established, by_id, answered, moved_down, moved_gone, dropped @ ..] =
            values;
        Self { packets, bytes, flows, established, by_id, answered, moved_down, moved_gone, dropped }
    }

    fn values(&self) -> [u64; TRAFFIC] {
        let Self { packets, bytes, flows, established, by_id, answered, moved_down, moved_gone, dropped } =
            self;
        let [a, b, c, d] = *dropped;
        let (moved_down, moved_gone) = (*moved_down, *moved_gone);
        [*packets, *bytes, *flows, *established, *by_id, *answered, moved_down, moved_gone, a, b, c, d]
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut values = self.values();
        for (now, then) in values.iter_mut().zip(earlier.values()) {
            *now = now.saturating_sub(then);
        }
        Self::from_values(values)
    }

    /// Packets that did not reach a node, whatever the reason.
    pub fn lost(&self) -> u64 {
        self.answered + self.dropped.iter().sum::<u64>()
    }
}

const _: () = {
    assert!(size_of::<balance_traffic>() == TRAFFIC * size_of::<u64>());
    assert!(std::mem::offset_of!(balance_traffic, moved) == 6 * size_of::<u64>());
    let mut index = 0;
    while index < DROPS {
        assert!(BalanceTraffic::DROPS[index] as usize == BalanceCounter::ALL.len() - DROPS + index);
        index += 1;
    }
};
