//! Payloads of a room's history in the form that sessions need: one allocation for all sessions, which keep it to
//! answer retransmission requests.

use std::sync::Arc;

use rtp_types::RtpPacket;

use crate::rtp::history::{History, Position};

/// Payloads by position, of those packets that a session has been sent.
#[derive(Debug, Default)]
pub(super) struct Payloads(Vec<Option<(Position, Arc<[u8]>)>>);

impl Payloads {
    /// The payload of the packet there, without what stands before and behind it.
    pub(super) fn payload(&mut self, history: &History, position: Position) -> Option<Arc<[u8]>> {
        // Rooms without sessions keep nothing.
        if self.0.is_empty() {
            self.0.resize(history.capacity(), None);
        }
        let slot = position as usize & (history.capacity() - 1);
        if let Some((kept, payload)) = &self.0[slot]
            && *kept == position
        {
            return Some(Arc::clone(payload));
        }
        let packet = RtpPacket::parse(history.at(position)?.bytes).ok()?;
        let payload: Arc<[u8]> = packet.payload().into();
        self.0[slot] = Some((position, Arc::clone(&payload)));
        Some(payload)
    }

    /// Nobody is left who needs them.
    pub(super) fn clear(&mut self) {
        self.0 = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rtp::header::{Header, packet};
    use crate::rtp::history::RtpMapping;

    #[test]
    fn all_sessions_have_the_same_octets() {
        let (mut history, mut payloads) = (History::new(4, 40), Payloads::default());
        let push = |history: &mut History, number: u8| {
            let header = Header { payload_type: 96, sequence: number.into(), timestamp: 0, ssrc: 1 };
            history.push(&packet(header, &[number]), RtpMapping::default());
        };
        (0..6).for_each(|number| push(&mut history, number));
        assert_eq!(payloads.payload(&history, 1), None, "it is kept no more");
        let one = payloads.payload(&history, 4).unwrap();
        let other = payloads.payload(&history, 4).unwrap();
        assert!(Arc::ptr_eq(&one, &other) && one[..] == [4]);
        (6..9).for_each(|number| push(&mut history, number));
        assert_eq!(&payloads.payload(&history, 8).unwrap()[..], [8], "in the place of the fourth");
    }

    #[test]
    fn what_surrounds_a_payload_is_left_behind() {
        let (mut history, mut payloads) = (History::new(4, 40), Payloads::default());
        // One CSRC, an extension of one word, and two octets of padding.
        let mut packet = vec![0xb1, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9];
        packet.extend_from_slice(&[0xbe, 0xde, 0, 1, 0x10, 5, 0, 0, b'x', b'y', 0, 2]);
        let position = history.push(&packet, RtpMapping::default());
        assert_eq!(&payloads.payload(&history, position).unwrap()[..], b"xy");
    }
}
