//! What the filter is loaded with: lists, sets of rules by field, and rules.

use std::net::IpAddr;

use crate::skeleton::guard::types::{
    guard_action, guard_bits, guard_limit, guard_payload_key, guard_per, guard_rule,
};

/// Words of a set.
const WORDS: usize = guard_limit::GUARD_WORDS.0 as usize;

const _: () = assert!(size_of::<guard_bits>() == 8 * (1 + WORDS) && size_of::<guard_rule>() == 48);

/// An address with the number of its leading bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GuardPrefix {
    /// The address; further bits are ignored.
    pub address: IpAddr,
    /// 0 to 32, or to 128.
    pub length: u8,
}

impl GuardPrefix {
    /// As the key of an LPM trie: the length in host order, then the address.
    pub(super) fn key(&self) -> Vec<u8> {
        let mut key = u32::from(self.length).to_ne_bytes().to_vec();
        match self.address {
            IpAddr::V4(address) => key.extend(address.octets()),
            IpAddr::V6(address) => key.extend(address.octets()),
        }
        key
    }
}

/// A set of rules, by their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GuardSet([u64; WORDS]);

impl GuardSet {
    /// Rules at most.
    pub const RULES: usize = guard_limit::GUARD_RULES.0 as usize;

    /// Adds a rule below [`GuardSet::RULES`].
    pub fn insert(&mut self, rule: usize) {
        self.0[rule / 64] |= 1 << (rule % 64);
    }

    /// Adds those of another set.
    pub fn extend(&mut self, other: &Self) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    pub(super) fn value(&self) -> Vec<u8> {
        let some =
            self.0.iter().enumerate().fold(0u64, |some, (at, word)| some | u64::from(*word != 0) << at);
        let mut value = some.to_ne_bytes().to_vec();
        value.extend(self.0.iter().flat_map(|word| word.to_ne_bytes()));
        value
    }
}

/// The sets of each prefix that any rule names, and of the rest. The set of a prefix holds the rules of those that
/// contain it too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardAddressSets {
    /// By prefix, of either family.
    pub prefixes: Vec<(GuardPrefix, GuardSet)>,
    /// Rules that take every IPv4 address.
    pub any4: GuardSet,
    /// Rules that take every IPv6 address.
    pub any6: GuardSet,
}

/// Sets by a value: the values of each index are the place of its set in `sets`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardValueSets {
    /// By value.
    pub classes: Vec<u32>,
    /// The different ones.
    pub sets: Vec<GuardSet>,
}

impl GuardValueSets {
    /// Indices of ports: each port, and packets without.
    pub const PORTS: usize = guard_limit::GUARD_NO_PORT.0 as usize + 1;
    /// Indices of lengths of IP packets.
    pub const LENGTHS: usize = 1 << 16;
    /// Indices of protocols.
    pub const PROTOCOLS: usize = 256;
    /// Indices of TCP flags: each combination, and packets without.
    pub const FLAGS: usize = guard_limit::GUARD_NO_FLAGS.0 as usize + 1;
}

/// A place of payloads that rules look at, and which bits of it count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GuardProbe {
    /// From the end of the TCP or UDP header; of other protocols, of the IP header.
    pub offset: u16,
    /// Bytes, 1 to [`GuardPayloadSets::PATTERN`].
    pub length: u8,
    /// Those bits that count, of the first `length` bytes; the rest is 0.
    pub mask: [u8; GuardPayloadSets::PATTERN],
}

/// Sets by what is at places of the payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardPayloadSets {
    /// [`GuardPayloadSets::PROBES`] at most.
    pub probes: Vec<GuardProbe>,
    /// Rules that take every payload.
    pub any: GuardSet,
    /// The rules that ask for these bytes, masked, at the probe of that place in `probes`.
    pub values: Vec<(usize, [u8; GuardPayloadSets::PATTERN], GuardSet)>,
}

const _: () = assert!(size_of::<guard_payload_key>() == 8 + GuardPayloadSets::PATTERN);

impl GuardPayloadSets {
    /// Different places at most.
    pub const PROBES: usize = guard_limit::GUARD_PROBES.0 as usize;
    /// Bytes at most that are looked at in one place.
    pub const PATTERN: usize = guard_limit::GUARD_PATTERN.0 as usize;

    /// Keys and values of `payload_map`.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        self.values.iter().map(|(probe, bytes, set)| {
            let mut key = (*probe as u64).to_ne_bytes().to_vec();
            key.extend(bytes);
            (key, set.value())
        })
    }
}

/// Rules, compiled. A field that no rule asks for is `None`, and costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardClassifier {
    /// By source address.
    pub source: Option<GuardAddressSets>,
    /// By destination address.
    pub destination: Option<GuardAddressSets>,
    /// By source port: [`GuardValueSets::PORTS`].
    pub source_port: Option<GuardValueSets>,
    /// By destination port.
    pub destination_port: Option<GuardValueSets>,
    /// By length: [`GuardValueSets::LENGTHS`].
    pub length: Option<GuardValueSets>,
    /// By protocol: [`GuardValueSets::PROTOCOLS`] sets.
    pub protocol: Option<Vec<GuardSet>>,
    /// By TCP flags: [`GuardValueSets::FLAGS`] sets.
    pub flags: Option<Vec<GuardSet>>,
    /// By bytes of the payload.
    pub payload: Option<GuardPayloadSets>,
    /// What they do, [`GuardSet::RULES`] at most.
    pub rules: Vec<GuardRule>,
}

/// What a limit counts apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardPer {
    /// Nothing: all packets of the rule together.
    #[default]
    Rule,
    /// Sources, by the first bits of their addresses.
    Source {
        /// Of an IPv4 address, up to 32.
        prefix4: u8,
        /// Of an IPv6 address, up to 128.
        prefix6: u8,
    },
    /// Destinations, likewise.
    Destination {
        /// Of an IPv4 address, up to 32.
        prefix4: u8,
        /// Of an IPv6 address, up to 128.
        prefix6: u8,
    },
    /// Destination ports.
    Port,
}

/// So many in a second, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardRate {
    /// A second, at least 1.
    pub rate: u64,
    /// At once, at least 1.
    pub burst: u64,
}

impl GuardRate {
    /// Cost of one and the burst, in 1/1024 ns. Time differences are signed: bounded to half of what 64 bits hold.
    pub(super) fn times(self) -> (u64, u64) {
        let unit = 1_000_000_000u64 << guard_limit::GUARD_TIME_SHIFT.0;
        let cost = (unit / self.rate.max(1)).max(1);
        (cost, cost.saturating_mul(self.burst).min(1 << 62))
    }
}

/// What is done about packets beyond rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardLimit {
    /// Packets.
    pub packets: Option<GuardRate>,
    /// Bytes of IP packets.
    pub bytes: Option<GuardRate>,
    /// Counted together or apart.
    pub per: GuardPer,
    /// How long a source that is over it is banned, in nanoseconds; 0: not at all.
    pub ban: u64,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardRule {
    /// Passes what matches.
    Pass,
    /// Drops it.
    Drop,
    /// Drops what is over the limit and passes the rest.
    Limit(GuardLimit),
}

impl GuardRule {
    pub(super) fn value(&self) -> Vec<u8> {
        let (action, limit) = match self {
            Self::Pass => (guard_action::GUARD_PASS, GuardLimit::default()),
            Self::Drop => (guard_action::GUARD_DROP, GuardLimit::default()),
            Self::Limit(limit) => (guard_action::GUARD_LIMIT, *limit),
        };
        let (packet_cost, packet_burst) = limit.packets.map_or((0, 0), GuardRate::times);
        let (byte_cost, byte_burst) = limit.bytes.map_or((0, 0), GuardRate::times);
        let (per, prefix4, prefix6) = match limit.per {
            GuardPer::Rule => (guard_per::GUARD_PER_RULE, 0, 0),
            GuardPer::Source { prefix4, prefix6 } => (guard_per::GUARD_PER_SOURCE, prefix4, prefix6),
            GuardPer::Destination { prefix4, prefix6 } => {
                (guard_per::GUARD_PER_DESTINATION, prefix4, prefix6)
            }
            GuardPer::Port => (guard_per::GUARD_PER_PORT, 0, 0),
        };
        // `struct guard_rule`, whose size is asserted above.
        let words = [packet_cost, packet_burst, byte_cost, byte_burst, limit.ban];
        let mut value: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        value.extend(action.0.to_ne_bytes());
        value.extend((per.0 as u16).to_ne_bytes());
        value.extend([prefix4, prefix6]);
        value
    }
}

/// A list of IPv4 prefixes in the form in which a lookup costs the same however many there are: two bits a /24, and
/// tables for what is longer.
#[derive(Debug)]
pub(super) struct Block4 {
    /// `enum guard_block`, 32 a word.
    pub(super) networks: Vec<u64>,
    /// Single addresses.
    pub(super) hosts: Vec<[u8; 4]>,
    /// Prefixes of 25 to 31 bits, and single addresses of their /24.
    pub(super) long: Vec<GuardPrefix>,
}

impl Block4 {
    /// Words of the table of /24.
    pub(super) const NETWORKS: usize = (1 << 24) / 32;
    const ALL: u64 = 1;
    const HOSTS: u64 = 2;
    const LONG: u64 = 3;

    pub(super) fn of(prefixes: &[GuardPrefix]) -> Self {
        let mut block = Self { networks: vec![0; Self::NETWORKS], hosts: Vec::new(), long: Vec::new() };
        let four = |prefix: &GuardPrefix| match prefix.address {
            IpAddr::V4(address) => Some((u32::from(address), prefix.length)),
            IpAddr::V6(_) => None,
        };
        // Short ones first, then long ones, then hosts: each looks at what is there.
        for (address, length) in prefixes.iter().filter_map(four).filter(|(_, length)| *length <= 24) {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            let first = (address & mask) >> 8;
            for network in first..first + (1u32 << (24 - length)) {
                block.set(network, Self::ALL);
            }
        }
        for (address, length) in
            prefixes.iter().filter_map(four).filter(|(_, length)| (25..32).contains(length))
        {
            if block.state(address >> 8) != Self::ALL {
                block.set(address >> 8, Self::LONG);
                block.long.push(GuardPrefix { address: IpAddr::V4(address.into()), length });
            }
        }
        for (address, _) in prefixes.iter().filter_map(four).filter(|(_, length)| *length >= 32) {
            match block.state(address >> 8) {
                Self::ALL => {}
                Self::LONG => {
                    block.long.push(GuardPrefix { address: IpAddr::V4(address.into()), length: 32 })
                }
                _ => {
                    block.set(address >> 8, Self::HOSTS);
                    block.hosts.push(address.to_be_bytes());
                }
            }
        }
        block
    }

    fn state(&self, network: u32) -> u64 {
        self.networks[network as usize / 32] >> (network % 32 * 2) & 3
    }

    fn set(&mut self, network: u32, state: u64) {
        let word = &mut self.networks[network as usize / 32];
        *word = *word & !(3 << (network % 32 * 2)) | state << (network % 32 * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> GuardPrefix {
        let (address, length) = text.split_once('/').unwrap();
        GuardPrefix { address: address.parse().unwrap(), length: length.parse().unwrap() }
    }

    #[test]
    fn long_prefixes_lie_beside_networks() {
        let list = ["10.0.0.0/8", "192.0.2.1/32", "198.51.100.0/25", "198.51.100.200/32", "10.1.1.1/32"];
        let block = Block4::of(&list.map(prefix));
        let state = |text: &str| block.state(u32::from(text.parse::<std::net::Ipv4Addr>().unwrap()) >> 8);
        assert_eq!(state("10.255.255.0"), Block4::ALL);
        assert_eq!(state("11.0.0.0"), 0);
        assert_eq!(state("192.0.2.0"), Block4::HOSTS);
        assert_eq!(state("198.51.100.0"), Block4::LONG);
        assert_eq!(block.hosts, [[192, 0, 2, 1]]);
        assert_eq!(block.long.len(), 2);
    }

    #[test]
    fn the_whole_internet_is_a_prefix() {
        assert!(
            Block4::of(&[prefix("0.0.0.0/0")]).networks.iter().all(|word| *word == 0x5555_5555_5555_5555)
        );
    }

    #[test]
    fn sets_say_which_words_have_rules() {
        let mut set = GuardSet::default();
        set.insert(0);
        set.insert(1023);
        assert_eq!(&set.value()[..8], (1u64 | 1 << 15).to_ne_bytes());
    }

    #[test]
    fn slow_rates_and_long_bursts_fit() {
        let (cost, burst) = GuardRate { rate: 1, burst: u64::MAX }.times();
        assert_eq!(cost, 1_000_000_000 << 10);
        assert!(i64::try_from(burst).is_ok());
    }
}
