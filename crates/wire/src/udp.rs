//! UDP headers (RFC 768).
//!
//! [`UdpPacket`] is the checked view, [`UdpRepr`] builds a header.

use core::net::IpAddr;

use crate::checksum::{self, ChecksumMode, ChecksumState};
use crate::ethernet::{octets, require};
use crate::{BuildError, Layer, ParseError, protocol};

/// Bytes of a UDP header.
pub const UDP_HEADER_LEN: usize = 8;
/// The most payload that one datagram carries: 65535 less 20 of IPv4 and 8 of UDP. IPv6 would have room for
/// 20 more; one limit for both keeps a payload sendable over either.
pub const MAX_UDP_PAYLOAD: usize = 65_507;

/// A view of a UDP datagram whose length field agrees with the bytes that there are.
///
/// Bytes behind the UDP length (RFC 9868 puts options there) belong to no accessor.
#[derive(Clone, Copy, Debug)]
pub struct UdpPacket<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> UdpPacket<T> {
    /// Checks the length field against the buffer, which is the IP payload. Not the checksum.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        require(buffer.as_ref(), UDP_HEADER_LEN, Layer::Udp)?;
        let packet = Self { buffer };
        let (length, available) = (packet.len(), packet.buffer.as_ref().len());
        if length < UDP_HEADER_LEN || length > available {
            return Err(ParseError::UdpLength { length, available });
        }
        Ok(packet)
    }

    #[inline]
    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes(octets(self.buffer.as_ref(), at))
    }

    /// Source port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        self.word(0)
    }

    /// Destination port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        self.word(2)
    }

    /// Length field: header and payload in bytes, at least 8.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a datagram is never shorter than its header")]
    pub fn len(&self) -> usize {
        usize::from(self.word(4))
    }

    /// Checksum field.
    #[inline]
    pub fn checksum(&self) -> u16 {
        self.word(6)
    }

    /// The payload, to the UDP length (or to where an embedded datagram is cut).
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let bytes = self.buffer.as_ref();
        &bytes[UDP_HEADER_LEN..self.len().min(bytes.len())]
    }

    /// Verifies the checksum of a datagram between these addresses. An embedded datagram that is cut cannot
    /// be verified and fails.
    #[inline]
    pub fn verify_checksum(&self, source: IpAddr, destination: IpAddr) -> Result<ChecksumState, ParseError> {
        if self.checksum() == 0 {
            return match destination {
                IpAddr::V4(_) => Ok(ChecksumState::Absent),
                IpAddr::V6(_) => Err(ParseError::UdpChecksumMissing),
            };
        }
        let datagram = self.buffer.as_ref().get(..self.len()).ok_or(ParseError::UdpChecksum)?;
        let pseudo = checksum::pseudo_header(source, destination, protocol::UDP, datagram.len() as u32);
        match pseudo.bytes(datagram).is_intact() {
            true => Ok(ChecksumState::Valid),
            false => Err(ParseError::UdpChecksum),
        }
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> UdpPacket<T> {
    #[inline]
    fn set_word(&mut self, at: usize, value: u16) {
        self.buffer.as_mut()[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }

    /// Adjusts the checksum to a change of covered bytes (RFC 1624), for instance an address of the
    /// pseudo-header. An absent checksum (0) stays absent; one that becomes 0 is stored as 0xffff. `old` and
    /// `new` are of the same length and lie at an even offset.
    pub fn adjust_checksum(&mut self, old: &[u8], new: &[u8]) {
        if self.checksum() == 0 {
            return;
        }
        let checksum = checksum::update_bytes(self.checksum(), old, new);
        self.set_word(6, if checksum == 0 { 0xffff } else { checksum });
    }

    /// Sets the source port; the checksum follows.
    pub fn set_source_port(&mut self, port: u16) {
        self.adjust_checksum(&self.source_port().to_be_bytes(), &port.to_be_bytes());
        self.set_word(0, port);
    }

    /// Sets the destination port; the checksum follows.
    pub fn set_destination_port(&mut self, port: u16) {
        self.adjust_checksum(&self.destination_port().to_be_bytes(), &port.to_be_bytes());
        self.set_word(2, port);
    }

    /// The payload, writable. The checksum is the caller's.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let to = self.len();
        let bytes = self.buffer.as_mut();
        let to = to.min(bytes.len());
        &mut bytes[UDP_HEADER_LEN..to]
    }
}

/// A UDP header as it is built, in front of a payload that already lies behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpRepr {
    /// Source port.
    pub source_port: u16,
    /// Destination port, not 0.
    pub destination_port: u16,
    /// Bytes of payload.
    pub payload_len: usize,
}

impl UdpRepr {
    /// Reads a header. Errors as [`UdpPacket::new_checked`]. The checksum is not verified.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let packet = UdpPacket::new_checked(bytes)?;
        Ok(Self {
            source_port: packet.source_port(),
            destination_port: packet.destination_port(),
            payload_len: packet.payload().len(),
        })
    }

    /// Writes the header to the front of `buffer`, whose bytes 8 to 8 + `payload_len` are the payload, and
    /// the checksum as `mode` says. Returns the length of header and payload.
    pub fn emit(
        &self,
        buffer: &mut [u8],
        source: IpAddr,
        destination: IpAddr,
        mode: ChecksumMode,
    ) -> Result<usize, BuildError> {
        if self.payload_len > MAX_UDP_PAYLOAD {
            return Err(BuildError::PayloadTooLarge { length: self.payload_len, max: MAX_UDP_PAYLOAD });
        }
        if self.destination_port == 0 {
            return Err(BuildError::DestinationPort);
        }
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(BuildError::FamilyMismatch);
        }
        if mode == ChecksumMode::None && destination.is_ipv6() {
            return Err(BuildError::ChecksumRequired);
        }
        let needed = UDP_HEADER_LEN + self.payload_len;
        let available = buffer.len();
        let datagram = buffer.get_mut(..needed).ok_or(BuildError::BufferTooSmall { needed, available })?;
        datagram[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        datagram[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        datagram[4..6].copy_from_slice(&(needed as u16).to_be_bytes());
        datagram[6..8].fill(0);
        let pseudo = checksum::pseudo_header(source, destination, protocol::UDP, needed as u32);
        let checksum = match mode {
            ChecksumMode::Full => pseudo.bytes(datagram).udp_checksum(),
            ChecksumMode::PseudoOnly => pseudo.folded(),
            ChecksumMode::None => 0,
        };
        datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
        Ok(needed)
    }
}

/// Checks the marks that both IP versions share.
pub(crate) fn validate_marks(dscp: u8, ecn: u8, ttl: u8) -> Result<(), BuildError> {
    if dscp > 63 {
        return Err(BuildError::Dscp(dscp));
    }
    if ecn > 3 {
        return Err(BuildError::Ecn(ecn));
    }
    if ttl == 0 {
        return Err(BuildError::Ttl);
    }
    Ok(())
}
