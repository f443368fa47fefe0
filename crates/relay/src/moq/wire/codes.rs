//! Numbers of moq-lite-05: error codes of sessions and streams, and types of streams.

/// Codes that a session is closed with (draft-lcurley-moq-lite, Error Codes).
pub mod session_code {
    /// Nothing is wrong.
    pub const CANCEL: u64 = 0x0;
    /// There is no such room, or no right to it.
    pub const UNAUTHORIZED: u64 = 0x2;
    /// The peer broke the protocol.
    pub const PROTOCOL_VIOLATION: u64 = 0x3;
    /// The peer stayed after GOAWAY.
    pub const GOAWAY_TIMEOUT: u64 = 0x10;
    /// The peer said nothing of itself in time.
    pub const TIMEOUT: u64 = 0x11;
}

/// Codes that a stream is reset with (draft-lcurley-moq-lite, Error Codes).
pub mod stream_code {
    /// Nobody wants it any more.
    pub const CANCEL: u64 = 0x1;
    /// The session that it came from has ended.
    pub const SESSION_CLOSED: u64 = 0x3;
    /// Frames that are none.
    pub const MALFORMED: u64 = 0x12;
    /// More than this side does for one peer.
    pub const NO_CAPACITY: u64 = 0x30;
    /// The group is larger than what is kept.
    pub const GROUP_TOO_LARGE: u64 = 0x32;
    /// There is no such broadcast, track or group.
    pub const NOT_FOUND: u64 = 0x33;
    /// The group is older than the subscriber wants.
    pub const OLD: u64 = 0x34;
    /// The group is not kept any more.
    pub const EVICTED: u64 = 0x35;
}

/// Types of streams in both directions.
pub mod request {
    /// ANNOUNCE_REQUEST, then ANNOUNCE_OK and ANNOUNCE_BROADCAST.
    pub const ANNOUNCE: u64 = 1;
    /// SUBSCRIBE, then SUBSCRIBE_START, SUBSCRIBE_END and SUBSCRIBE_DROP.
    pub const SUBSCRIBE: u64 = 2;
    /// FETCH, then frames.
    pub const FETCH: u64 = 3;
    /// PROBE.
    pub const PROBE: u64 = 4;
    /// GOAWAY.
    pub const GOAWAY: u64 = 5;
    /// TRACK, then TRACK_INFO.
    pub const TRACK: u64 = 6;
}

/// Types of streams in one direction.
pub mod data {
    /// GROUP, then frames.
    pub const GROUP: u64 = 0;
    /// SETUP.
    pub const SETUP: u64 = 1;
}
