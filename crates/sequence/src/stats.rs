//! Counters of a sequenced feed.

use serde::Serialize;

/// What came by one line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LineStats {
    /// Datagrams.
    pub datagrams: u64,
    /// Messages that no other line had brought.
    pub first: u64,
    /// Messages that had come already.
    pub duplicates: u64,
    /// Numbers that the line jumped over: lost on it, or out of order.
    pub skipped: u64,
    /// Heartbeats and ends of session.
    pub heartbeats: u64,
    /// Datagrams that are not of the feed's framing.
    pub malformed: u64,
    /// Datagrams of a session or numbering that is over, and replies to nothing.
    pub stale: u64,
}

/// What became of a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ArbiterStats {
    /// Messages handed on in order.
    pub messages: u64,
    /// Messages handed on out of order, after their gap was announced.
    pub late: u64,
    /// Messages that were missing, and came in time to be handed on in order.
    pub recovered: u64,
    /// Gaps announced.
    pub gaps: u64,
    /// Messages in them.
    pub lost: u64,
    /// Gaps announced before their time because the window was full.
    pub forced: u64,
    /// Times that a sender began to number anew.
    pub resets: u64,
    /// Sessions seen.
    pub sessions: u64,
    /// Sessions that said that they were over.
    pub ended: u64,
}
