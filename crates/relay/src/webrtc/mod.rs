//! WebRTC sessions in rooms: browsers and their like publish by WHIP (RFC 9725) and receive by WHEP.
//!
//! ```text
//!  HTTP worker                                    worker of the room
//!  POST ─▶ http ─▶ answer: offer ─▶ Rtc ── Join ──▶ Relay: Session ◀─▶ demux ◀─ datagrams of one UDP address
//!            ▲        table: a slot, a URL              │    ▲
//!            └────────── ReplySender ──────────────────┘    └─ the room: packets in, its history out
//! ```
//!
//! str0m keeps the protocols of a session (ICE-lite, DTLS, SRTP, RTCP with NACK and TWCC) and has neither sockets, clock nor threads. The
//! room stays what it is: a session that publishes puts packets into its history like any publisher of RTP, and one that receives is a cursor
//! in it like any receiver, so that RTP comes out as WebRTC and WebRTC as RTP.
//!
//! * [`http`]: requests of WHIP and WHEP; [`answer`]: from an offer to a session; [`table`]: all sessions, by URL.
//! * [`demux`]: which session a datagram is for; `addresses`: whose an address is.
//! * `worker`: the sessions of a worker; `session`, `publish`, `play`: a peer, and what is from and for it;
//!   `send_track`, `payloads`: a stream that it is sent, the octets that peers share.
//! * `layers`: which of a publisher's simulcast a session sees; `pictures`: key frames, and numbers of pictures.
//! * `message_log`, `channels`: what is sent on data channels, and who receives it.
//! * `crypto`: what takes keys, by BoringSSL.

mod addresses;
pub mod answer;
mod channels;
mod codec;
mod crypto;
pub mod demux;
pub mod http;
mod layers;
mod message_log;
mod payloads;
mod pictures;
mod play;
mod publish;
mod send_track;
mod session;
pub mod table;
mod worker;

pub(crate) use worker::{Address, RoomMembers, Route, Sessions};

#[cfg(test)]
mod tests;
