//! Packets that cannot be: headers that contradict themselves or the frame, and QUIC that no client sends.

use expressway_xbpf::{GuardOptions, GuardQuic, GuardReason};

use crate::support::{Packet, UDP, load, reason};

fn patched(mut frame: Vec<u8>, offset: usize, bytes: &[u8]) -> Vec<u8> {
    frame[offset..offset + bytes.len()].copy_from_slice(bytes);
    frame
}

#[test]
fn packets_that_cannot_be_are_dropped() {
    use GuardReason::{DropAddress, DropMalformed, DropTcpFlags, PassDefault, PassFragment, PassNotIp};
    let Some(guard) = load(GuardOptions::default()) else { return };
    let udp = || Packet::udp("198.51.100.1", 80, b"0123").frame();
    let tcp = |flags| Packet::tcp("198.51.100.1", 80, flags).frame();
    let six = || Packet::udp("2001:db8::9", 80, b"0123").frame();
    let tagged = |tags: usize| {
        let mut frame = udp();
        frame.splice(12..12, [0x81, 0, 0, 0].repeat(tags));
        frame
    };
    let fragment = |fragment| Packet { fragment, ..Packet::udp("198.51.100.1", 80, &[0; 32]) }.frame();
    let mut arp = udp();
    arp.splice(12..14, [8, 6]);
    // One extension header of eight bytes in front of UDP.
    let mut extended = six();
    extended.splice(54..54, [UDP, 0, 1, 4, 0, 0, 0, 0]);
    extended[20] = 60;
    extended[19] += 8;
    // An atomic fragment header behind Destination Options.
    let behind = |options: usize| {
        let mut headers = [60, 0, 1, 4, 0, 0, 0, 0].repeat(options);
        if options > 0 {
            headers[8 * (options - 1)] = 44;
        }
        headers.extend([UDP, 0, 0, 0, 0, 0, 0, 1]);
        let mut frame = six();
        frame[19] += headers.len() as u8;
        frame[20] = if options > 0 { 60 } else { 44 };
        frame.splice(54..54, headers);
        frame
    };
    for (name, frame, expected) in [
        ("plain", udp(), PassDefault),
        ("atomic fragment", behind(0), PassDefault),
        ("atomic fragment behind five options", behind(5), PassDefault),
        ("atomic fragment behind six options", behind(6), DropMalformed),
        ("IPv4-mapped source", Packet::udp("::ffff:198.51.100.1", 80, b"").frame(), DropAddress),
        ("arp", arp, PassNotIp),
        ("a priority tag", tagged(1), PassDefault),
        ("two tags", tagged(2), PassDefault),
        ("three tags", tagged(3), DropMalformed),
        ("a tag that is cut", tagged(1)[..16].to_vec(), PassNotIp),
        ("cut IPv4 header", udp()[..30].to_vec(), PassNotIp),
        ("version 5", patched(udp(), 14, &[0x55]), DropMalformed),
        ("short header", patched(udp(), 14, &[0x44]), DropMalformed),
        ("header beyond the packet", patched(udp(), 14, &[0x4f]), DropMalformed),
        ("longer than the frame", patched(udp(), 16, &[1, 0]), DropMalformed),
        ("no room for UDP", patched(udp(), 16, &[0, 24]), DropMalformed),
        ("UDP length 7", patched(udp(), 38, &[0, 7]), DropMalformed),
        ("UDP longer than IP", patched(udp(), 38, &[0, 13]), DropMalformed),
        ("UDP shorter than IP", patched(udp(), 38, &[0, 9]), PassDefault),
        ("padded", [udp(), vec![0; 20]].concat(), PassDefault),
        ("SYN", tcp(0x02), PassDefault),
        ("ACK", tcp(0x10), PassDefault),
        ("no flags", tcp(0), DropTcpFlags),
        ("SYN, FIN", tcp(0x03), DropTcpFlags),
        ("SYN, RST", tcp(0x06), DropTcpFlags),
        ("TCP header of 16 bytes", patched(tcp(2), 46, &[4 << 4]), DropMalformed),
        ("TCP header beyond the packet", patched(tcp(2), 46, &[15 << 4]), DropMalformed),
        ("loopback source", Packet::udp("127.0.0.1", 80, b"").frame(), DropAddress),
        ("multicast source", Packet::udp("239.0.0.1", 80, b"").frame(), DropAddress),
        ("source is destination", Packet::udp("192.0.2.1", 80, b"").frame(), DropAddress),
        ("IPv6 multicast source", Packet::udp("ff02::1", 80, b"").frame(), DropAddress),
        ("IPv6 loopback source", Packet::udp("::1", 80, b"").frame(), DropAddress),
        ("IPv6 source is destination", Packet::udp("2001:db8::1", 80, b"").frame(), DropAddress),
        ("IPv6", six(), PassDefault),
        ("IPv6 longer than the frame", patched(six(), 18, &[1, 0]), DropMalformed),
        ("IPv6 of version 4", patched(six(), 14, &[0x40]), DropMalformed),
        ("IPv6 extension", extended.clone(), PassDefault),
        ("IPv6 extension beyond the packet", patched(extended, 55, &[9]), DropMalformed),
        ("first fragment", fragment(0x2000), PassDefault),
        ("later fragment", fragment(0x2004), PassFragment),
        ("fragment beyond 65,535 bytes", fragment(0x1fff), DropMalformed),
    ] {
        assert_eq!(reason(&guard, &frame), expected, "{name}");
    }
    let Some(lenient) = load(GuardOptions { drop_malformed: false, ..GuardOptions::default() }) else {
        return;
    };
    assert_eq!(reason(&lenient, &tcp(3)), PassDefault);
    assert_eq!(reason(&lenient, &tagged(3)), PassNotIp);
    let Some(strict) = load(GuardOptions { drop_fragments: true, ..GuardOptions::default() }) else { return };
    assert_eq!(reason(&strict, &fragment(0x2000)), GuardReason::DropFragment);
    assert_eq!(reason(&strict, &fragment(0x2004)), GuardReason::DropFragment);
    assert_eq!(reason(&strict, &udp()), PassDefault);
}

#[test]
fn quic_that_no_client_sends_is_dropped() {
    use GuardReason::{DropQuicInitial, DropQuicVersion, PassDefault};
    let Some(guard) = load(GuardOptions {
        quic: GuardQuic { ports: vec![443], ..GuardQuic::default() },
        ..GuardOptions::default()
    }) else {
        return;
    };
    let long = |first: u8, version: u32, cid: u8, length: usize| {
        let mut payload = vec![first];
        payload.extend(version.to_be_bytes());
        payload.push(cid);
        payload.resize(length, 0);
        payload
    };
    for (name, payload, expected) in [
        ("Initial", long(0xc0, 1, 8, 1200), PassDefault),
        ("short Initial", long(0xc0, 1, 8, 1199), DropQuicInitial),
        ("short Handshake", long(0xe0, 1, 8, 100), PassDefault),
        ("Initial of version 2", long(0xd0, 0x6b33_43cf, 8, 1199), DropQuicInitial),
        ("Retry's number of version 1 in version 2", long(0xc0, 0x6b33_43cf, 8, 100), PassDefault),
        ("draft 29", long(0xc0, 0xff00_001d, 8, 1199), DropQuicInitial),
        ("version negotiation", long(0xc0, 0, 8, 1200), DropQuicVersion),
        ("connection ID of 21 bytes", long(0xc0, 1, 21, 1200), DropQuicVersion),
        ("unknown version", long(0xc0, 0x1a2a_3a4a, 21, 1200), PassDefault),
        ("unknown version, short", long(0xc0, 0x1a2a_3a4a, 8, 1199), DropQuicVersion),
        ("short header", vec![0x40; 30], PassDefault),
        ("nothing", vec![], DropQuicInitial),
        ("a cut long header", vec![0xc0, 0, 0], DropQuicInitial),
    ] {
        for source in ["198.51.100.1", "2001:db8::7"] {
            assert_eq!(reason(&guard, &Packet::udp(source, 443, &payload).frame()), expected, "{name}");
            assert_eq!(reason(&guard, &Packet::udp(source, 444, &payload).frame()), PassDefault, "{name}");
        }
    }
}
