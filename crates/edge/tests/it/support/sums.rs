//! Checksums by a crate that is not ours.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

/// Panics unless `frame` is a whole packet of UDP or TCP, with no byte behind it, and every checksum of it is right.
pub fn check_sums(frame: &[u8]) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let (net, transport) = (sliced.net.unwrap(), sliced.transport.unwrap());
    let (expected, found) = match (&net, &transport) {
        (NetSlice::Ipv4(ip), transport) => {
            let header = ip.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum, "IPv4 header");
            match transport {
                TransportSlice::Udp(udp) => {
                    (udp.to_header().calc_checksum_ipv4(&header, udp.payload()), udp.checksum())
                }
                TransportSlice::Tcp(tcp) => {
                    (tcp.to_header().calc_checksum_ipv4(&header, tcp.payload()), tcp.checksum())
                }
                other => panic!("{other:?}"),
            }
        }
        (NetSlice::Ipv6(ip), transport) => {
            let header = ip.header().to_header();
            match transport {
                TransportSlice::Udp(udp) => {
                    (udp.to_header().calc_checksum_ipv6(&header, udp.payload()), udp.checksum())
                }
                TransportSlice::Tcp(tcp) => {
                    (tcp.to_header().calc_checksum_ipv6(&header, tcp.payload()), tcp.checksum())
                }
                other => panic!("{other:?}"),
            }
        }
        (other, _) => panic!("{other:?}"),
    };
    assert_eq!(expected.unwrap(), found, "of the transport");
    assert_ne!(found, 0, "none");
}
