//! Packets put together by hand, so that each field can be wrong on purpose.

use std::net::IpAddr;

use expressway_wire::checksum::pseudo_header;

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// An echo request, a UDP datagram or a TCP segment to 192.0.2.1 or 2001:db8::1, unless told otherwise. The checksum is right
/// in TCP and missing elsewhere.
#[derive(Clone, Debug)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub ports: (u16, u16),
    /// Of TCP.
    pub flags: u8,
    /// Sequence and acknowledgement number of TCP.
    pub numbers: (u32, u32),
    /// Of TCP, a multiple of four bytes.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
    /// The fragment field of IPv4.
    pub fragment: u16,
    pub tags: usize,
}

impl Packet {
    pub fn udp(source: &str, port: u16, payload: &[u8]) -> Self {
        let source: IpAddr = source.parse().unwrap();
        let destination = if source.is_ipv4() { "192.0.2.1" } else { "2001:db8::1" };
        Self {
            source,
            destination: destination.parse().unwrap(),
            protocol: UDP,
            ports: (4000, port),
            flags: 0,
            numbers: (0, 0),
            options: Vec::new(),
            payload: payload.to_vec(),
            fragment: 0,
            tags: 0,
        }
    }

    pub fn tcp(source: &str, port: u16, flags: u8) -> Self {
        Self { protocol: TCP, flags, ..Self::udp(source, port, b"") }
    }

    /// What follows the IP header.
    pub fn transport(&self) -> Vec<u8> {
        let mut bytes = [self.ports.0, self.ports.1].map(u16::to_be_bytes).concat();
        match self.protocol {
            UDP => {
                bytes.extend((8 + self.payload.len() as u16).to_be_bytes());
                bytes.extend([0, 0]);
            }
            TCP => {
                bytes.extend([self.numbers.0, self.numbers.1].map(u32::to_be_bytes).concat());
                bytes.extend([(5 + self.options.len() as u8 / 4) << 4, self.flags, 0xfa, 0xf0, 0, 0, 0, 0]);
                bytes.extend(&self.options);
            }
            _ => bytes = vec![8, 0, 0, 0, 0, 0, 0, 0],
        }
        bytes.extend(&self.payload);
        if self.protocol == TCP {
            let pseudo = pseudo_header(self.source, self.destination, TCP, bytes.len() as u32);
            let checksum = pseudo.bytes(&bytes).checksum();
            bytes[16..18].copy_from_slice(&checksum.to_be_bytes());
        }
        bytes
    }

    /// Bytes of the IP packet.
    pub fn length(&self) -> usize {
        self.transport().len() + if self.source.is_ipv4() { 20 } else { 40 }
    }

    pub fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        frame.extend([0x81, 0, 0, 7].repeat(self.tags));
        let transport = self.transport();
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend((20 + transport.len() as u16).to_be_bytes());
                frame.extend([0, 1]);
                frame.extend(self.fragment.to_be_bytes());
                frame.extend([64, self.protocol, 0, 0]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((transport.len() as u16).to_be_bytes());
                frame.extend([self.protocol, 64]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
            }
            _ => panic!("two families"),
        }
        frame.extend(transport);
        frame
    }
}
