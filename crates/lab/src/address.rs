//! The addresses of a lab. All labs have the same ones; their namespaces keep them apart.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;

use crate::config::{LabConfig, Role};

/// Addresses of one namespace. IPv4 from the benchmarking range (RFC 2544), IPv6 unique local (RFC 4193).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// On the veth itself, /24.
    pub ipv4: Ipv4Addr,
    /// On the veth itself, /64.
    pub ipv6: Ipv6Addr,
    /// On the VLAN interface, /24.
    pub vlan_ipv4: Option<Ipv4Addr>,
    /// On the VLAN interface, /64.
    pub vlan_ipv6: Option<Ipv6Addr>,
    /// A second one on the server's veth.
    pub second_ipv4: Option<Ipv4Addr>,
    /// A second one on the server's veth.
    pub second_ipv6: Option<Ipv6Addr>,
}

impl Addresses {
    /// The addresses that `role` has in a lab so configured.
    pub fn of(config: &LabConfig, role: Role) -> Self {
        let host: u16 = match role {
            Role::Server => 1,
            Role::Client => 2,
        };
        let v4 = |net: u8, host: u16| Ipv4Addr::new(198, 18, net, host as u8);
        let v6 = |net: u16, host: u16| Ipv6Addr::new(0xfd45, 0x7870, 0, net, 0, 0, 0, host);
        let second = config.second_address && role == Role::Server;
        Self {
            ipv4: v4(0, host),
            ipv6: v6(0, host),
            vlan_ipv4: config.vlan.map(|_| v4(1, host)),
            vlan_ipv6: config.vlan.map(|_| v6(1, host)),
            second_ipv4: second.then(|| v4(0, 3)),
            second_ipv6: second.then(|| v6(0, 3)),
        }
    }
}
