//! What a session publishes: its peer's packets on their way into the room.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use str0m::rtp::{RtpPacket, Ssrc};

use super::session::{RoomContext, Session};
use crate::rtp::header::Header;
use crate::rtp::room::STREAMS;
use crate::rtp::stream::SenderReport;

/// Seconds from the epoch of NTP to that of Unix (RFC 5905, section 6).
const NTP_EPOCH: u64 = 2_208_988_800;

/// A stream of a peer that publishes.
#[derive(Debug)]
pub(super) struct Incoming {
    ssrc: u32,
    /// The layer of its simulcast, by RID.
    layer: Option<Box<str>>,
    /// What is lost of it is asked for: somebody receives it.
    is_repaired: bool,
}

impl Session {
    /// The peer's stream of that SSRC. It says in the first packets only which layer that is (RFC 8852, section 3), which str0m keeps.
    fn incoming(&mut self, ssrc: u32) -> Option<usize> {
        if let Some(found) = self.incoming.iter().position(|stream| stream.ssrc == ssrc) {
            return Some(found);
        }
        let mut api = self.rtc.direct_api();
        let layer = api.stream_rx(&Ssrc::from(ssrc))?.rid().map(|rid| rid.to_string().into());
        if self.incoming.len() == STREAMS {
            self.incoming.remove(0);
        }
        self.incoming.push(Incoming { ssrc, layer, is_repaired: true });
        Some(self.incoming.len() - 1)
    }

    /// A packet goes into the room.
    pub(super) fn publish(&mut self, packet: &RtpPacket, context: &mut RoomContext<'_>, now: Instant) {
        let header = &packet.header;
        let theirs = *header.payload_type;
        let Some(payload_type) = self.types.iter().find(|(own, _)| *own == theirs).map(|(_, room)| *room)
        else {
            context.counters.dropped_codec += 1;
            return;
        };
        // Padding that probes for bandwidth.
        if packet.payload.is_empty() {
            return;
        }
        let (ssrc, timestamp) = (*header.ssrc, header.timestamp);
        let Some(incoming) = self.incoming(ssrc) else { return };
        let rewritten = Header { payload_type, sequence: header.sequence_number, timestamp, ssrc };
        let Incoming { layer, is_repaired, .. } = &mut self.incoming[incoming];
        let whole = (rewritten, header.marker);
        context.room.handle_session(self.number, whole, layer.as_deref(), &packet.payload, now);
        let is_watched = context.room.is_watched(ssrc);
        if std::mem::replace(is_repaired, is_watched) != is_watched
            && let Some(stream) = self.rtc.direct_api().stream_rx(&Ssrc::from(ssrc))
        {
            stream.suppress_nack(!is_watched);
        }
        if let Some(info) = packet.last_sender_info.filter(|info| info.ssrc == header.ssrc) {
            let report = SenderReport {
                ntp: ntp(info.ntp_time),
                rtp: info.rtp_time.numer() as u32,
                packets: info.sender_packet_count,
                octets: info.sender_octet_count,
                at: now,
                number: 0,
            };
            context.room.handle_session_report(self.number, ssrc, report);
        }
    }
}

/// A wall clock as an NTP timestamp.
fn ntp(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let fraction = (u64::from(since.subsec_nanos()) << 32) / 1_000_000_000;
    ((since.as_secs() + NTP_EPOCH) << 32) | fraction
}
