//! Responses on their way: woken, given room, ended and logged.

use super::{Session, SessionContext};
use crate::h3::stream::{Progress, RequestStream, StreamMap};
use crate::h3::{STREAM_MASK, code};
use crate::quic::engine::Transport;

impl Session {
    /// An exchange can make progress; `number` is what its wake token carries.
    pub(crate) fn handle_wake(&mut self, context: &mut SessionContext<'_>, number: u64) {
        // The token holds the low bits of the request's number; it is among the latest requests.
        let next = self.next_stream >> 2;
        let mut request = next & !STREAM_MASK | number;
        if request >= next {
            request = request.wrapping_sub(STREAM_MASK + 1);
        }
        let stream = request << 2;
        if self.streams.contains_key(&stream) {
            self.pump(context, stream);
        } else {
            context.stats.wakeups_stale += 1;
        }
    }

    /// Gives streams what the transport and the send window now have room for.
    pub(crate) fn handle_writable(&mut self, context: &mut SessionContext<'_>) {
        self.flush(context);
        if !self.starved.is_empty() && self.held.bytes() < context.window {
            for stream in std::mem::take(&mut self.starved) {
                self.pump(context, stream);
            }
        }
        while let Some(stream) = context.transport.writable() {
            self.pump(context, stream);
        }
    }

    /// [`Self::handle_writable`] would have something to do: there is room for a stream that waits for it.
    pub(crate) fn has_room(&self, transport: &Transport, window: usize) -> bool {
        transport.has_writable() || !self.starved.is_empty() && self.held.bytes() < window
    }

    pub(super) fn pump(&mut self, context: &mut SessionContext<'_>, stream: u64) {
        let Some(request) = self.streams.get_mut(&stream) else { return };
        match request.pump(context.transport, &self.held, context.window) {
            Progress::Transport | Progress::Exchange => {}
            Progress::Memory => {
                if !self.starved.contains(&stream) {
                    self.starved.push(stream);
                }
            }
            progress => self.end(context, stream, progress),
        }
    }

    /// The response is over, one way or the other.
    pub(super) fn end(&mut self, context: &mut SessionContext<'_>, stream: u64, progress: Progress) {
        let Some(request) = self.streams.remove(&stream) else { return };
        context.stats.requests_active -= 1;
        context.stats.response_body_bytes += request.body_sent;
        match progress {
            Progress::Complete => {
                context.stats.responses_complete += 1;
                self.abandoned = self.abandoned.saturating_sub(1);
                if !request.request_ended {
                    // The rest of the request is of no use (RFC 9114, section 4.1).
                    context.transport.stop_stream(stream, code::NO_ERROR);
                }
            }
            Progress::Failed => {
                context.stats.responses_failed += 1;
                self.abort(context, stream, code::INTERNAL_ERROR);
            }
            _ => {
                context.stats.responses_cancelled += 1;
                if !request.request_ended {
                    context.transport.stop_stream(stream, code::REQUEST_CANCELLED);
                }
                self.count_abandoned(context);
            }
        }
        self.log(context, &request, progress == Progress::Complete);
        if !request.request_ended {
            self.incoming.forget(stream);
        }
        if self.streams.is_empty() {
            // An idle connection keeps no room for requests.
            self.streams = StreamMap::default();
            self.starved = Vec::new();
            self.late.shrink_to_fit();
        }
    }

    pub(super) fn log(&self, context: &SessionContext<'_>, request: &RequestStream, complete: bool) {
        if let (Some(log), Some(logged)) = (context.log, &request.logged) {
            let mut record =
                RequestStream::record(logged, request.status, request.body_sent, complete, context.now);
            record.tls_cipher = self.cipher;
            record.io_mode = context.io_mode;
            record.worker = context.worker;
            log.log(&record);
        }
    }
}
