//! ARP (RFC 826) of Ethernet and IPv4.

use std::fmt::Write;
use std::net::Ipv4Addr;

use expressway_wire::MacAddr;

use super::line::Bytes;

pub(super) fn print(packet: Bytes<'_>, out: &mut String) {
    let length = packet.len();
    let of_ipv4 = packet.array(0) == Some([0, 1, 8, 0, 6, 4]);
    let fields = || {
        let operation = packet.u16(6)?;
        let sender = (packet.array(8).map(MacAddr)?, packet.array(14).map(Ipv4Addr::from)?);
        Some((operation, sender, packet.array(24).map(Ipv4Addr::from)?))
    };
    out.push_str("ARP, ");
    let _ = match fields().filter(|_| of_ipv4) {
        Some((1, (_, sender), target)) if sender == target => write!(out, "Announcement {sender}"),
        Some((1, (_, sender), target)) => write!(out, "Request who-has {target} tell {sender}"),
        Some((2, (mac, sender), _)) => write!(out, "Reply {sender} is-at {mac}"),
        Some((other, _, _)) => write!(out, "operation {other}"),
        None if of_ipv4 => write!(out, "[truncated]"),
        None => write!(out, "of other networks"),
    };
    let _ = write!(out, ", length {length}");
}
