//! IPv4 and IPv6, as far as captured, and what they carry.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use expressway_wire::ethernet::EthernetRepr;
use expressway_wire::ipv6_ext::Extensions;
use expressway_wire::protocol::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, FRAGMENT, UDP};

use super::conversation::Conversations;
use super::line::Bytes;
use super::{Addresses, TextOptions, icmp, tcp, udp};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const ICMPV6: u8 = 58;

/// What an IP header says.
#[derive(Clone, Copy)]
pub(super) struct Header<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) protocol: u8,
    /// Of a fragment, and whether more of them follow.
    fragment: Option<(u32, bool)>,
    pub(super) payload: Bytes<'a>,
}

/// Protocols above IP of which only the name is shown.
const NAMES: &[(u8, &str)] = &[
    (0, "hop-by-hop"),
    (ICMP, "ICMP"),
    (2, "IGMP"),
    (4, "IPIP"),
    (TCP, "TCP"),
    (UDP, "UDP"),
    (41, "IPv6"),
    (47, "GRE"),
    (50, "ESP"),
    (51, "AH"),
    (ICMPV6, "ICMPv6"),
    (59, "no next header"),
    (89, "OSPF"),
    (103, "PIM"),
    (112, "VRRP"),
    (132, "SCTP"),
    (136, "UDPLite"),
];

fn name(protocol: u8) -> Option<&'static str> {
    NAMES.iter().find(|(number, _)| *number == protocol).map(|(_, name)| *name)
}

pub(super) fn print_v4(
    packet: Bytes<'_>,
    options: &TextOptions,
    conversations: &mut Conversations,
    out: &mut String,
) {
    out.push_str("IP ");
    let Some(header) = v4(packet) else {
        let _ = write!(out, "[truncated or malformed header], length {}", packet.len());
        return;
    };
    if options.verbose {
        let word = |at| packet.u16(at).unwrap_or_default();
        let byte = |at| packet.u8(at).unwrap_or_default();
        let flags = match word(6) >> 13 {
            0 => "none",
            1 => "+",
            2 => "DF",
            _ => "other",
        };
        let (tos, ttl, id, offset) = (byte(1), byte(8), word(4), u32::from(word(6) & 0x1fff) * 8);
        let _ = write!(out, "(tos {tos:#x}, ttl {ttl}, id {id}, offset {offset}, flags [{flags}], ");
        let _ = write!(
            out,
            "proto {} ({}), length {}) ",
            name(header.protocol).unwrap_or("unknown"),
            header.protocol,
            word(2)
        );
    }
    print(&header, options, conversations, out);
}

pub(super) fn print_v6(
    packet: Bytes<'_>,
    options: &TextOptions,
    conversations: &mut Conversations,
    out: &mut String,
) {
    out.push_str("IP6 ");
    let Some(header) = v6(packet) else {
        let _ = write!(out, "[truncated or malformed header], length {}", packet.len());
        return;
    };
    if options.verbose {
        let first = packet.u32(0).unwrap_or_default();
        let (class, label) = (first >> 20 & 0xff, first & 0xf_ffff);
        let limit = packet.u8(7).unwrap_or_default();
        let _ = write!(out, "(class {class:#x}, flowlabel {label:#07x}, hlim {limit}, next-header ");
        let _ = write!(
            out,
            "{} ({}), payload length {}) ",
            name(header.protocol).unwrap_or("unknown"),
            header.protocol,
            packet.u16(4).unwrap_or_default()
        );
    }
    print(&header, options, conversations, out);
}

/// The header of an IPv4 packet; `None` if it is cut off or makes no sense.
fn v4(packet: Bytes<'_>) -> Option<Header<'_>> {
    let first = packet.u8(0)?;
    let length = usize::from(first & 15) * 4;
    if first >> 4 != 4 || length < 20 {
        return None;
    }
    let field = packet.u16(6)?;
    let (offset, more) = (u32::from(field & 0x1fff) * 8, field & 0x2000 != 0);
    // 0: segments that a device is to cut (TSO) are longer than the field can say.
    let total = match usize::from(packet.u16(2)?) {
        0 => packet.len(),
        total => total,
    };
    Some(Header {
        source: Ipv4Addr::from(packet.array(12)?).into(),
        destination: Ipv4Addr::from(packet.array(16)?).into(),
        protocol: packet.u8(9)?,
        fragment: (offset > 0 || more).then_some((offset, more)),
        payload: packet.limit(total).behind(length),
    })
}

/// The same of an IPv6 packet; its payload is behind the extension headers that were captured.
fn v6(packet: Bytes<'_>) -> Option<Header<'_>> {
    if packet.u8(0)? >> 4 != 6 {
        return None;
    }
    let length = match usize::from(packet.u16(4)?) {
        0 => packet.len(),
        length => length + 40,
    };
    let payload = packet.limit(length).behind(40);
    let (mut protocol, mut behind, mut fragment) = (packet.u8(6)?, 0, None);
    for extension in Extensions::new(protocol, payload.captured()) {
        // What is cut off, or one too many, is what is shown.
        let Ok(extension) = extension else { break };
        (protocol, behind) = (extension.next_header, extension.offset + extension.bytes.len());
        if extension.kind == FRAGMENT {
            let field = u16::from_be_bytes([extension.bytes[2], extension.bytes[3]]);
            fragment = Some((u32::from(field & 0xfff8), field & 1 != 0));
            if field & 0xfff8 != 0 {
                break;
            }
        }
    }
    Some(Header {
        source: Ipv6Addr::from(packet.array(8)?).into(),
        destination: Ipv6Addr::from(packet.array(24)?).into(),
        protocol,
        fragment,
        payload: payload.behind(behind),
    })
}

fn print(header: &Header<'_>, options: &TextOptions, conversations: &mut Conversations, out: &mut String) {
    let Header { source, destination, protocol, payload, fragment } = *header;
    // Ports are in the first fragment alone.
    let whole = fragment.is_none_or(|(offset, _)| offset == 0);
    if let Some((source_port, port)) = ports(header) {
        let _ = write!(out, "{source}.{source_port} > {destination}.{port}: ");
    } else {
        let _ = write!(out, "{source} > {destination}: ");
    }
    if let Some((offset, more)) = fragment {
        let _ = write!(out, "fragment {offset}{}, ", if more { "+" } else { "" });
    }
    match protocol {
        UDP if whole => udp::print(header, options, conversations, out),
        TCP if whole => tcp::print(payload, options, out),
        ICMP if whole => icmp::print_v4(payload, out),
        ICMPV6 if whole => icmp::print_v6(payload, out),
        other => {
            let _ = match name(other) {
                Some(name) => write!(out, "{name}, length {}", payload.len()),
                None => write!(out, "ip-proto-{other}, length {}", payload.len()),
            };
        }
    }
}

fn ports(header: &Header<'_>) -> Option<(u16, u16)> {
    let first = header.fragment.is_none_or(|(offset, _)| offset == 0);
    let has = first && matches!(header.protocol, UDP | TCP);
    has.then(|| Some((header.payload.u16(0)?, header.payload.u16(2)?))).flatten()
}

/// Who speaks to whom in a frame, if it is IP.
pub(super) fn addresses(frame: &[u8]) -> Option<Addresses> {
    let link = EthernetRepr::parse(frame).ok()?;
    let packet = Bytes::new(frame, frame.len()).behind(link.wire_len());
    let header = match link.ether_type {
        ETHERTYPE_IPV4 => v4(packet),
        ETHERTYPE_IPV6 => v6(packet),
        _ => None,
    }?;
    let Header { source, destination, protocol, .. } = header;
    Some(Addresses { source, destination, protocol, ports: ports(&header) })
}
