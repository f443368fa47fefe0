//! UDP (RFC 768), and the protocol that a datagram seems to carry.

use std::fmt::Write;
use std::net::SocketAddr;

use expressway_sequence::mold::{Downstream, Kind};

use super::conversation::{Conversations, Pair};
use super::ip::Header;
use super::line::Bytes;
use super::{Payload, TextOptions, quic, rtp};

/// The port of HTTP/3.
const HTTPS: u16 = 443;

pub(super) fn print(
    header: &Header<'_>,
    options: &TextOptions,
    conversations: &mut Conversations,
    out: &mut String,
) {
    let datagram = header.payload;
    let fields = || Some((datagram.u16(0)?, datagram.u16(2)?, datagram.u16(4)?));
    let Some((source, destination, length)) = fields() else {
        let _ = write!(out, "UDP [truncated], length {}", datagram.len());
        return;
    };
    // 0: datagrams that a device is to cut (GSO) are longer than the field can say.
    let length = if length == 0 { datagram.len() } else { usize::from(length) };
    if length < 8 {
        let _ = write!(out, "UDP [length {length}]");
        return;
    }
    let payload = datagram.limit(length).behind(8);
    let pair = Pair {
        source: SocketAddr::new(header.source, source),
        destination: SocketAddr::new(header.destination, destination),
    };
    let known = match options.payload {
        _ if options.quiet => false,
        Some(Payload::Opaque) => false,
        Some(Payload::Quic) => quic::print(payload, pair, conversations, true, out),
        Some(Payload::Rtp) => rtp::print(payload, pair, conversations, true, out),
        Some(Payload::Mold) => mold(payload, out),
        None => {
            let https = source == HTTPS || destination == HTTPS;
            quic::print(payload, pair, conversations, https, out)
                || mold(payload, out)
                || rtp::print(payload, pair, conversations, false, out)
        }
    };
    if !known {
        out.push_str("UDP");
    }
    let _ = write!(out, ", length {}", payload.len());
}

/// MoldUDP64 is what has a session's name and blocks that fill the datagram to its last octet.
fn mold(payload: Bytes<'_>, out: &mut String) -> bool {
    let Ok(packet) = Downstream::parse(payload.captured()) else { return false };
    let blocks: usize = packet.messages().map(|message| message.len() + 2).sum();
    let name = packet.session.0;
    let is_name = name[0].is_ascii_alphanumeric()
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b' ' || *byte == b'_');
    if !payload.is_whole() || !is_name || payload.len() != blocks + expressway_sequence::mold::HEADER_LEN {
        return false;
    }
    let _ = write!(out, "MoldUDP64 session {} seq {}", packet.session, packet.sequence);
    let _ = match packet.kind() {
        Kind::Messages => write!(out, " count {}", packet.len()),
        Kind::Heartbeat => write!(out, " heartbeat"),
        Kind::EndOfSession => write!(out, " end of session"),
    };
    true
}
