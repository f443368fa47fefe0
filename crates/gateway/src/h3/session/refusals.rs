//! Requests that come to nothing: malformed, refused, abandoned, too many of them.

use expressway_h3::{Error, Scope};

use super::{Session, SessionContext};
use crate::h3::code;
use crate::h3::stream::Progress;
use crate::quic::engine::CloseKind;

/// Requests that a client may abandon beyond those it sees through, before its connection is closed: what
/// "rapid reset" attacks do by the million, and impatient seeking by the dozen.
const ABANDONED_ALLOWANCE: u32 = 500;

impl Session {
    /// Ends what `error` ends.
    pub(super) fn fail(&mut self, context: &mut SessionContext<'_>, stream: u64, error: &Error) {
        match error.scope {
            Scope::Connection => {
                tracing::debug!(remote = %context.remote, %error, "HTTP/3 protocol error by the client");
                context.stats.connections_protocol_error += 1;
                context.transport.close(CloseKind::Application, error.code, error.reason);
            }
            Scope::Stream => {
                tracing::debug!(remote = %context.remote, stream, %error, "request refused");
                self.is_new(stream);
                match error.code {
                    code::EXCESSIVE_LOAD => context.stats.refused_header_size += 1,
                    _ => context.stats.refused_malformed += 1,
                }
                self.abort(context, stream, error.code);
                self.give_up(context, stream);
            }
        }
    }

    pub(super) fn handle_reset(&mut self, context: &mut SessionContext<'_>, stream: u64) {
        if self.is_new(stream) {
            // Given up before its header section was complete.
            context.transport.reset_stream(stream, code::REQUEST_CANCELLED);
            self.count_abandoned(context);
        } else if self.streams.contains_key(&stream) {
            context.transport.reset_stream(stream, code::REQUEST_CANCELLED);
            self.end(context, stream, Progress::Cancelled);
        }
    }

    pub(super) fn refuse_malformed(&mut self, context: &mut SessionContext<'_>, stream: u64, reason: &str) {
        tracing::debug!(remote = %context.remote, stream, reason, "malformed request");
        context.stats.refused_malformed += 1;
        self.abort(context, stream, code::MESSAGE_ERROR);
        self.give_up(context, stream);
    }

    /// Counts a request that came to nothing.
    pub(super) fn give_up(&mut self, context: &mut SessionContext<'_>, stream: u64) {
        if self.streams.contains_key(&stream) {
            self.end(context, stream, Progress::Cancelled);
        } else {
            self.count_abandoned(context);
        }
    }

    /// Ends both sides of a stream.
    pub(super) fn abort(&mut self, context: &mut SessionContext<'_>, stream: u64, code: u64) {
        context.transport.stop_stream(stream, code);
        context.transport.reset_stream(stream, code);
        self.incoming.forget(stream);
    }

    pub(super) fn count_abandoned(&mut self, context: &mut SessionContext<'_>) {
        self.abandoned += 1;
        if self.abandoned == ABANDONED_ALLOWANCE {
            context.stats.refused_rapid_reset += 1;
            context.transport.close(
                CloseKind::Application,
                code::EXCESSIVE_LOAD,
                "too many abandoned requests",
            );
        }
    }
}
