//! Requests that fail: malformed, refused, abandoned, or too many.

use expressway_h3::{Error, Scope};

use super::Session;
use crate::h3::code;
use crate::h3::stream::Progress;
use crate::quic::Turn;

/// Requests that a client may abandon beyond those it sees through, before its connection is closed: what
/// "rapid reset" attacks do by the million, and impatient seeking by the dozen.
const ABANDONED_ALLOWANCE: u32 = 500;

impl Session {
    /// Ends what `error` ends.
    pub(super) fn fail(&mut self, turn: &mut Turn<'_>, stream: u64, error: &Error) {
        match error.scope {
            Scope::Connection => {
                tracing::debug!(remote = %turn.link.remote(), %error, "HTTP/3 protocol error by the client");
                turn.worker.stats.connections_protocol_error += 1;
                turn.link.transport.close(error.code, error.reason);
            }
            Scope::Stream => {
                tracing::debug!(remote = %turn.link.remote(), stream, %error, "request refused");
                self.is_new(stream);
                match error.code {
                    code::EXCESSIVE_LOAD => turn.worker.stats.refused_header_size += 1,
                    _ => turn.worker.stats.refused_malformed += 1,
                }
                self.abort(turn, stream, error.code);
                self.give_up(turn, stream);
            }
        }
    }

    pub(super) fn handle_reset(&mut self, turn: &mut Turn<'_>, stream: u64) {
        if self.is_new(stream) {
            // Given up before its header section was complete.
            turn.link.transport.reset_stream(stream, code::REQUEST_CANCELLED);
            self.count_abandoned(turn);
        } else if self.streams.contains_key(&stream) {
            turn.link.transport.reset_stream(stream, code::REQUEST_CANCELLED);
            self.end(turn, stream, Progress::Cancelled);
        }
    }

    pub(super) fn refuse_malformed(&mut self, turn: &mut Turn<'_>, stream: u64, reason: &str) {
        tracing::debug!(remote = %turn.link.remote(), stream, reason, "malformed request");
        turn.worker.stats.refused_malformed += 1;
        self.abort(turn, stream, code::MESSAGE_ERROR);
        self.give_up(turn, stream);
    }

    /// Counts a request that came to nothing.
    pub(super) fn give_up(&mut self, turn: &mut Turn<'_>, stream: u64) {
        if self.streams.contains_key(&stream) {
            self.end(turn, stream, Progress::Cancelled);
        } else {
            self.count_abandoned(turn);
        }
    }

    /// Ends both sides of a stream.
    pub(super) fn abort(&mut self, turn: &mut Turn<'_>, stream: u64, code: u64) {
        turn.link.transport.stop_stream(stream, code);
        turn.link.transport.reset_stream(stream, code);
        self.incoming.forget(stream);
    }

    pub(super) fn count_abandoned(&mut self, turn: &mut Turn<'_>) {
        self.abandoned += 1;
        if self.abandoned == ABANDONED_ALLOWANCE {
            turn.worker.stats.refused_rapid_reset += 1;
            turn.link.transport.close(code::EXCESSIVE_LOAD, "too many abandoned requests");
        }
    }
}
