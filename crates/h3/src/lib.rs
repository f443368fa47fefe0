//! HTTP/3 on the bytes of streams (RFC 9114, RFC 9204, RFC 9218). Pure functions and small state machines.
//!
//! What it does:
//! * [`RequestReader`] parses the frames of a request stream, [`ControlReader`] those of a client's control
//!   stream, and [`InstructionReader`] a client's QPACK streams. Each reports what a client must not do.
//! * [`qpack`] decodes header sections into borrowed fields and encodes response heads.
//! * [`frame`] and [`settings`] write what a server sends.
//! * [`webtransport`] and [`capsule`] are what WebTransport adds.
//!
//! What it does not: no I/O, no streams, no requests, no push, no dynamic table. Incomplete frames are kept up
//! to a bound. The announced length is checked against it before a byte is kept. No input makes it panic.

#![forbid(unsafe_code)]

pub mod capsule;
mod control;
mod error;
pub mod frame;
mod instruction;
pub mod qpack;
mod reader;
mod request;
pub mod settings;
pub mod varint;
pub mod webtransport;

pub use capsule::{Capsule, CapsuleReader};
pub use control::{ControlEvent, ControlReader};
pub use error::{Error, Scope, code};
pub use instruction::{InstructionReader, Instructions};
pub use request::{RequestEvent, RequestReader};
pub use settings::Settings;

/// Types of unidirectional streams (RFC 9114, section 6.2; RFC 9204, section 4.2).
pub mod stream_type {
    /// Control stream.
    pub const CONTROL: u64 = 0x00;
    /// Push stream; only servers open them.
    pub const PUSH: u64 = 0x01;
    /// The peer's QPACK encoder speaks.
    pub const QPACK_ENCODER: u64 = 0x02;
    /// The peer's QPACK decoder speaks.
    pub const QPACK_DECODER: u64 = 0x03;
    /// A stream of a WebTransport session (draft-ietf-webtrans-http3-15, section 4.3).
    pub const WEBTRANSPORT: u64 = 0x54;
}
