//! Checksums by a crate that is not ours.

use etherparse::{NetHeaders, PacketHeaders, TransportHeader};

/// Panics unless `frame` is a whole packet of UDP or TCP, with no byte behind it, and every checksum of it is right.
pub fn check_sums(frame: &[u8]) {
    let headers = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let payload = headers.payload.slice();
    assert_eq!(payload.as_ptr_range().end, frame.as_ptr_range().end, "bytes behind it");
    let found = headers.transport.unwrap();
    let mut expected = found.clone();
    match headers.net.unwrap() {
        NetHeaders::Ipv4(ip, _) => {
            assert_eq!(ip.calc_header_checksum(), ip.header_checksum, "IPv4 header");
            expected.update_checksum_ipv4(&ip, payload).unwrap();
        }
        NetHeaders::Ipv6(ip, _) => expected.update_checksum_ipv6(&ip, payload).unwrap(),
        other => panic!("{other:?}"),
    }
    assert_eq!(expected, found, "of the transport");
    match found {
        TransportHeader::Udp(udp) => assert_ne!(udp.checksum, 0, "none"),
        TransportHeader::Tcp(tcp) => assert_ne!(tcp.checksum, 0, "none"),
        other => panic!("{other:?}"),
    }
}
