//! A room of RTP (RFC 3550), or of datagrams that are none, without I/O.
//!
//! The relay is a translator towards receivers (RFC 3550, section 7; RFC 7667, section 3.2.1): packets keep what their publisher
//! gave them, unless a receiver has an SSRC of its own. Towards the publisher it is one receiver: it reports on what it received itself,
//! and asks for what it misses. What receivers ask for is answered here: packets out of the history, key frames by one request for all.
//!
//! * [`header`]: packets as bytes; [`history`]: those that are kept.
//! * [`stream`]: an SSRC of the publisher, with its [`reception`] and what is [`missing`] of it.
//! * [`rate`]: how much a stream carries.
//! * [`receiver`]: where each receiver is in the history.
//! * [`reports`]: RTCP that is sent; [`keyframe`]: requests that are collapsed.
//! * [`room`]: all of it; `feedback`, `transmit`: its RTCP, what it sends; [`sessions`]: what it is to WebRTC sessions.

mod feedback;
pub mod header;
pub mod history;
pub mod keyframe;
pub mod missing;
pub mod rate;
pub mod receiver;
pub mod reception;
pub mod reports;
pub mod room;
pub mod sessions;
pub mod stream;
mod transmit;

pub use room::{Progress, Room};
