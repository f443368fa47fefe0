//! Edits a datagram in place, and updates every checksum that covers the edit (RFC 1624).
//!
//! A forwarder lowers the TTL or rewrites an address without touching the payload. The UDP checksum must be
//! finished. A pseudo-header sum that waits for the device ([`UdpLayout::is_checksum_partial`]) is not
//! complemented, and would be adjusted the wrong way, so such frames are refused where it matters.

use core::net::{IpAddr, SocketAddr};

use crate::ipv4::Ipv4Packet;
use crate::ipv6::Ipv6Packet;
use crate::udp::UdpPacket;
use crate::{BuildError, UdpLayout};

/// The IP packet of the datagram, by family.
enum IpEdit<'a> {
    V4(Ipv4Packet<&'a mut [u8]>),
    V6(Ipv6Packet<&'a mut [u8]>),
}

impl UdpLayout {
    /// The end of the datagram in its frame, checked against `frame`.
    fn end_within(&self, frame: &[u8]) -> Result<usize, BuildError> {
        let needed = self.payload().end;
        if frame.len() < needed {
            return Err(BuildError::BufferTooSmall { needed, available: frame.len() });
        }
        Ok(needed)
    }

    fn ip<'a>(&self, frame: &'a mut [u8]) -> Result<IpEdit<'a>, BuildError> {
        self.end_within(frame)?;
        let bytes = &mut frame[self.ip_offset..];
        match self.source {
            SocketAddr::V4(_) => Ipv4Packet::new_checked(bytes).map(IpEdit::V4),
            SocketAddr::V6(_) => Ipv6Packet::new_checked(bytes).map(IpEdit::V6),
        }
        .map_err(|_| BuildError::NotThisFrame)
    }

    fn udp<'a>(&self, frame: &'a mut [u8]) -> Result<UdpPacket<&'a mut [u8]>, BuildError> {
        let end = self.end_within(frame)?;
        UdpPacket::new_checked(&mut frame[self.udp_offset..end]).map_err(|_| BuildError::NotThisFrame)
    }

    /// Sets TTL or hop limit, not 0, in the frame that this layout was parsed from, and here.
    pub fn set_ttl(&mut self, frame: &mut [u8], ttl: u8) -> Result<(), BuildError> {
        if ttl == 0 {
            return Err(BuildError::Ttl);
        }
        match self.ip(frame)? {
            IpEdit::V4(mut ip) => ip.set_ttl(ttl),
            IpEdit::V6(mut ip) => ip.set_hop_limit(ttl),
        }
        self.ttl = ttl;
        Ok(())
    }

    /// Sets TOS or traffic class (DSCP and ECN) in the frame that this layout was parsed from, and here.
    pub fn set_tos(&mut self, frame: &mut [u8], tos: u8) -> Result<(), BuildError> {
        match self.ip(frame)? {
            IpEdit::V4(mut ip) => ip.set_tos(tos),
            IpEdit::V6(mut ip) => ip.set_traffic_class(tos),
        }
        self.tos = tos;
        Ok(())
    }

    /// Rewrites the source address and port in the frame that this layout was parsed from, and here.
    /// Refuses another family, a multicast source, and a frame whose UDP checksum is not finished.
    pub fn set_source(&mut self, frame: &mut [u8], source: SocketAddr) -> Result<(), BuildError> {
        crate::template::validate_addresses(source.ip(), self.destination.ip())?;
        self.refuse_partial(frame)?;
        self.udp(frame)?;
        match (self.ip(frame)?, source.ip()) {
            (IpEdit::V4(mut ip), IpAddr::V4(address)) => ip.set_source(address),
            (IpEdit::V6(mut ip), IpAddr::V6(address)) => ip.set_source(address),
            _ => return Err(BuildError::FamilyMismatch),
        }
        let mut udp = self.udp(frame)?;
        adjust_address(&mut udp, self.source.ip(), source.ip());
        udp.set_source_port(source.port());
        self.udp_checksum = udp.checksum();
        self.source = source;
        Ok(())
    }

    /// Rewrites the destination address and port in the frame that this layout was parsed from, and here.
    /// Refuses another family, an unspecified address, port 0, and a frame whose UDP checksum is not
    /// finished.
    pub fn set_destination(&mut self, frame: &mut [u8], destination: SocketAddr) -> Result<(), BuildError> {
        crate::template::validate_addresses(self.source.ip(), destination.ip())?;
        if destination.port() == 0 {
            return Err(BuildError::DestinationPort);
        }
        self.refuse_partial(frame)?;
        self.udp(frame)?;
        match (self.ip(frame)?, destination.ip()) {
            (IpEdit::V4(mut ip), IpAddr::V4(address)) => ip.set_destination(address),
            (IpEdit::V6(mut ip), IpAddr::V6(address)) => ip.set_destination(address),
            _ => return Err(BuildError::FamilyMismatch),
        }
        let mut udp = self.udp(frame)?;
        adjust_address(&mut udp, self.destination.ip(), destination.ip());
        udp.set_destination_port(destination.port());
        self.udp_checksum = udp.checksum();
        self.destination = destination;
        Ok(())
    }

    /// One finished checksum in 65536 looks like an unfinished one; only the payload tells them apart.
    fn refuse_partial(&self, frame: &[u8]) -> Result<(), BuildError> {
        if self.is_checksum_partial() && self.verify_checksum(frame).is_err() {
            return Err(BuildError::ChecksumUnfinished);
        }
        Ok(())
    }
}

/// Takes an address of the pseudo-header out of the checksum and another in.
fn adjust_address(udp: &mut UdpPacket<&mut [u8]>, old: IpAddr, new: IpAddr) {
    match (old, new) {
        (IpAddr::V4(old), IpAddr::V4(new)) => udp.adjust_checksum(&old.octets(), &new.octets()),
        (IpAddr::V6(old), IpAddr::V6(new)) => udp.adjust_checksum(&old.octets(), &new.octets()),
        // Refused by the callers before anything was written.
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
    }
}
