//! Ethernet, its tags, and what it carries.

use std::fmt::Write;

use expressway_wire::ethernet::EthernetRepr;
use expressway_wire::protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6};

use super::conversation::Conversations;
use super::line::Bytes;
use super::{TextOptions, arp, ip};

const ETHERTYPE_ARP: u16 = 0x0806;

/// EtherTypes of which only the name is shown.
const NAMES: &[(u16, &str)] = &[
    (ETHERTYPE_IPV4, "IPv4"),
    (ETHERTYPE_IPV6, "IPv6"),
    (ETHERTYPE_ARP, "ARP"),
    (0x8847, "MPLS unicast"),
    (0x8863, "PPPoE D"),
    (0x8864, "PPPoE S"),
    (0x888e, "EAPOL"),
    (0x88cc, "LLDP"),
    (0x88e5, "MACsec"),
    (0x88f7, "PTP"),
    (0x9000, "Loopback"),
];

/// Appends what a frame says; returns the length of its link layer.
pub(super) fn print(
    frame: Bytes<'_>,
    options: &TextOptions,
    conversations: &mut Conversations,
    out: &mut String,
) -> usize {
    let link = match EthernetRepr::parse(frame.captured()) {
        Ok(link) => link,
        Err(error) => {
            let _ = write!(out, "[Ethernet: {error}], length {}", frame.len());
            return frame.captured().len().min(14);
        }
    };
    let name = NAMES.iter().find(|(number, _)| *number == link.ether_type).map(|(_, name)| *name);
    if options.link {
        let _ = write!(out, "{} > {}, ", link.source, link.destination);
        if !options.quiet {
            let _ = write!(out, "ethertype {} ({:#06x}), ", name.unwrap_or("unknown"), link.ether_type);
        }
        let _ = write!(out, "length {}: ", frame.len());
    }
    for tag in link.vlan.as_slice() {
        let _ = write!(out, "vlan {}", tag.id);
        if options.link {
            let _ = write!(out, ", p {}{}", tag.priority, if tag.drop_eligible { ", DEI" } else { "" });
        }
        out.push_str(", ");
    }
    let payload = frame.behind(link.wire_len());
    match link.ether_type {
        ETHERTYPE_IPV4 => ip::print_v4(payload, options, conversations, out),
        ETHERTYPE_IPV6 => ip::print_v6(payload, options, conversations, out),
        ETHERTYPE_ARP => arp::print(payload, out),
        // IEEE 802.3: a length, not a type.
        0..=1500 => {
            let _ = write!(out, "802.3, length {}", link.ether_type);
        }
        other => {
            let _ = match name {
                Some(name) => write!(out, "{name}, length {}", payload.len()),
                None => write!(out, "ethertype {other:#06x}, length {}", payload.len()),
            };
        }
    }
    link.wire_len()
}
