//! Packets of every link type as Ethernet frames.

use expressway_wire::protocol;
use pcap_parser::Linktype;

use crate::Skipped;

/// A packet as an Ethernet frame, and the length of the whole frame.
pub(crate) fn ethernet<'a>(
    link: Linktype,
    data: &'a [u8],
    length: u32,
    scratch: &'a mut Vec<u8>,
) -> Result<(&'a [u8], u32), Skipped> {
    const HEADER: u32 = 14;
    if link == Linktype::ETHERNET {
        return Ok((data, length.max(data.len() as u32)));
    }
    let header = link_header(link).ok_or(Skipped::Unsupported)?;
    let ip = data.get(header..).ok_or(Skipped::Damaged)?;
    let ethertype = match ip.first().map(|byte| byte >> 4) {
        Some(4) => protocol::ETHERTYPE_IPV4,
        Some(6) => protocol::ETHERTYPE_IPV6,
        _ => return Err(Skipped::Unsupported),
    };
    scratch.clear();
    scratch.extend_from_slice(&[0; 12]);
    scratch.extend_from_slice(&ethertype.to_be_bytes());
    scratch.extend_from_slice(ip);
    let whole = length.saturating_sub(header as u32).saturating_add(HEADER);
    Ok((scratch, whole.max(scratch.len() as u32)))
}

/// Bytes before the IP packet of a link type without an Ethernet header (https://www.tcpdump.org/linktypes.html).
fn link_header(link: Linktype) -> Option<usize> {
    const SLL2: i32 = 276;
    match link {
        Linktype::RAW | Linktype::IPV4 | Linktype::IPV6 => Some(0),
        // Of some systems' captures.
        Linktype(12 | 14) => Some(0),
        Linktype::NULL | Linktype::LOOP => Some(4),
        Linktype::LINUX_SLL => Some(16),
        Linktype(SLL2) => Some(20),
        _ => None,
    }
}
