use expressway_wire::{ChecksumMode, MAX_HEADER_LEN, MacAddr, UdpHeaders, VlanTag, VlanTags};
use proptest::prelude::*;

use super::*;
use crate::{Process, TxMetadata};

fn options() -> TextOptions {
    TextOptions { time: TimeFormat::None, ..TextOptions::default() }
}

fn packet(data: &[u8]) -> Packet<'_> {
    Packet {
        time: 1_800_000_000_123_456_789,
        interface: 1,
        queue: None,
        point: Point::KernelReceive,
        id: None,
        verdict: None,
        metadata: None,
        drop: None,
        process: None,
        length: data.len() as u32,
        data,
    }
}

fn headers(source: &str, destination: &str) -> UdpHeaders {
    let (from, to) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
    UdpHeaders::new(from, to, source.parse().unwrap(), destination.parse().unwrap())
}

fn frame(headers: &UdpHeaders, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; headers.header_len()];
    frame.extend_from_slice(payload);
    headers.write(&mut frame, payload.len(), ChecksumMode::Full, 7).unwrap();
    assert!(headers.header_len() <= MAX_HEADER_LEN);
    frame
}

fn v4(payload: &[u8]) -> Vec<u8> {
    frame(&headers("192.0.2.1:4433", "198.51.100.7:50000"), payload)
}

/// The line of one packet.
fn line(options: TextOptions, packet: &Packet<'_>) -> String {
    let mut out = String::new();
    Printer::new(options).print("", packet, &mut out);
    out.trim_end().to_owned()
}

/// An IPv4 frame of another protocol.
fn ip(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = v4(payload);
    frame.drain(34..42);
    frame[23] = protocol;
    let length = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    frame
}

#[test]
fn a_line_says_when_where_what_became_of_it_and_whose_it_is() {
    let frame = v4(b"hello");
    let mut packet = packet(&frame);
    packet.queue = Some(3);
    let said = |packet: &Packet<'_>| {
        let mut out = String::new();
        let epoch = TextOptions { time: TimeFormat::Epoch, number: true, ..options() };
        Printer::new(epoch).print("eth0\x1b", packet, &mut out);
        out
    };
    let what = "IP 192.0.2.1.4433 > 198.51.100.7.50000: UDP, length 5";
    let start = "    1  1800000000.123456 eth0\\u{1b}";
    assert_eq!(said(&packet), format!("{start} In  q3 {what}\n"));
    packet.point = Point::XdpExit;
    packet.verdict = Some(Verdict::Redirect { error: None });
    packet.process = Some(Process { id: 12, name: "a\nb" });
    assert_eq!(said(&packet), format!("{start} In  q3 redirect {what} [a\\nb 12]\n"));
    packet.verdict = Some(Verdict::Redirect { error: Some(28) });
    packet.drop = Some("ring full");
    packet.process = None;
    assert_eq!(said(&packet), format!("{start} In  q3 redirect failed ENOSPC {what} [dropped: ring full]\n"));
    packet.point = Point::XskTransmit { zero_copy: true };
    packet.metadata = Some(TxMetadata { checksum: Some((34, 6)), timestamp: true, launch_time: Some(7) });
    (packet.verdict, packet.drop) = (None, None);
    let asked = "[tx metadata checksum=34+6 timestamp launch=7]";
    assert_eq!(said(&packet), format!("{start} Out q3 xsk zero-copy {what} {asked}\n"));
    (packet.point, packet.queue, packet.metadata) = (Point::XdpTransmit, None, None);
    packet.verdict = Some(Verdict::Redirect { error: None });
    assert_eq!(said(&packet), format!("{start} Out xdp redirect {what}\n"));
}

#[test]
fn headers_are_shown_when_asked_for() {
    let mut tagged = headers("[2001:db8::1]:4433", "[2001:db8::7]:50000");
    tagged.vlan = VlanTags::new(&[VlanTag::service(100), VlanTag::customer(7)]).unwrap();
    let frame = frame(&tagged, b"hello");
    assert_eq!(
        line(options(), &packet(&frame)),
        "In  vlan 100, vlan 7, IP6 2001:db8::1.4433 > 2001:db8::7.50000: UDP, length 5"
    );
    let all = TextOptions { link: true, verbose: true, ..options() };
    assert_eq!(
        line(all, &packet(&frame)),
        "In  02:00:00:00:00:01 > 02:00:00:00:00:02, ethertype IPv6 (0x86dd), length 75: vlan 100, p 0, vlan 7, p 0, \
         IP6 (class 0x0, flowlabel 0x00000, hlim 64, next-header UDP (17), payload length 13) \
         2001:db8::1.4433 > 2001:db8::7.50000: UDP, length 5"
    );
    let said = line(all, &packet(&v4(b"x")));
    assert!(said.contains("IP (tos 0x0, ttl 64, id 7, offset 0, flags ["), "{said}");
    let dump = Dump { hex: true, ascii: true, link: false };
    let said = line(TextOptions { dump, ..options() }, &packet(&v4(b"hello")));
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(said.ends_with("  o") && said.contains("\n\t0x0000:  4500 0021"), "{said}");
}

#[test]
fn arp_icmp_and_tcp_read_as_in_tcpdump() {
    let arp = |operation: u8, sender: u8, target: u8| {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
        frame.extend([2, 0, 0, 0, 0, 1, 192, 0, 2, sender, 0, 0, 0, 0, 0, 0, 192, 0, 2, target]);
        line(options(), &packet(&frame))
    };
    assert_eq!(arp(1, 1, 2), "In  ARP, Request who-has 192.0.2.2 tell 192.0.2.1, length 28");
    assert_eq!(arp(2, 1, 2), "In  ARP, Reply 192.0.2.1 is-at 02:00:00:00:00:01, length 28");
    let ends = "In  IP 192.0.2.1 > 198.51.100.7: ";
    let echo = ip(1, &[8, 0, 0, 0, 0, 5, 0, 9, 1, 2]);
    assert_eq!(line(options(), &packet(&echo)), format!("{ends}ICMP echo request, id 5, seq 9, length 10"));
    let unreachable = ip(1, &[3, 4, 0, 0, 0, 0, 5, 0xdc]);
    assert_eq!(
        line(options(), &packet(&unreachable)),
        format!("{ends}ICMP unreachable - need to frag (mtu 1500), length 8")
    );
    let mut syn = vec![0x11, 0x51, 0xc3, 0x50, 0, 0, 0, 9, 0, 0, 0, 0, 0xa0, 2, 0xff, 0xff, 0, 0, 0, 0];
    syn.extend([2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]);
    assert_eq!(
        line(options(), &packet(&ip(6, &syn))),
        "In  IP 192.0.2.1.4433 > 198.51.100.7.50000: Flags [S], seq 9, win 65535, options [mss 1460,sackOK,TS val 1 ecr 0,\
         nop,wscale 7], length 0"
    );
    syn[12] = 0x50;
    syn[13] = 0x18;
    let quiet = TextOptions { quiet: true, ..options() };
    assert!(
        line(options(), &packet(&ip(6, &syn))).ends_with("Flags [P.], seq 9:29, ack 0, win 65535, length 20")
    );
    assert!(line(quiet, &packet(&ip(6, &syn))).ends_with(": tcp 20"));
    assert_eq!(line(options(), &packet(&ip(47, b"abc"))), format!("{ends}GRE, length 3"));
    assert_eq!(line(options(), &packet(&ip(200, b"abc"))), format!("{ends}ip-proto-200, length 3"));
}

#[test]
fn fragments_and_what_is_cut_off_are_told() {
    let mut fragment = v4(&[0; 40]);
    fragment[20] = 0x20;
    let said = line(options(), &packet(&fragment));
    assert!(said.contains("192.0.2.1.4433 > 198.51.100.7.50000: fragment 0+, UDP, length 40"), "{said}");
    fragment[21] = 1;
    let said = line(options(), &packet(&fragment));
    assert!(said.contains("192.0.2.1 > 198.51.100.7: fragment 8+, UDP, length 48"), "{said}");
    let whole = v4(&[0; 40]);
    let mut cut = packet(&whole[..44]);
    cut.length = whole.len() as u32;
    assert!(line(options(), &cut).ends_with(": UDP, length 40"));
    cut.data = &whole[..36];
    assert!(line(options(), &cut).ends_with("UDP [truncated], length 48"));
    cut.data = &whole[..20];
    assert!(line(options(), &cut).ends_with("IP [truncated or malformed header], length 68"));
}

/// An Initial packet with a token, of a length that is given, and a Handshake packet behind it.
fn initial_and_handshake(version: u32) -> Vec<u8> {
    let (initial, handshake) = if version == 1 { (0xc0, 0xe0) } else { (0xd0, 0xf0) };
    let long = |first: u8| [&[first], &version.to_be_bytes()[..], &[4, 1, 2, 3, 4, 2, 0xaa, 0xbb]].concat();
    [
        &long(initial)[..],
        &[2, 9, 9, 0x40, 30],
        &[0; 30],
        &long(handshake),
        &[3, 0, 0, 0],
        &[0x40, 1, 2, 3, 4, 5, 6],
    ]
    .concat()
}

#[test]
fn quic_is_told_from_its_headers_coalesced_too() {
    for (version, name) in [(1, "v1"), (0x6b33_43cf, "v2")] {
        let datagram = initial_and_handshake(version);
        let frame = v4(&datagram);
        let said = line(options(), &packet(&frame));
        let wanted = format!(
            "QUIC {name} Initial dcid 01020304 scid aabb token 2 (30) | Handshake (3) | 1-RTT dcid 01020304, length {}",
            datagram.len()
        );
        assert!(said.ends_with(&wanted), "{said}");
    }
    let negotiation = [&[0x80, 0, 0, 0, 0, 0, 0][..], &1u32.to_be_bytes()].concat();
    let said = line(options(), &packet(&v4(&negotiation)));
    assert!(said.ends_with("QUIC Version Negotiation dcid - scid - versions 00000001, length 11"), "{said}");
    let retry = [&[0xf0, 0, 0, 0, 1, 0, 1, 7][..], &[1; 20]].concat();
    let said = line(options(), &packet(&v4(&retry)));
    assert!(said.ends_with("QUIC v1 Retry dcid - scid 07 token 4, length 28"), "{said}");
}

#[test]
fn short_headers_are_told_by_what_went_before_or_by_the_port() {
    let mut printer = Printer::new(options());
    let mut say = |from: &str, to: &str, payload: &[u8]| {
        let mut out = String::new();
        let frame = frame(&headers(from, to), payload);
        printer.print("", &packet(&frame), &mut out);
        out.trim_end().split(": ").nth(1).unwrap().to_owned()
    };
    let (client, server) = ("192.0.2.1:4433", "198.51.100.7:50000");
    assert_eq!(say(server, client, &[0x60, 0xaa, 0xbb, 9]), "UDP, length 4");
    say(client, server, &initial_and_handshake(1));
    assert_eq!(say(server, client, &[0x60, 0xaa, 0xbb, 9]), "QUIC 1-RTT dcid aabb spin, length 4");
    assert_eq!(say(client, server, &[0x00, 1, 2, 3, 4, 9]), "QUIC 1-RTT dcid 01020304, length 6");
    assert_eq!(say("192.0.2.9:443", server, &[0x40, 1, 2]), "QUIC 1-RTT, length 3");
}

#[test]
fn rtp_is_believed_from_the_second_packet_on() {
    let mut printer = Printer::new(options());
    let mut say = |sequence: u8, kind: u8| {
        let mut out = String::new();
        let payload = [0x80, kind, 0, sequence, 0, 0, 0, 9, 0, 0, 1, 0, 5, 5];
        printer.print("", &packet(&v4(&payload)), &mut out);
        out.trim_end().split(": ").nth(1).unwrap().to_owned()
    };
    assert_eq!(say(1, 96), "UDP, length 14");
    assert_eq!(say(2, 96), "RTP type 96 seq 2 ts 9 ssrc 0x00000100, length 14");
    assert_eq!(say(1, 96), "RTP type 96 seq 1 ts 9 ssrc 0x00000100, length 14");
    assert_eq!(say(3, 0x80 | 96), "RTP type 96 marker seq 3 ts 9 ssrc 0x00000100, length 14");
    assert_eq!(say(4, 73), "UDP, length 14");
}

#[test]
fn moldudp64_is_what_fills_its_datagram() {
    let mut payload = Vec::new();
    let session = expressway_sequence::mold::Session::new("MONDAY").unwrap();
    let mut builder = expressway_sequence::mold::Builder::new(&mut payload, session, 7);
    assert!(builder.push(b"one") && builder.push(b"two"));
    let said = |payload: &[u8]| line(options(), &packet(&v4(payload)));
    assert!(said(&payload).ends_with("MoldUDP64 session MONDAY seq 7 count 2, length 30"));
    let mut longer = payload.clone();
    longer.push(0);
    assert!(said(&longer).ends_with("UDP, length 31"));
    payload[0] = 1;
    assert!(said(&payload).ends_with("UDP, length 30"));
    let end = expressway_sequence::mold::end_of_session(session, 9);
    assert!(said(&end).ends_with("MoldUDP64 session MONDAY seq 9 end of session, length 20"));
}

fn any_options() -> impl Strategy<Value = TextOptions> {
    let payload = prop::option::of(prop::sample::select(vec![
        Payload::Quic,
        Payload::Rtp,
        Payload::Mold,
        Payload::Opaque,
    ]));
    (any::<[bool; 4]>(), payload).prop_map(|([link, quiet, verbose, hex], payload)| TextOptions {
        link,
        quiet,
        verbose,
        payload,
        dump: Dump { hex, ascii: hex, link },
        ..options()
    })
}

/// Frames near to those that are understood, some octets of them changed, cut anywhere.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let base = prop::sample::select(vec![
        v4(&initial_and_handshake(1)),
        v4(&initial_and_handshake(0x6b33_43cf)),
        frame(&headers("[2001:db8::1]:443", "[2001:db8::7]:50000"), &[0x40; 30]),
        ip(6, &[0x50; 60]),
        ip(1, &[3; 30]),
        ip(58, &[135; 40]),
        v4(b"MONDAY    \0\0\0\0\0\0\0\x05\0\x01\0\x02ab"),
        [&[0xff; 12][..], &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &[1; 20]].concat(),
        vec![0; 80],
    ]);
    (
        base,
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        any::<prop::sample::Index>(),
    )
        .prop_map(|(mut frame, changes, cut)| {
            for (at, value) in changes {
                let at = at.index(frame.len());
                frame[at] = value;
            }
            frame.truncate(cut.index(frame.len() + 1));
            frame
        })
}

proptest! {
    #[test]
    fn no_octets_are_too_much(
        options in any_options(),
        frames in prop::collection::vec(prop_oneof![frames(), prop::collection::vec(any::<u8>(), 0..200)], 1..4),
        longer in 0u32..2000,
    ) {
        let mut printer = Printer::new(options);
        for frame in &frames {
            let mut out = String::new();
            let packet = Packet { length: frame.len() as u32 + longer, ..packet(frame) };
            printer.print("eth0", &packet, &mut out);
            let lines = 1 + if options.dump.hex { frame.len().div_ceil(16) } else { 0 };
            prop_assert!(out.lines().count() <= lines, "{out}");
            prop_assert!(out.lines().next().unwrap().len() < 1500, "{out}");
            prop_assert!(out.ends_with('\n') && !out.contains(|c: char| c.is_control() && c != '\n' && c != '\t'));
        }
    }
}
