//! The counters of the balancing program: names and meanings for people and metrics.
//!
//! The numbering is that of `enum balance_counter` in `bpf/include/balance_shared.h`, by BTF; this file does not compile
//! if it differs.

use std::fmt;
use std::ops::Index;

use crate::counters::reasons;
use crate::skeleton::balance::types::{balance_counter, balance_stats};

reasons! {
    /// What became of a packet, and why. Each packet counts under exactly one.
    BalanceCounter: balance_counter::BALANCE_COUNTERS, &'static str;

    /// To the node of its established flow.
    TxFlow = BALANCE_TX_FLOW, "tx", "flow";
    /// To the node of a flow that is not established yet.
    TxProbation = BALANCE_TX_PROBATION, "tx", "probation";
    /// First packet of a flow, to a node of the service's ring.
    TxNew = BALANCE_TX_NEW, "tx", "new";
    /// To the node that its QUIC connection ID names.
    TxQuicLb = BALANCE_TX_QUIC_LB, "tx", "quic_lb";
    /// A later fragment, behind its first one.
    TxFragment = BALANCE_TX_FRAGMENT, "tx", "fragment";
    /// An ICMP error, to the node of the flow that it is about.
    TxIcmp = BALANCE_TX_ICMP, "tx", "icmp";
    /// Too big for the way to its node; an ICMP error went back to its sender.
    TxTooBig = BALANCE_TX_TOO_BIG, "tx", "too_big";
    /// Neither IPv4 nor IPv6.
    PassNotIp = BALANCE_PASS_NOT_IP, "pass", "not_ip";
    /// Ends inside a header, or a header contradicts itself.
    PassMalformed = BALANCE_PASS_MALFORMED, "pass", "malformed";
    /// IPv6 extension headers other than a fragment's.
    PassExtension = BALANCE_PASS_EXTENSION, "pass", "ipv6_extension";
    /// Neither TCP nor UDP, nor an ICMP error about one of these.
    PassProtocol = BALANCE_PASS_PROTOCOL, "pass", "protocol";
    /// For an address and port that are no service's.
    PassNoService = BALANCE_PASS_NO_SERVICE, "pass", "no_service";
    /// A later fragment whose first one was not seen.
    PassFragment = BALANCE_PASS_FRAGMENT, "pass", "fragment";
    /// A service's, but its hop limit is used up; the kernel answers.
    PassHopLimit = BALANCE_PASS_HOP_LIMIT, "pass", "hop_limit";
    /// A service's without any node that is up.
    DropNoNode = BALANCE_DROP_NO_NODE, "drop", "no_node";
    /// The way to its node, or the MAC address there, is not known.
    DropUnresolved = BALANCE_DROP_UNRESOLVED, "drop", "unresolved";
    /// Too big for the way to its node, and no ICMP error may be sent for it.
    DropTooBig = BALANCE_DROP_TOO_BIG, "drop", "too_big";
    /// The driver leaves no room for an outer header.
    DropNoRoom = BALANCE_DROP_NO_ROOM, "drop", "no_room";
}

const COUNTERS: usize = BalanceCounter::ALL.len();

const _: () = {
    assert!(size_of::<balance_stats>() == COUNTERS * size_of::<u64>());
    let mut index = 0;
    while index < COUNTERS {
        assert!(BalanceCounter::ALL[index] as usize == index, "the order differs from balance_shared.h");
        index += 1;
    }
};

impl fmt::Display for BalanceCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verdict(), self.name())
    }
}

/// Packets by counter since the program was loaded, summed over CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceCounts {
    packets: [u64; COUNTERS],
}

impl BalanceCounts {
    /// Sums the values of all CPUs; `None` if one does not have the size of the struct.
    pub(crate) fn from_cpus(cpus: &[Vec<u8>]) -> Option<Self> {
        let mut sum = Self::default();
        for cpu in cpus {
            let (words, rest) = cpu.as_chunks::<8>();
            if words.len() != COUNTERS || !rest.is_empty() {
                return None;
            }
            for (total, word) in sum.packets.iter_mut().zip(words) {
                *total += u64::from_ne_bytes(*word);
            }
        }
        Some(sum)
    }

    /// Each counter with its packets.
    pub fn iter(&self) -> impl Iterator<Item = (BalanceCounter, u64)> + '_ {
        BalanceCounter::ALL.into_iter().zip(self.packets)
    }

    /// All packets.
    pub fn total(&self) -> u64 {
        self.packets.iter().sum()
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut packets = self.packets;
        for (now, then) in packets.iter_mut().zip(earlier.packets) {
            *now = now.saturating_sub(then);
        }
        Self { packets }
    }
}

impl Index<BalanceCounter> for BalanceCounts {
    type Output = u64;

    fn index(&self, counter: BalanceCounter) -> &u64 {
        &self.packets[counter as usize]
    }
}
