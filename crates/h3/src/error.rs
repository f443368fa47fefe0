//! Errors of a client, and whether they end a stream or the connection.

/// Error codes.
pub mod code {
    /// Graceful end (RFC 9114, section 8.1, as all `H3_` codes).
    pub const NO_ERROR: u64 = 0x100;
    /// A local fault.
    pub const INTERNAL_ERROR: u64 = 0x102;
    /// A stream of a kind that may not be opened, or not again.
    pub const STREAM_CREATION_ERROR: u64 = 0x103;
    /// A stream that must live as long as the connection was closed.
    pub const CLOSED_CRITICAL_STREAM: u64 = 0x104;
    /// A frame that is not allowed where it stands.
    pub const FRAME_UNEXPECTED: u64 = 0x105;
    /// A frame whose layout or length is wrong.
    pub const FRAME_ERROR: u64 = 0x106;
    /// The peer behaves in a way that costs too much.
    pub const EXCESSIVE_LOAD: u64 = 0x107;
    /// A stream or push ID that is out of bounds.
    pub const ID_ERROR: u64 = 0x108;
    /// The SETTINGS frame is wrong.
    pub const SETTINGS_ERROR: u64 = 0x109;
    /// No SETTINGS at the beginning of the control stream.
    pub const MISSING_SETTINGS: u64 = 0x10a;
    /// The request was not processed.
    pub const REQUEST_REJECTED: u64 = 0x10b;
    /// The request is not wanted any more.
    pub const REQUEST_CANCELLED: u64 = 0x10c;
    /// The stream ended before the request did.
    pub const REQUEST_INCOMPLETE: u64 = 0x10d;
    /// The request is malformed.
    pub const MESSAGE_ERROR: u64 = 0x10e;
    /// A WebTransport session took no stream that came before it (draft-ietf-webtrans-http3-15, section 9.5, as all `WT_` codes).
    pub const WT_BUFFERED_STREAM_REJECTED: u64 = 0x3994_bd84;
    /// The stream's WebTransport session is over.
    pub const WT_SESSION_GONE: u64 = 0x170d_7b68;
    /// A limit of a WebTransport session that cannot be.
    pub const WT_FLOW_CONTROL_ERROR: u64 = 0x045d_4487;
    /// A header section that cannot be decoded (RFC 9204, section 6, as all `QPACK_` codes).
    pub const QPACK_DECOMPRESSION_FAILED: u64 = 0x200;
    /// An instruction on the encoder stream that cannot be followed.
    pub const QPACK_ENCODER_STREAM_ERROR: u64 = 0x201;
    /// An instruction on the decoder stream that cannot be followed.
    pub const QPACK_DECODER_STREAM_ERROR: u64 = 0x202;
}

/// What an error ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The stream that it happened on.
    Stream,
    /// The connection.
    Connection,
}

/// A client's fault, with the code to answer it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason} ({code:#x})")]
pub struct Error {
    /// One of [`code`].
    pub code: u64,
    /// What it was, for the log and the peer.
    pub reason: &'static str,
    /// What it ends.
    pub scope: Scope,
}

impl Error {
    /// An error that ends the connection.
    pub const fn connection(code: u64, reason: &'static str) -> Self {
        Self { code, reason, scope: Scope::Connection }
    }

    /// An error that ends its stream.
    pub const fn stream(code: u64, reason: &'static str) -> Self {
        Self { code, reason, scope: Scope::Stream }
    }
}
