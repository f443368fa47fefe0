//! Counters of rooms, and how other threads read them.

use std::net::SocketAddr;
use std::sync::Arc;

use expressway_netio::stats::{Published, counters};

use crate::moq::room::Room;

counters! {
    /// Counters of a room.
    pub struct RoomCounters {
        /// Packets of the publisher that were kept for receivers.
        pub packets: u64,
        /// Their bytes, RTP headers included.
        pub bytes: u64,
        /// Packets that came for the room and are no RTP.
        pub dropped_malformed: u64,
        /// Packets from an address that may not publish.
        pub dropped_not_allowed: u64,
        /// Packets from another address while a publisher is there.
        pub dropped_second_publisher: u64,
        /// Packets longer than what is kept.
        pub dropped_too_long: u64,
        /// Packets of one SSRC too many.
        pub dropped_ssrc: u64,
        /// Packets that came twice.
        pub dropped_duplicate: u64,
        /// Packets that were not sealed with the key that they should be.
        pub dropped_srtp: u64,
        /// Sealed packets that came before, or too late to tell.
        pub dropped_replay: u64,
        /// RTCP packets that are none.
        pub dropped_rtcp_malformed: u64,
        /// RTCP packets from an address that neither publishes nor receives.
        pub dropped_rtcp_stranger: u64,
        /// Packets and reports for another worker that had no room for them.
        pub dropped_handover: u64,
        /// Publishers that began.
        pub publishers: u64,
        /// Packets that the publisher was asked for again.
        pub nacked: u64,
        /// Key frames that receivers asked for.
        pub keyframes_wanted: u64,
        /// Requests for key frames sent to the publisher.
        pub keyframes_asked: u64,
        /// Reports sent to the publisher.
        pub reports: u64,
    }
}

counters! {
    /// Counters of a receiver.
    pub struct ReceiverCounters {
        /// Packets sent, repairs included.
        pub packets: u64,
        /// Their bytes, RTP headers included.
        pub bytes: u64,
        /// Packets that it was not sent: it was behind by more than the history has.
        pub skipped: u64,
        /// Packets sent again on request.
        pub repairs: u64,
        /// Requests for packets that were beyond what may be sent again.
        pub repairs_refused: u64,
        /// Packets longer than what goes to it in one datagram.
        pub dropped_too_long: u64,
        /// Requests for packets (NACK).
        pub nacks: u64,
    }
}

counters! {
    /// What a room and its publisher are like now.
    pub struct RoomGauges {
        /// 1 while somebody publishes.
        pub publishing: u64,
        /// Streams (SSRCs) of the publisher.
        pub streams: u64,
        /// Packets lost on the way from the publisher.
        pub lost: u64,
        /// The highest jitter of a stream, in microseconds.
        pub jitter_microseconds: u64,
    }
}

counters! {
    /// What a receiver last said.
    pub struct ReceiverGauges {
        /// Packets lost on the way to it, of its worst stream.
        pub lost: u64,
        /// Of late, in 1/256.
        pub fraction_lost: u64,
        /// Jitter, in units of the stream's clock.
        pub jitter: u64,
        /// Round trip, in microseconds; 0: unknown.
        pub round_trip_microseconds: u64,
    }
}

counters! {
    /// Counters of a room's WebRTC sessions.
    pub struct WebRtcCounters {
        /// Sessions that were agreed on to publish.
        pub publishers: u64,
        /// Sessions that were agreed on to receive.
        pub players: u64,
        /// Sessions whose ICE and DTLS succeeded.
        pub connected: u64,
        /// RTP packets given to sessions that receive.
        pub packets: u64,
        /// Changes of the layer that a session sees.
        pub layer_changes: u64,
        /// Datagrams sent to sessions: media, repairs, reports, handshakes.
        pub datagrams: u64,
        /// Their bytes.
        pub bytes: u64,
        /// Packets that a session was not sent: it was behind by more than the history has.
        pub skipped: u64,
        /// Datagrams for a session that are none of its protocols.
        pub dropped_malformed: u64,
        /// Requests of ICE for a session without its password.
        pub dropped_password: u64,
        /// Requests of ICE from more new addresses than a session may have.
        pub dropped_new_address: u64,
        /// Packets of a codec that was not agreed on with the session they came from or were for.
        pub dropped_codec: u64,
        /// Datagrams that found no room while too many waited for a session.
        pub dropped_waiting: u64,
        /// Datagrams longer than what goes to a session at once.
        pub dropped_too_long: u64,
        /// Messages of data channels that were kept for others.
        pub messages: u64,
        /// Messages sent to sessions.
        pub messages_sent: u64,
        /// Messages of sessions that are not heard, without a channel, or too long.
        pub dropped_message: u64,
        /// Messages on unreliable channels for sessions that had no room for them.
        pub dropped_slow_message: u64,
        /// Messages that a session was not sent: it was behind by more than is kept.
        pub skipped_messages: u64,
        /// Reliable channels closed for that.
        pub closed_channels: u64,
        /// Sessions whose ICE and DTLS took too long.
        pub ended_handshake: u64,
        /// Sessions that were not heard from for long.
        pub ended_lost: u64,
        /// Sessions that broke a protocol.
        pub ended_failed: u64,
        /// Sessions whose place another publisher took.
        pub ended_replaced: u64,
        /// Sessions that said goodbye, or were told to go.
        pub ended_left: u64,
    }
}

counters! {
    /// What comes to a worker for WebRTC sessions and is for none.
    pub struct DemuxCounters {
        /// Requests of ICE for a session that is not there.
        pub dropped_fragment: u64,
        /// DTLS and RTP from addresses that no session was heard from, and requests from the address of another.
        pub dropped_stranger: u64,
        /// Datagrams that are no protocol of WebRTC.
        pub dropped_unknown: u64,
        /// Datagrams for a session of another worker that had no room for them.
        pub dropped_handover: u64,
    }
}

counters! {
    /// What a room's WebRTC sessions are like now.
    pub struct WebRtcGauges {
        /// 1 while a session is there to publish.
        pub publishers: u64,
        /// Sessions that receive.
        pub players: u64,
        /// Sessions that receive whose path's bandwidth is estimated.
        pub estimated: u64,
        /// The lowest of the estimates, in bits per second.
        pub estimate_lowest: u64,
        /// Their mean.
        pub estimate_mean: u64,
        /// The highest of them.
        pub estimate_highest: u64,
    }
}

counters! {
    /// Counters of Media over QUIC in a room.
    pub struct MoqCounters {
        /// Sessions that came.
        pub sessions: AtomicU64,
        /// Broadcasts that were announced.
        pub broadcasts: AtomicU64,
        /// Subscriptions to tracks.
        pub subscriptions: AtomicU64,
        /// Groups that publishers began.
        pub groups: AtomicU64,
        /// Objects of publishers that were kept for subscribers.
        pub objects: AtomicU64,
        /// Bytes of these, with their heads.
        pub bytes: AtomicU64,
        /// Groups that were begun for subscribers.
        pub groups_sent: AtomicU64,
        /// Bytes sent to subscribers, fetched groups included.
        pub bytes_sent: AtomicU64,
        /// Groups that a subscriber was not sent: it was too far behind.
        pub groups_skipped: AtomicU64,
        /// Groups that ended early for a subscriber: it was too far behind, or they did so for all.
        pub groups_cut: AtomicU64,
        /// Groups that were not kept any longer to make room for newer ones.
        pub groups_evicted: AtomicU64,
        /// Single groups that were asked for and sent.
        pub fetches: AtomicU64,
        /// Single groups that were asked for and are not kept.
        pub fetches_missed: AtomicU64,
        /// Broadcasts whose place another session took.
        pub replaced: AtomicU64,
        /// Groups that have ended because they are more than what is kept, or were the longest in a full room.
        pub dropped_group_too_large: AtomicU64,
        /// Groups that do not consist of whole objects, or of ones that are too long.
        pub dropped_malformed: AtomicU64,
        /// Broadcasts beyond their number, or with a path that is too long.
        pub refused_broadcast: AtomicU64,
        /// Requests beyond their number, of a session, a broadcast or a track.
        pub refused_limit: AtomicU64,
        /// Requests for a broadcast that is not there.
        pub refused_not_found: AtomicU64,
        /// Sessions that broke the protocol.
        pub sessions_failed: AtomicU64,
        /// Times that something for a session had to wait because it held as much as it may.
        pub starved: AtomicU64,
        /// Sessions that acknowledged nothing of what was on its way for 30 seconds.
        pub ended_stalled: AtomicU64,
        /// Streams on which a message was incomplete for 10 seconds.
        pub ended_incomplete: AtomicU64,
        /// Publishers that were not heard from any more.
        pub ended_vanished: AtomicU64,
    }
}

counters! {
    /// What Media over QUIC is like in a room now.
    pub struct MoqGauges {
        /// Sessions.
        pub sessions: AtomicU64,
        /// Broadcasts that are announced.
        pub broadcasts: AtomicU64,
        /// Tracks that something is or was asked of.
        pub tracks: AtomicU64,
        /// Subscriptions.
        pub subscriptions: AtomicU64,
    }
}

counters! {
    /// Counters of what a room's publisher sends, on its way into a broadcast of Media over QUIC.
    pub struct BridgeCounters {
        /// Frames that were published.
        pub frames: u64,
        /// Groups that were begun.
        pub groups: u64,
        /// Bytes of the frames.
        pub bytes: u64,
        /// Frames with lost packets, and those after a loss up to the next key frame.
        pub frames_lost: u64,
        /// Key frames that the publisher was to be asked for.
        pub keyframes_wanted: u64,
        /// Packets of streams of which another one is published: lower layers, for one.
        pub other_streams: u64,
        /// Packets of a codec that frames are not made of.
        pub dropped_codec: u64,
        /// Packets that came after they were given up.
        pub dropped_late: u64,
        /// Frames with packets that are not what their codec has.
        pub dropped_malformed: u64,
        /// Frames longer than an object may be.
        pub dropped_too_long: u64,
        /// Key frames of H.264 without parameter sets.
        pub dropped_no_parameters: u64,
        /// Frames that found no place: of a group that is more than what is kept, or while a session's broadcast is in the place of this one.
        pub dropped_unpublished: u64,
    }
}

counters! {
    /// What that broadcast is like now.
    pub struct BridgeGauges {
        /// 1 while it is announced.
        pub announced: u64,
    }
}

/// What a room shows of a receiver.
#[derive(Clone, Debug)]
pub struct ReceiverStatus {
    /// Its address.
    pub address: SocketAddr,
    /// Counters.
    pub counters: Arc<Published<ReceiverCounters>>,
    /// What it is like.
    pub gauges: Arc<Published<ReceiverGauges>>,
}

/// What a room shows of its WebRTC sessions.
#[derive(Clone, Debug, Default)]
pub struct WebRtcStatus {
    /// Counters.
    pub counters: Arc<Published<WebRtcCounters>>,
    /// What they are like.
    pub gauges: Arc<Published<WebRtcGauges>>,
}

/// What a room shows of the broadcast that its publisher's media becomes.
#[derive(Clone, Debug)]
pub struct BridgeStatus {
    /// Its path.
    pub path: String,
    /// Counters.
    pub counters: Arc<Published<BridgeCounters>>,
    /// What it is like.
    pub gauges: Arc<Published<BridgeGauges>>,
}

/// What a room shows.
#[derive(Clone, Debug)]
pub struct RoomStatus {
    /// Its name.
    pub name: String,
    /// Counters.
    pub counters: Arc<Published<RoomCounters>>,
    /// What it is like.
    pub gauges: Arc<Published<RoomGauges>>,
    /// Its WebRTC sessions; `None` where there are none.
    pub webrtc: Option<WebRtcStatus>,
    /// Media over QUIC; `None` where there is none.
    pub moq: Option<Arc<Room>>,
    /// The broadcast that its publisher's media becomes; `None` where there is none.
    pub bridge: Option<BridgeStatus>,
    /// Its receivers.
    pub receivers: Vec<ReceiverStatus>,
}
