//! What the builder writes, the parser reads.

use expressway_wire::{ChecksumMode, ChecksumState, MacAddr, UdpHeaders, VlanTag, VlanTags, parse_udp};

#[test]
fn built_datagrams_parse_to_what_was_asked() {
    let pairs = [("192.0.2.1:4433", "198.51.100.7:50000"), ("[2001:db8::1]:4433", "[2001:db8::7]:50000")];
    let tags = [VlanTag::service(100), VlanTag::customer(200)];
    for (source, destination) in pairs {
        for count in 0..=2 {
            let mut headers = UdpHeaders::new(
                MacAddr([2, 0, 0, 0, 0, 1]),
                MacAddr([2, 0, 0, 0, 0, 2]),
                source.parse().unwrap(),
                destination.parse().unwrap(),
            );
            headers.vlan = VlanTags::new(&tags[..count]).unwrap();
            headers.dscp = 46;
            headers.ecn = 2;
            headers.flow_label = 0xabcde;
            let start = headers.header_len();
            let mut frame = [0xa5u8; 1600];
            let total = headers.write(&mut frame, 1399, ChecksumMode::Full, 7).unwrap();
            assert_eq!(total, start + 1399);
            let layout = parse_udp(&frame[..total]).unwrap();
            assert_eq!(layout.payload(), start..total);
            assert_eq!((layout.source, layout.destination), (headers.source, headers.destination));
            assert_eq!(
                (layout.source_mac, layout.destination_mac),
                (headers.source_mac, headers.destination_mac)
            );
            assert_eq!(layout.vlan, headers.vlan);
            assert_eq!((layout.dscp(), layout.ecn(), layout.ttl), (46, 2, 64));
            assert_eq!(layout.verify_checksum(&frame[..total]), Ok(ChecksumState::Valid));
            frame[start + 700] ^= 0x10;
            assert!(layout.verify_checksum(&frame[..total]).is_err());
        }
    }
}
