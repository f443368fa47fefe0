//! The packet that an ICMP error quotes: cut, but whole enough to find its flow.

use core::net::{IpAddr, SocketAddr};

use crate::ipv4::Ipv4Packet;
use crate::ipv6::Ipv6Packet;
use crate::udp::UdpPacket;
use crate::{Layer, ParseError, protocol};

/// The UDP datagram that an ICMP error quotes. It was sent by the receiver of the error, so `source` is the
/// receiver's own address.
///
/// Whoever can guess addresses and ports can forge such an error: check `payload` against what the flow
/// sent (RFC 9000, section 14.2.1) before believing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbeddedUdp<'a> {
    /// Address and port that the datagram was sent from.
    pub source: SocketAddr,
    /// Address and port that it was sent to.
    pub destination: SocketAddr,
    /// Bytes of payload that it had.
    pub payload_len: usize,
    /// As much of the payload as the error quotes.
    pub payload: &'a [u8],
}

impl<'a> EmbeddedUdp<'a> {
    /// Reads a quoted IPv4 packet. Its header checksum is not looked at: routers quote it as it was when it
    /// did not fit, some after changing the TTL.
    pub fn parse_ipv4(quoted: &'a [u8]) -> Result<Self, ParseError> {
        let ip = Ipv4Packet::new_embedded(quoted)?;
        if ip.protocol() != protocol::UDP {
            return Err(ParseError::Protocol(ip.protocol()));
        }
        // The first fragment has the ports, the others do not.
        if ip.fragment_offset() != 0 {
            return Err(ParseError::Fragment);
        }
        let from = ip.header_len();
        let to = ip.total_len().min(quoted.len());
        Self::parse_udp(&quoted[from..to], ip.source().into(), ip.destination().into())
    }

    /// Reads a quoted IPv6 packet.
    pub fn parse_ipv6(quoted: &'a [u8]) -> Result<Self, ParseError> {
        let ip = Ipv6Packet::new_embedded(quoted)?;
        let upper = ip.upper_layer()?;
        if upper.protocol != protocol::UDP {
            return Err(ParseError::Protocol(upper.protocol));
        }
        let to = (crate::ipv6::IPV6_HEADER_LEN + ip.payload_len()).min(quoted.len());
        let datagram = quoted.get(upper.offset..to).ok_or(ParseError::Truncated {
            layer: Layer::Udp,
            needed: upper.offset,
            available: to,
        })?;
        Self::parse_udp(datagram, ip.source().into(), ip.destination().into())
    }

    fn parse_udp(datagram: &'a [u8], source: IpAddr, destination: IpAddr) -> Result<Self, ParseError> {
        let udp = UdpPacket::new_embedded(datagram)?;
        Ok(Self {
            source: SocketAddr::new(source, udp.source_port()),
            destination: SocketAddr::new(destination, udp.destination_port()),
            payload_len: udp.len() - crate::udp::UDP_HEADER_LEN,
            payload: &datagram[crate::udp::UDP_HEADER_LEN..udp.len().min(datagram.len())],
        })
    }
}
