//! The two ends of a conversation, without a direction.

use std::fmt;
use std::net::IpAddr;

use expressway_xbpf::FlowKey;
use serde::{Deserialize, Serialize};

/// An end of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    /// IPv4 or IPv6.
    Ip(IpAddr),
    /// Of packets that are not IP, or whose addresses could not be read.
    Mac([u8; 6]),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Mac([a, b, c, d, e, g]) => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
        }
    }
}

/// The packets of one flow and of the one back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Conversation {
    /// The ethertype; 0 if not even that could be read.
    pub ethertype: u16,
    /// IP's protocol number, or 0.
    pub protocol: u8,
    /// This host's end: the destination of what is received, the source of what is sent.
    pub local: Address,
    /// Its port; 0: none.
    pub local_port: u16,
    /// The other end.
    pub remote: Address,
    /// Its port; 0: none.
    pub remote_port: u16,
}

impl Conversation {
    pub(super) fn of(key: &FlowKey) -> Self {
        let address = |octets: [u8; 16]| match key.is_ip() {
            true => Address::Ip(FlowKey::address(octets)),
            false => Address::Mac([0, 1, 2, 3, 4, 5].map(|at| octets[at])),
        };
        let (source, destination) = (address(key.source), address(key.destination));
        let (local, local_port, remote, remote_port) = match key.out {
            true => (source, key.source_port, destination, key.destination_port),
            false => (destination, key.destination_port, source, key.source_port),
        };
        Self { ethertype: key.ethertype, protocol: key.protocol, local, local_port, remote, remote_port }
    }

    /// `udp`, `tcp`, `arp` and so on; otherwise the number.
    #[must_use]
    pub fn protocol_name(&self) -> String {
        let name = match (self.ethertype, self.protocol) {
            (0x0800 | 0x86dd, 1 | 58) => "icmp",
            (0x0800 | 0x86dd, 2) => "igmp",
            (0x0800 | 0x86dd, 6) => "tcp",
            (0x0800 | 0x86dd, 17) => "udp",
            (0x0800 | 0x86dd, 47) => "gre",
            (0x0800 | 0x86dd, 50) => "esp",
            (0x0800 | 0x86dd, 132) => "sctp",
            (0x0800 | 0x86dd, number) => return format!("ip-{number}"),
            (0x0806, _) => "arp",
            (0x88cc, _) => "lldp",
            (0, _) => "unknown",
            (ethertype, _) => return format!("{ethertype:#06x}"),
        };
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_are_one_conversation() {
        let mapped = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last];
        let key = FlowKey {
            out: false,
            ethertype: 0x0800,
            protocol: 17,
            source: mapped(7),
            destination: mapped(1),
            source_port: 5000,
            destination_port: 443,
        };
        let conversation = Conversation::of(&key);
        assert_eq!(conversation, Conversation::of(&key.reverse()));
        assert_eq!((conversation.local.to_string(), conversation.local_port), ("192.0.2.1".to_owned(), 443));
        assert_eq!(conversation.protocol_name(), "udp");
        let other = FlowKey { ethertype: 0x0806, source: [2; 16], ..key };
        assert_eq!(Conversation::of(&other).remote.to_string(), "02:02:02:02:02:02");
    }
}
