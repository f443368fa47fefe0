//! WebRTC sessions in rooms: browsers and similar clients publish by WHIP (RFC 9725) and receive by WHEP.
//!
//! ```text
//!  HTTP worker                                    worker of the room
//!  POST ─▶ http ─▶ answer: offer ─▶ Rtc ── Join ──▶ Relay: Session ◀─▶ demux ◀─ datagrams of one UDP address
//!            ▲        table: a slot, a URL              │    ▲
//!            └────────── ReplySender ──────────────────┘    └─ the room: packets in, its history out
//! ```
//!
//! str0m implements the protocols of a session (ICE-lite, DTLS, SRTP, RTCP with NACK and TWCC), and has no sockets, clock or threads. The
//! room does not change. A publishing session puts packets into its history like any publisher of RTP. A receiving session is a cursor in
//! it like any receiver. So RTP can be received as WebRTC, and WebRTC as RTP.
//!
//! * [`http`]: WHIP and WHEP requests; [`answer`]: turns an offer into a session; `sdp`: what an offer may have; [`table`]: all sessions, by
//!   URL.
//! * [`demux`]: which session a datagram is for; `addresses`: which session an address belongs to.
//! * `worker`: the sessions of a worker, `members`: those of a room; `session`, `publish`, `play`: a peer, what it sends and what it receives;
//!   `send_track`, `payloads`: a stream sent to it, and the bytes that peers share.
//! * `layers`: which simulcast layer a session sees; `pictures`: key frames, and picture numbers.
//! * `message_log`, `channels`: messages on data channels, and their receivers.
//! * `crypto`: everything that needs keys, by BoringSSL.

mod addresses;
pub mod answer;
mod channels;
mod codec;
mod crypto;
pub mod demux;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod http;
mod layers;
mod members;
mod message_log;
mod payloads;
mod pictures;
mod play;
mod publish;
mod sdp;
mod send_track;
mod session;
pub mod table;
mod worker;

pub(crate) use layers::layers;
pub(crate) use members::RoomMembers;
pub(crate) use pictures::begins_keyframe;
pub(crate) use worker::{Address, Route, Sessions};

#[cfg(test)]
mod tests;
