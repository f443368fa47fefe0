//! Socket addresses and control messages in the kernel's layout, encoded and decoded without `unsafe`.
//!
//! Layouts: `struct sockaddr_in`, `struct sockaddr_in6` (`linux/in.h`, `linux/in6.h`), `struct cmsghdr`
//! (`linux/socket.h`: a `size_t` length that counts the header, two `int`s, data; aligned to `size_t`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::io::{TimeSource, Timestamp};

/// `UDP_SEGMENT` (`linux/udp.h`).
pub(super) const UDP_SEGMENT: i32 = 103;
/// `UDP_GRO` (`linux/udp.h`).
pub(super) const UDP_GRO: i32 = 104;

/// Bytes of `struct cmsghdr` on 64-bit Linux.
const HEADER: usize = 16;
/// Room for packet information (40), traffic class (24) and segment size (24).
const SEND_CONTROL: usize = 88;
/// Room for packet information (40), traffic class (24), GRO size (24), time stamps (64), and more for
/// what an administrator's settings may add.
const RECEIVE_CONTROL: usize = 192;

/// A socket address as the kernel reads and writes it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct RawAddress {
    bytes: [u8; 28],
}

impl RawAddress {
    /// Bytes of the larger of the two address structures.
    pub(super) const CAPACITY: usize = 28;

    pub(super) const fn empty() -> Self {
        Self { bytes: [0; 28] }
    }

    /// Writes `address` and returns the length of its structure.
    pub(super) fn encode(&mut self, address: &SocketAddr) -> usize {
        let bytes = &mut self.bytes;
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                bytes[0..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                bytes[8..16].fill(0);
                16
            }
            SocketAddr::V6(v6) => {
                bytes[0..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                28
            }
        }
    }

    /// Reads the address that the kernel wrote; `None` for another family.
    pub(super) fn decode(&self) -> Option<SocketAddr> {
        let bytes = &self.bytes;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET => {
                let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
                Some(SocketAddr::V4(SocketAddrV4::new(ip, port)))
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).ok()?);
                let scope = u32::from_ne_bytes(bytes[24..28].try_into().ok()?);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)))
            }
            _ => None,
        }
    }
}

/// Control messages of one datagram or GSO message to send.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct SendControl {
    bytes: [u8; SEND_CONTROL],
}

impl SendControl {
    pub(super) const fn empty() -> Self {
        Self { bytes: [0; SEND_CONTROL] }
    }

    /// Writes what applies and returns the length.
    pub(super) fn encode(&mut self, source: Option<&SocketAddr>, v6: bool, tos: u8, segment: u16) -> usize {
        let mut at = 0;
        match source {
            Some(SocketAddr::V4(v4)) => {
                // struct in_pktinfo: index 0 leaves the interface to the route; ipi_spec_dst is the source.
                let mut data = [0u8; 12];
                data[4..8].copy_from_slice(&v4.ip().octets());
                at = self.push(at, libc::IPPROTO_IP, libc::IP_PKTINFO, &data);
            }
            Some(SocketAddr::V6(v6)) => {
                // struct in6_pktinfo: the index only matters for link-local sources.
                let mut data = [0u8; 20];
                data[0..16].copy_from_slice(&v6.ip().octets());
                data[16..20].copy_from_slice(&v6.scope_id().to_ne_bytes());
                at = self.push(at, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &data);
            }
            None => {}
        }
        if tos != 0 {
            let data = i32::from(tos).to_ne_bytes();
            at = if v6 {
                self.push(at, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &data)
            } else {
                self.push(at, libc::IPPROTO_IP, libc::IP_TOS, &data)
            };
        }
        if segment != 0 {
            at = self.push(at, libc::SOL_UDP, UDP_SEGMENT, &segment.to_ne_bytes());
        }
        at
    }

    fn push(&mut self, at: usize, level: i32, kind: i32, data: &[u8]) -> usize {
        let length = HEADER + data.len();
        self.bytes[at..at + 8].copy_from_slice(&(length as u64).to_ne_bytes());
        self.bytes[at + 8..at + 12].copy_from_slice(&level.to_ne_bytes());
        self.bytes[at + 12..at + 16].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[at + HEADER..at + length].copy_from_slice(data);
        at + length.next_multiple_of(8)
    }

    #[cfg(test)]
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Room for the control messages of one received message.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct ReceiveControl {
    pub(super) bytes: [u8; RECEIVE_CONTROL],
}

impl ReceiveControl {
    /// Bytes that the kernel may fill.
    pub(super) const CAPACITY: usize = RECEIVE_CONTROL;

    pub(super) const fn empty() -> Self {
        Self { bytes: [0; RECEIVE_CONTROL] }
    }
}

/// What the control messages of a received message say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// The address that the peer asked, and the interface it came in on.
    pub(super) destination: Option<(IpAddr, u32)>,
    /// TOS or traffic class.
    pub(super) tos: u8,
    /// Size of the segments that GRO put together; 0 when it did not.
    pub(super) segment: usize,
    /// When the device or the kernel received it; of several segments the first.
    pub(super) time: Option<Timestamp>,
}

impl Received {
    pub(super) fn decode(control: &[u8]) -> Self {
        let mut received = Self::default();
        for (level, kind, data) in messages(control) {
            match (level, kind) {
                // struct in_pktinfo: ipi_addr is the destination of the header. (ipi_spec_dst is the
                // local address the kernel would answer from, the same for unicast.)
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if data.len() >= 12 => {
                    let ip = Ipv4Addr::new(data[8], data[9], data[10], data[11]);
                    received.destination = Some((IpAddr::V4(ip), word(data, 0)));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if data.len() >= 20 => {
                    let mut octets = [0; 16];
                    octets.copy_from_slice(&data[..16]);
                    received.destination = Some((IpAddr::V6(octets.into()), word(data, 16)));
                }
                (libc::IPPROTO_IP, libc::IP_TOS) if !data.is_empty() => received.tos = data[0],
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if data.len() >= 4 => {
                    received.tos = word(data, 0) as u8;
                }
                (libc::SOL_UDP, UDP_GRO) if data.len() >= 4 => received.segment = word(data, 0) as usize,
                // struct scm_timestamping (linux/errqueue.h): three struct timespec of 64-bit fields. The first is the
                // stack's, the third the device's; what there is none of is 0.
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) if data.len() >= 48 => {
                    let stamp = |at, source| Some(Timestamp { nanoseconds: time(data, at)?, source });
                    received.time = stamp(32, TimeSource::Device).or_else(|| stamp(0, TimeSource::Kernel));
                }
                _ => {}
            }
        }
        received
    }
}

/// One entry of a socket's error queue: `struct sock_extended_err` (`linux/errqueue.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuedError {
    /// The errno that the ICMP message or local refusal stands for.
    pub(super) errno: i32,
    /// With EMSGSIZE: the MTU of the path.
    pub(super) info: u32,
}

impl QueuedError {
    pub(super) fn decode(control: &[u8]) -> Option<Self> {
        messages(control).find_map(|(level, kind, data)| match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
                if data.len() >= 16 =>
            {
                Some(Self { errno: word(data, 0) as i32, info: word(data, 8) })
            }
            _ => None,
        })
    }
}

fn word(data: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

fn long(data: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&data[at..at + 8]);
    u64::from_ne_bytes(bytes)
}

/// A `struct timespec` in nanoseconds, where it is one of a time.
fn time(data: &[u8], at: usize) -> Option<u64> {
    let (seconds, fraction) = (long(data, at), long(data, at + 8));
    seconds.checked_mul(1_000_000_000)?.checked_add(fraction).filter(|time| *time > 0)
}

/// Walks control messages: level, type, data. Ends at the first that does not fit.
fn messages(mut control: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    std::iter::from_fn(move || {
        let header = control.get(..HEADER)?;
        let length = u64::from_ne_bytes(header[..8].try_into().ok()?) as usize;
        let data = control.get(HEADER..length)?;
        let item = (word(header, 8) as i32, word(header, 12) as i32, data);
        control = control.get(length.checked_next_multiple_of(8)?..).unwrap_or_default();
        Some(item)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in ["192.0.2.7:443", "[2001:db8::1]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut raw = RawAddress::empty();
            let length = raw.encode(&address);
            assert_eq!(length, if address.is_ipv4() { 16 } else { 28 });
            assert_eq!(raw.decode(), Some(address));
        }
        let scoped = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 9, 0, 3));
        let mut raw = RawAddress::empty();
        raw.encode(&scoped);
        assert_eq!(raw.decode(), Some(scoped));
        assert_eq!(RawAddress::empty().decode(), None);
    }

    #[test]
    fn an_ipv6_address_leaves_no_trace_in_a_following_ipv4_one() {
        let mut raw = RawAddress::empty();
        raw.encode(&"[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:1".parse().unwrap());
        assert_eq!(raw.encode(&"192.0.2.1:2".parse().unwrap()), 16);
        assert_eq!(raw.bytes[8..16], [0; 8]);
    }

    #[test]
    fn a_stamp_is_read_and_one_that_cannot_be_is_none() {
        let message = |stack: (u64, u64), device: (u64, u64)| {
            let mut bytes = 64u64.to_ne_bytes().to_vec();
            bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
            bytes.extend(libc::SCM_TIMESTAMPING.to_ne_bytes());
            for field in [stack.0, stack.1, 0, 0, device.0, device.1] {
                bytes.extend(field.to_ne_bytes());
            }
            bytes
        };
        let time = |control: &[u8]| Received::decode(control).time;
        let stamp = |nanoseconds, source| Some(Timestamp { nanoseconds, source });
        let second = 1_800_000_000;
        let by_stack = stamp(1_800_000_000_000_000_005, TimeSource::Kernel);
        assert_eq!(time(&message((second, 5), (0, 0))), by_stack);
        let by_device = stamp(1_800_000_000_000_000_004, TimeSource::Device);
        assert_eq!(time(&message((second, 5), (second, 4))), by_device, "the device saw it first");
        assert_eq!(time(&message((0, 0), (second, 4))), by_device);
        assert_eq!(time(&message((second, 5), (u64::MAX, 4))), by_stack);
        assert_eq!(time(&message((0, 0), (0, 0))), None);
        assert_eq!(time(&message((u64::MAX, 5), (0, 0))), None);
        assert_eq!(time(&message((second, 5), (0, 0))[..56]), None, "cut short");
    }

    #[test]
    fn the_fullest_control_fits_and_parses() {
        let source: SocketAddr = "[2001:db8::1]:443".parse().unwrap();
        let mut control = SendControl::empty();
        let length = control.encode(Some(&source), true, 0xb9, 1200);
        assert_eq!(length, SEND_CONTROL);
        let parsed: Vec<_> = messages(&control.bytes()[..length]).collect();
        assert_eq!(parsed.len(), 3);
        assert_eq!((parsed[1].0, parsed[1].1), (libc::IPPROTO_IPV6, libc::IPV6_TCLASS));
        assert_eq!(parsed[2], (libc::SOL_UDP, UDP_SEGMENT, &1200u16.to_ne_bytes()[..]));
        assert_eq!(Received::decode(control.bytes()).tos, 0xb9);
        assert_eq!(SendControl::empty().encode(None, false, 0, 0), 0);
    }

    #[test]
    fn broken_control_ends_the_walk() {
        assert_eq!(messages(&[0; 64]).count(), 0, "a length below the header's");
        let mut control = SendControl::empty();
        let length = control.encode(None, false, 1, 0);
        assert_eq!(messages(&control.bytes()[..length - 5]).count(), 0, "data beyond the end");
        let mut huge = [0xff; 32];
        huge[8..].fill(0);
        assert_eq!(messages(&huge).count(), 0, "a length that overflows");
    }
}
