//! RTP packets as received, and as sent with another SSRC, sequence number, timestamp and payload type.

use rtp_types::RtpPacket;

/// What is read of a packet (RFC 3550, section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The payload type, 7 bits.
    pub payload_type: u8,
    /// The sequence number.
    pub sequence: u16,
    /// The RTP timestamp, in units of the payload's clock.
    pub timestamp: u32,
    /// The synchronization source.
    pub ssrc: u32,
}

impl Header {
    /// Of a datagram that is one RTP packet: version 2, with all CSRCs, extension and padding that it claims.
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        let packet = RtpPacket::parse(datagram).ok()?;
        Some(Self {
            payload_type: packet.payload_type(),
            sequence: packet.sequence_number(),
            timestamp: packet.timestamp(),
            ssrc: packet.ssrc(),
        })
    }

    /// Writes itself over the header of a packet that [`Self::parse`] has taken. The marker, CSRCs, extension and payload stay.
    pub fn write(self, packet: &mut [u8]) {
        packet[1] = packet[1] & 0x80 | self.payload_type & 0x7f;
        packet[2..4].copy_from_slice(&self.sequence.to_be_bytes());
        packet[4..8].copy_from_slice(&self.timestamp.to_be_bytes());
        packet[8..12].copy_from_slice(&self.ssrc.to_be_bytes());
    }
}

/// Whether a datagram is RTCP where both come to one port (RFC 5761, section 4): by its packet type, 192 to 223, which as the marker
/// and payload type of an RTP packet would be 64 to 95.
pub fn is_rtcp(datagram: &[u8]) -> bool {
    matches!(datagram, [first, 192..=223, ..] if first >> 6 == 2)
}

#[cfg(test)]
pub(crate) fn packet(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80, 0];
    packet.extend_from_slice(&[0; 10]);
    header.write(&mut packet);
    packet.extend_from_slice(payload);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header =
        Header { payload_type: 96, sequence: 0xfffe, timestamp: 0xdead_beef, ssrc: 0x0102_0304 };

    #[test]
    fn what_is_written_is_read_and_the_rest_stays() {
        let mut packet = packet(HEADER, b"payload");
        packet[1] |= 0x80;
        assert_eq!(Header::parse(&packet), Some(HEADER));
        let other = Header { payload_type: 100, sequence: 1, timestamp: 2, ssrc: 3 };
        other.write(&mut packet);
        assert_eq!(Header::parse(&packet), Some(other));
        assert_eq!(packet[1], 0x80 | 100, "the marker stays");
        assert_eq!(&packet[12..], b"payload");
    }

    #[test]
    fn what_claims_more_than_there_is_is_refused() {
        let whole = packet(HEADER, b"payload");
        for length in 0..12 {
            assert_eq!(Header::parse(&whole[..length]), None, "{length} bytes");
        }
        let changed = |index: usize, value: u8| {
            let mut packet = whole.clone();
            packet[index] = value;
            Header::parse(&packet)
        };
        assert_eq!(changed(0, 0x40), None, "version 1");
        assert_eq!(changed(0, 0x8f), None, "fifteen CSRCs");
        assert_eq!(changed(0, 0x90), None, "an extension");
        let mut padded = packet(HEADER, b"payload\xff");
        padded[0] = 0xa0;
        assert_eq!(Header::parse(&padded), None, "padding");
    }

    #[test]
    fn rtcp_is_told_by_its_type() {
        assert!(is_rtcp(&[0x80, 200, 0, 0]) && is_rtcp(&[0x81, 206, 0, 0]));
        assert!(!is_rtcp(&[0x80, 96, 0, 0]) && !is_rtcp(&[0x80, 0x80 | 96, 0, 0]));
        assert!(!is_rtcp(&[0x40, 200]) && !is_rtcp(&[0x80]) && !is_rtcp(&[]));
    }
}
