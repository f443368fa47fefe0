//! The counters of the redirect program: names and meanings for people, metrics and `top`.
//!
//! The numbering is that of `enum redirect_counter` in `bpf/include/redirect_shared.h`, by BTF; this
//! file does not compile if it differs.

use std::fmt;
use std::ops::Index;

use crate::skeleton::types::{redirect_counter, redirect_stats};

/// What the XDP program did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Given to the AF_XDP socket of its receive queue (`XDP_REDIRECT`).
    Redirect,
    /// Left to the kernel's stack, unchanged (`XDP_PASS`).
    Pass,
    /// Ended here (`XDP_DROP`).
    Drop,
}

impl Verdict {
    /// The word for metrics labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redirect => "redirect",
            Self::Pass => "pass",
            Self::Drop => "drop",
        }
    }
}

/// Declares the enum of what a program counts. Its numbers are those of the shared header, by BTF: it does not compile if they
/// differ.
macro_rules! reasons {
    (
        $(#[doc = $about:literal])+
        $name:ident: $shared:ident::$all:ident, $verdict:ty;
        $($(#[doc = $doc:literal])+ $reason:ident = $number:ident, $by:expr, $label:literal;)+
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name {
            $($(#[doc = $doc])+ $reason = $shared::$number.0,)+
        }

        impl $name {
            /// All of them, in the order of the shared header.
            pub const ALL: [Self; $shared::$all.0 as usize] = [$(Self::$reason,)+];

            /// What is done with the packets counted here.
            pub fn verdict(self) -> $verdict {
                match self { $(Self::$reason => $by,)+ }
            }

            /// The reason in snake case, for metrics labels; unique with the verdict, and stable.
            pub fn name(self) -> &'static str {
                match self { $(Self::$reason => $label,)+ }
            }

            /// The reason in a sentence or two, for help texts.
            pub fn help(self) -> &'static str {
                match self { $(Self::$reason => concat!($($doc),+).trim_ascii_start(),)+ }
            }
        }
    };
}
pub(crate) use reasons;

reasons! {
    /// The reason for a packet's verdict. Each packet counts under exactly one.
    Counter: redirect_counter::REDIRECT_COUNTERS, Verdict;

    /// Given to the AF_XDP socket of the receive queue.
    Taken = REDIRECT_TAKEN, Verdict::Redirect, "taken";
    /// The destination MAC is not the interface's.
    PassOtherMac = REDIRECT_PASS_OTHER_MAC, Verdict::Pass, "other_mac";
    /// Neither IPv4 nor IPv6.
    PassNotIp = REDIRECT_PASS_NOT_IP, Verdict::Pass, "not_ip";
    /// More than two VLAN tags.
    PassVlanDepth = REDIRECT_PASS_VLAN_DEPTH, Verdict::Pass, "vlan_depth";
    /// Ends before the destination address and port, so its destination is unknown.
    PassTruncated = REDIRECT_PASS_TRUNCATED, Verdict::Pass, "truncated";
    /// The IP header contradicts itself.
    PassMalformed = REDIRECT_PASS_MALFORMED, Verdict::Pass, "malformed";
    /// IP, but not UDP.
    PassNotUdp = REDIRECT_PASS_NOT_UDP, Verdict::Pass, "not_udp";
    /// An IP fragment, which the kernel reassembles.
    PassFragment = REDIRECT_PASS_FRAGMENT, Verdict::Pass, "fragment";
    /// UDP behind IPv4 options.
    PassIpv4Options = REDIRECT_PASS_IPV4_OPTIONS, Verdict::Pass, "ipv4_options";
    /// IPv6 extension headers that only the kernel may or can process.
    PassIpv6Extension = REDIRECT_PASS_IPV6_EXTENSION, Verdict::Pass, "ipv6_extension";
    /// UDP for an address or port that is not configured.
    PassOtherPair = REDIRECT_PASS_OTHER_PAIR, Verdict::Pass, "other_pair";
    /// Ours, but the receive queue has no AF_XDP socket.
    PassNoSocket = REDIRECT_PASS_NO_SOCKET, Verdict::Pass, "no_socket";
    /// Ours, but packet or frame ends inside the UDP header.
    DropUdpHeader = REDIRECT_DROP_UDP_HEADER, Verdict::Drop, "udp_header";
    /// Ours, but the frame ends before the length that the IP header gives.
    DropIpLength = REDIRECT_DROP_IP_LENGTH, Verdict::Drop, "ip_length";
    /// Ours, but the UDP length is below 8 or beyond the IP payload.
    DropUdpLength = REDIRECT_DROP_UDP_LENGTH, Verdict::Drop, "udp_length";
}

const COUNTERS: usize = Counter::ALL.len();

const _: () = {
    assert!(size_of::<redirect_stats>() == COUNTERS * size_of::<u64>());
    let mut index = 0;
    while index < COUNTERS {
        assert!(Counter::ALL[index] as usize == index, "the order differs from redirect_shared.h");
        index += 1;
    }
};

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verdict().name(), self.name())
    }
}

/// Packets by counter since the program was loaded, summed over CPUs.
///
/// CPUs may go on counting while they are read, so sums over several counters are exact only if no packet
/// arrives meanwhile. Every counter only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    packets: [u64; COUNTERS],
}

impl Counters {
    /// Sums the per-CPU values of `stats_map`; `None` if one does not have the size of the struct.
    pub(crate) fn from_cpus(cpus: &[Vec<u8>]) -> Option<Self> {
        let mut sum = Self::default();
        for value in cpus {
            let (words, rest) = value.as_chunks::<8>();
            if words.len() != COUNTERS || !rest.is_empty() {
                return None;
            }
            for (total, word) in sum.packets.iter_mut().zip(words) {
                *total = total.wrapping_add(u64::from_ne_bytes(*word));
            }
        }
        Some(sum)
    }

    /// Counters read elsewhere, in the order of [`Counter::ALL`]; `None` if their number differs.
    pub fn from_packets(packets: &[u64]) -> Option<Self> {
        Some(Self { packets: packets.try_into().ok()? })
    }

    /// Each counter with its packets, in the order of [`Counter::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.into_iter().zip(self.packets)
    }

    /// Packets with `verdict`, for any reason.
    pub fn of_verdict(&self, verdict: Verdict) -> u64 {
        self.iter().filter(|(counter, _)| counter.verdict() == verdict).map(|(_, packets)| packets).sum()
    }

    /// All packets that the program saw.
    pub fn total(&self) -> u64 {
        self.packets.iter().sum()
    }

    /// The difference to `earlier`, a reading of the same program.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = *self;
        for (packets, before) in difference.packets.iter_mut().zip(earlier.packets) {
            *packets = packets.saturating_sub(before);
        }
        difference
    }
}

impl Index<Counter> for Counters {
    type Output = u64;

    fn index(&self, counter: Counter) -> &u64 {
        &self.packets[counter as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn labels_are_unique_in_snake_case() {
        let labels: HashSet<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(labels.len(), COUNTERS);
        for label in labels {
            assert!(label.bytes().all(|byte| byte.is_ascii_lowercase() || b"_46".contains(&byte)), "{label}");
        }
    }

    #[test]
    fn drops_are_those_from_the_first_drop_on() {
        let first = redirect_counter::REDIRECT_DROP_UDP_HEADER.0;
        for counter in Counter::ALL {
            assert_eq!(counter.verdict() == Verdict::Drop, counter as u32 >= first, "{counter}");
        }
    }

    #[test]
    fn cpus_are_summed() {
        let cpu = |scale: u64| -> Vec<u8> {
            (0..COUNTERS as u64).flat_map(|index| (index * scale).to_ne_bytes()).collect()
        };
        let counters = Counters::from_cpus(&[cpu(1), cpu(10)]).unwrap();
        assert_eq!(counters[Counter::PassNotIp], 22);
        assert_eq!(counters.total(), 11 * (0..COUNTERS as u64).sum::<u64>());
        assert_eq!(counters.of_verdict(Verdict::Redirect), 0);
    }

    #[test]
    fn a_value_of_another_size_is_refused() {
        assert_eq!(Counters::from_cpus(&[vec![0; COUNTERS * 8 - 8]]), None);
        assert_eq!(Counters::from_cpus(&[vec![0; COUNTERS * 8 + 1]]), None);
    }

    #[test]
    fn since_counts_from_a_reading_on() {
        let mut earlier = Counters::default();
        earlier.packets[0] = 3;
        let mut later = earlier;
        later.packets[0] = 10;
        assert_eq!(later.since(&earlier)[Counter::Taken], 7);
    }
}
