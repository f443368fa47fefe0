//! Live media from a publisher to many receivers over UDP.
//!
//! ```text
//!  publisher ─▶ PacketIo ─▶ Relay::handle_datagram ─▶ Room ─▶ history: one copy, in order of arrival
//!      ▲                                               │            │
//!      └── receiver reports, NACK, PLI ◀───────────────┘            ▼
//!                                              a cursor for each receiver: poll_transmit copies new packets
//!                                              into the frames that they leave in, header rewritten
//!  receivers ◀─ RTP, sender reports, repairs ──────────────────────┘
//!      └── receiver reports, NACK, PLI ─▶ Room: repairs out of the history, keyframe requests collapsed
//! ```
//!
//! * [`config`]: rooms, their publishers and their receivers.
//! * [`rtp`]: a room without I/O: what it keeps of a publisher, and what each receiver still needs.
//! * [`srtp`]: opens and seals RTP.
//! * [`service`]: rooms on a worker of `netio`.
//! * [`webrtc`]: WebRTC sessions that publish into rooms and receive from them.
//! * [`moq`]: Media over QUIC sessions, in the same rooms.
//! * [`bridge`]: what comes as RTP, as a broadcast of Media over QUIC.
//! * [`status`]: counters and status.
//!
//! It decodes no media. Joining multicast groups is left to whoever has the sockets.
//!
//! # Decisions
//!
//! A room belongs to one worker. Its receivers are cursors in one history, so a slow one falls behind alone, and repairs come from the
//! packets that are kept anyway. The relay ends RTCP on both sides: a publisher sees one receiver, however many there are behind it. SRTP
//! ends here too: packets are opened when they arrive and sealed when they leave, and rooms keep what was opened.

#![forbid(unsafe_code)]

pub mod bridge;
pub mod config;
pub mod moq;
pub mod rtp;
pub mod service;
pub mod srtp;
pub mod status;
pub mod webrtc;

pub use config::Config;
pub use service::Relay;
