//! The seeds that a corpus starts from: one input for each branch that random bytes would be long in finding.

mod agent;
mod bridge;
mod cache;
mod capture;
mod fanout;
mod moq;
mod observe;
mod quic;
mod relay;
mod tcp;
mod web;
mod webrtc;

use expressway_wire::{ChecksumMode, MacAddr, UdpHeaders, VlanTag, VlanTags};

/// A named input.
pub type Seed = (String, Vec<u8>);

/// The seeds of a target; none for a name that is no target.
pub fn of(target: &str) -> Vec<Seed> {
    let named = |seeds: &[(&str, Vec<u8>)]| {
        seeds.iter().map(|(name, bytes)| (format!("seed-{name}"), bytes.clone())).collect()
    };
    let layer = |family: char, skip: usize| -> Vec<(&str, Vec<u8>)> {
        let frames =
            frames().into_iter().filter(|(name, _)| name.starts_with(family) && !name.contains("vlan"));
        frames.map(|(name, bytes)| (name, bytes[skip..].to_vec())).collect()
    };
    match target {
        "wire_frame" | "wire_ethernet" => named(&frames()),
        "wire_ipv4" => named(&layer('4', 14)),
        "wire_ipv6" => named(&layer('6', 14)),
        "wire_udp" => named(&[("ipv4", frame(4, 0)[34..].to_vec()), ("ipv6", frame(6, 0)[54..].to_vec())]),
        "wire_build" => named(&builds()),
        "wire_checksum" => named(&[("ones", vec![0xff; 75]), ("zeros", vec![0; 40]), ("text", frame(6, 2))]),
        "h3_request" => named(&requests()),
        "h3_control" => named(&controls()),
        "h3_instructions" => named(&instructions()),
        "h3_qpack" => named(&sections()),
        "h3_webtransport" => named(&capsules()),
        "sequence_mold" => named(&packets()),
        "sequence_arbiter" => named(&feeds()),
        "agent_request" => named(&agent::requests()),
        "agent_reply" => named(&agent::replies()),
        "capture_replay" => named(&capture::files(&frame(4, 1), &frame(6, 0))),
        "cache_policy" => named(&cache::exchanges()),
        "cache_record" => named(&cache::records()),
        "cache_store" => named(&cache::stores()),
        "tcp_proxy" => named(&tcp::headers()),
        "web_rules" => named(&web::ruled()),
        "capture_text" => named(&observe::inputs(&frame(4, 1), &frame(6, 0))),
        "web_request" => named(&web::requests()),
        "web_access_log" => named(&web::lines()),
        "fanout_handshake" => named(&fanout::handshakes()),
        "fanout_websocket" => named(&fanout::frames()),
        "quic_endpoint" => named(&quic::scripts()),
        "moq_message" => named(&moq::messages()),
        "moq_session" => named(&moq::scripts()),
        "relay_room" => named(&relay::rooms()),
        "relay_bridge" => named(&bridge::scripts()),
        "relay_demux" => named(&relay::datagrams()),
        "relay_offer" => named(&relay::offers()),
        "webrtc_session" => named(&webrtc::scripts()),
        _ => Vec::new(),
    }
}

/// Inputs of the request target: the size of chunks, then frames.
fn requests() -> Vec<(&'static str, Vec<u8>)> {
    let get = b"\x01\x12\x00\x00\xd1\xd7\x50\x01a\x51\x09/bytes/10";
    let with = |size: u8, rest: &[u8]| [&[size], get.as_slice(), rest].concat();
    vec![
        ("get", with(255, b"")),
        ("cut", with(3, b"")),
        ("body-trailers", with(2, b"\x00\x02ab\x00\x00\x00\x01c\x01\x06\x00\x00\x21x\x01y")),
        ("grease", with(1, b"\x40\x5f\x02\x00\x00")),
        ("too-long", b"\x01\x01\x44\x00\x00".to_vec()),
        ("http2", with(1, b"\x06\x00")),
        ("data-first", b"\x01\x00\x01x".to_vec()),
        ("end-within", with(1, b"\x00\x05x")),
    ]
}

/// Inputs of the control target: the size of chunks, then what follows the stream type.
fn controls() -> Vec<(&'static str, Vec<u8>)> {
    let with = |rest: &[u8]| [&[2, 4, 3, 6, 0x40, 0x64], rest].concat();
    vec![
        ("settings", with(b"")),
        ("priority", with(b"\x80\x0f\x07\x00\x04\x04u=1")),
        ("ids", with(b"\x0d\x01\x05\x07\x01\x04\x07\x01\x00")),
        ("ids-wrong", with(b"\x0d\x01\x05\x0d\x01\x04")),
        ("grease", with(b"\x21\x03abc")),
        ("none", b"\x01\x07\x01\x00".to_vec()),
    ]
}

/// Inputs of the target of QPACK streams: the size of chunks, then instructions.
fn instructions() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("capacity-0", b"\x01\x20\x20".to_vec()),
        ("capacity", b"\x01\x3f\x80\x01".to_vec()),
        ("cancellations", b"\x03\x40\x44\x7f\x81\x01\x48".to_vec()),
        ("endless", b"\x02\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff".to_vec()),
        ("acknowledgment", b"\x01\x84".to_vec()),
    ]
}

/// Capsules, and heads of streams.
fn capsules() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("close", b"\x01\x68\x43\x07\x00\x00\x00\x03bye".to_vec()),
        ("close-long", b"\x05\x68\x43\x7f\xff".to_vec()),
        ("drain", b"\x02\x80\x00\x78\xae\x00".to_vec()),
        (
            "limits",
            b"\x03\x99\x0b\x4d\x3d\x01\x09\x99\x0b\x4d\x3f\x02\x40\x09\x99\x0b\x4d\x40\x01\x00".to_vec(),
        ),
        ("unknown", b"\x04\x4a\xbc\x03abc\x4a\xbd\x00".to_vec()),
        ("both", b"\x01\x40\x41\x40\x04\x01".to_vec()),
        ("one", b"\x01\x40\x54\x00\x01".to_vec()),
    ]
}

/// Header sections.
fn sections() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("get", b"\x00\x00\xd1\xd7\x50\x01a\x51\x0b/index.html".to_vec()),
        ("huffman", b"\x00\x00\x2a\xf2\xff\x81\x07".to_vec()),
        ("literal", b"\x00\x00\x27\x00abcdefg\x01v\x31x\x01v".to_vec()),
        ("long-integer", b"\x00\x00\x51\x7f\xff\xff\xff\xff\xff\xff\xff\xff\x01".to_vec()),
        ("dynamic", b"\x03\x81\x10\x11".to_vec()),
        ("last-entry", b"\x00\x00\xff\x23".to_vec()),
    ]
}

/// MoldUDP64 packets.
fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let header = |count: &[u8; 2]| [b"SESSION   \0\0\0\0\0\0\0\x05".as_slice(), count].concat();
    let with = |count, rest: &[u8]| [header(count).as_slice(), rest].concat();
    vec![
        ("heartbeat", header(b"\0\0")),
        ("end", header(b"\xff\xff")),
        ("end-trailing", with(b"\xff\xff", b"x")),
        ("messages", with(b"\0\x03", b"\0\x02ab\0\0\0\x01c")),
        ("cut", with(b"\0\x02", b"\0\x02ab\0\x05cd")),
        ("overflow", [b"SESSION   \xff\xff\xff\xff\xff\xff\xff\xff\0\x01\0\0".as_slice()].concat()),
    ]
}

/// Steps of feeds, as the target reads them: a setting, then kind and line, distance, amount.
fn feeds() -> Vec<(&'static str, Vec<u8>)> {
    let steps = |setting: u8, steps: &[[u8; 3]]| [&[setting], steps.concat().as_slice()].concat();
    let (a, b, reply) = (0x10, 0x11, 0x12);
    vec![
        ("mold-in-order", steps(30, &[[a, 0, 2], [b, 0xfe, 2], [a, 0, 3]])),
        ("mold-hole-filled", steps(30, &[[a, 0, 1], [a, 4, 1], [b, 0xfb, 5]])),
        ("mold-reply", steps(30, &[[a, 0, 1], [a, 4, 1], [4, 0, 1], [a, 0, 0], [reply, 0xfb, 4]])),
        ("mold-late", steps(30, &[[a, 0, 1], [a, 4, 1], [4, 0, 1], [b, 0xfb, 4]])),
        ("mold-sessions", steps(30, &[[a, 0, 1], [0x30, 2, 1], [b, 0, 1], [0x31, 0, 1], [0x0c, 0, 0]])),
        ("mold-restart", steps(30, &[[a, 0, 1], [4, 0, 200], [a, 0xf0, 1], [b, 0, 1]])),
        ("mold-raw", steps(30, &[[0, 0, 2], [1, 2, 0]])),
        ("plain-window", steps(3, &[[a, 0, 1], [a, 2, 1], [a, 2, 1], [b, 0xf8, 1], [a, 3, 0]])),
        ("plain-reset", steps(3, &[[a, 0, 1], [b, 0, 1], [a, 0x90, 0], [b, 0, 0], [b, 0x90, 0]])),
        ("plain-wrap", steps(3, &[[a, 0, 1], [8, 0, 63], [8, 0, 63], [a, 0x80, 1], [a, 0x80, 1]])),
    ]
}

fn headers(version: u8, tags: usize) -> UdpHeaders {
    let (source, destination) = match version {
        4 => ("192.0.2.1:4433", "198.51.100.7:50000"),
        _ => ("[2001:db8::1]:4433", "[2001:db8::7]:50000"),
    };
    let parse = |text: &str| text.parse().expect("a literal address");
    let mut headers = UdpHeaders::new(
        MacAddr([2, 0, 0, 0, 0, 1]),
        MacAddr([2, 0, 0, 0, 0, 2]),
        parse(source),
        parse(destination),
    );
    let all = [VlanTag::service(100), VlanTag::customer(200)];
    headers.vlan = VlanTags::new(&all[2 - tags..]).expect("valid tags");
    headers
}

fn with_payload(headers: &UdpHeaders, payload: &[u8], mode: ChecksumMode) -> Vec<u8> {
    let mut frame = vec![0; headers.header_len()];
    frame.extend_from_slice(payload);
    headers.write(&mut frame, payload.len(), mode, 7).expect("a valid seed");
    frame
}

fn frame(version: u8, tags: usize) -> Vec<u8> {
    with_payload(&headers(version, tags), b"a datagram that is longer than padding", ChecksumMode::Full)
}

/// An IPv6 frame with these extension headers in front of UDP.
fn extended(first: u8, chain: &[u8]) -> Vec<u8> {
    let mut frame = frame(6, 0);
    frame.splice(54..54, chain.iter().copied());
    let length = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame[20] = first;
    frame
}

/// An IPv4 frame with these options; the target makes its header checksum right.
fn with_options(options: &[u8]) -> Vec<u8> {
    let mut frame = frame(4, 0);
    frame.splice(34..34, options.iter().copied());
    frame[14] = 0x45 + (options.len() / 4) as u8;
    let length = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    frame
}

fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(60) + 4, 0xee);
    frame
}

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let short = |version| padded(with_payload(&headers(version, 0), b"x", ChecksumMode::Full));
    let mut fragment = frame(4, 0);
    fragment[20] = 0x20;
    vec![
        ("4-plain", frame(4, 0)),
        ("4-vlan", frame(4, 1)),
        ("4-vlan-qinq", frame(4, 2)),
        ("4-padded", short(4)),
        ("4-no-checksum", with_payload(&headers(4, 0), b"data", ChecksumMode::None)),
        ("4-partial-checksum", with_payload(&headers(4, 0), b"data", ChecksumMode::PseudoOnly)),
        ("4-options", with_options(&[1, 7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0])),
        ("4-source-route", with_options(&[131, 7, 4, 192, 0, 2, 9, 0])),
        ("4-fragment", fragment),
        ("6-plain", frame(6, 0)),
        ("6-vlan", frame(6, 1)),
        ("6-vlan-qinq", frame(6, 2)),
        ("6-padded", short(6)),
        ("6-partial-checksum", with_payload(&headers(6, 0), b"data", ChecksumMode::PseudoOnly)),
        ("6-hop-by-hop", extended(0, &[17, 0, 5, 2, 0, 0, 1, 0])),
        ("6-routing", extended(43, &[17, 0, 2, 0, 0, 0, 0, 0])),
        ("6-routing-pending", extended(43, &[17, 0, 2, 1, 0, 0, 0, 0])),
        ("6-destination-options", extended(60, &[17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("6-fragment", extended(44, &[17, 0, 0, 1, 0, 0, 0, 9])),
        (
            "6-chain",
            extended(0, &[60, 0, 1, 4, 0, 0, 0, 0, 43, 0, 1, 4, 0, 0, 0, 0, 17, 0, 2, 0, 0, 0, 0, 0]),
        ),
    ]
}

/// Inputs of the build target: 64 bytes of fields, then the payload.
fn builds() -> Vec<(&'static str, Vec<u8>)> {
    let fields = |flags: u8, mode: u8| {
        let mut bytes = vec![0; 64];
        (bytes[0], bytes[1]) = (flags, mode);
        bytes[4..20].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes[20..36].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        bytes[36..44].copy_from_slice(&[1, 187, 200, 0, 46, 2, 64, 0]);
        bytes[44..48].copy_from_slice(&[0x81, 0, 0x20, 9]);
        bytes.extend_from_slice(b"payload");
        bytes
    };
    vec![
        ("ipv4-full", fields(0, 0)),
        ("ipv4-pseudo", fields(4, 1)),
        ("ipv4-none", fields(8, 2)),
        ("ipv6-full", fields(3, 0)),
        ("ipv6-pseudo", fields(7, 1)),
        ("ipv6-none", fields(11, 2)),
        ("mixed", fields(1, 0)),
    ]
}
