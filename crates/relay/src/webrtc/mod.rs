//! WebRTC sessions in rooms: browsers and their like publish by WHIP (RFC 9725) and receive by WHEP.
//!
//! ```text
//!  HTTP worker                                    worker of the room
//!  POST ─▶ http ─▶ answer: offer ─▶ Rtc ── Join ──▶ Relay: Session ◀─▶ demux ◀─ datagrams of one UDP address
//!            ▲        desk: a place, a URL             │    ▲
//!            └────────── Reply ────────────────────────┘    └─ the room: packets in, its history out
//! ```
//!
//! str0m keeps the protocols of a session (ICE-lite, DTLS, SRTP, RTCP with NACK and TWCC) and has neither sockets, clock nor threads. The
//! room stays what it is: a session that publishes puts packets into its history like any publisher of RTP, and one that receives is a cursor
//! in it like any receiver, so that RTP comes out as WebRTC and WebRTC as RTP.
//!
//! * [`http`]: requests of WHIP and WHEP; [`answer`]: from an offer to a session; [`desk`]: places and URLs.
//! * [`demux`]: which session a datagram is for.
//! * `worker`: the sessions of a worker; `session`, `outlet`, `payloads`: a peer, what it sees of a room, the octets that peers share.
//! * `board`, `channels`: what is said on data channels, and who hears it.
//! * `crypto`: what takes keys, by BoringSSL.

pub mod answer;
mod board;
mod channels;
mod codec;
mod crypto;
pub mod demux;
pub mod desk;
pub mod http;
mod outlet;
mod payloads;
mod session;
mod worker;

pub(crate) use worker::{Address, Route, Seats, Sessions};

#[cfg(test)]
mod tests;
