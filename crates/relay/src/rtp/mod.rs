//! A room of RTP (RFC 3550), or of other datagrams, without I/O.
//!
//! Towards receivers the relay is a translator (RFC 3550, section 7; RFC 7667, section 3.2.1): packets keep the fields that their
//! publisher gave them, unless a receiver has an SSRC of its own. Towards the publisher it is one receiver: it reports what it received
//! itself, and requests what it misses. Receivers' requests are answered here: packets from the history, and key frames by one
//! request to the publisher for all receivers.
//!
//! * [`header`]: packets as bytes; [`history`]: the packets that are kept.
//! * [`stream`]: an SSRC of the publisher, with its [`reception`] and its [`missing`] packets.
//! * [`rate`]: the bit rate of a stream.
//! * [`receiver`]: the position of each receiver in the history.
//! * [`reports`]: outgoing RTCP; [`keyframe`]: collapsed requests for key frames.
//! * [`room`]: all of these together; `feedback`: incoming RTCP; `transmit`: outgoing packets; [`sessions`]: the interface to WebRTC
//!   sessions.

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
