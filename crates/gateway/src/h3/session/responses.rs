//! Responses on their way: woken, given room, ended and logged.

use super::{Session, SessionContext};
use crate::h3::stream::{Progress, RequestStream, StreamMap};
use crate::h3::{STREAM_MASK, code};
use crate::quic::engine::Transport;

impl Session {
    /// An exchange can make progress; `number` is what its wake token carries.
    pub(crate) fn handle_wake(&mut self, context: &mut SessionContext<'_>, number: u64) {
        // The token holds the low bits of the request's number, which are all of it for a long time.
        let mut named = self.streams.contains_key(&(number << 2)).then_some(number << 2);
        let mut waiting = Vec::new();
        if self.next_stream >> 2 > STREAM_MASK {
            // One may have waited while millions went by, so that another has the same bits.
            waiting.extend(self.streams.keys().filter(|stream| **stream >> 2 & STREAM_MASK == number));
            named = waiting.pop();
        }
        if named.is_none() {
            context.stats.wakeups_stale += 1;
        }
        for stream in named.into_iter().chain(waiting) {
            self.pump(context, stream);
        }
    }

    /// Gives streams what the transport and the send window now have room for.
    pub(crate) fn handle_writable(&mut self, context: &mut SessionContext<'_>) {
        self.flush(context);
        self.feed_starved(context);
        while let Some(stream) = context.transport.writable() {
            self.pump(context, stream);
        }
        // One that has ended among those gives back what it held.
        self.feed_starved(context);
    }

    /// Gives the room that there is to streams that wait for it, by their priority (RFC 9218, section 10): the most urgent
    /// first; of the same urgency the one that has waited longest, and incremental ones in turn.
    fn feed_starved(&mut self, context: &mut SessionContext<'_>) {
        if self.starved.is_empty() || self.held.bytes() >= context.window {
            return;
        }
        let mut waiting = std::mem::take(&mut self.starved);
        waiting.sort_by_key(|stream| self.streams.get(stream).map(|one| one.priority.urgency));
        let (mut served, mut waiting) = (Vec::new(), waiting.into_iter());
        while self.held.bytes() < context.window
            && let Some(stream) = waiting.next()
        {
            self.pump(context, stream);
            let takes_turns = self.streams.get(&stream).is_some_and(|one| one.priority.incremental);
            if takes_turns && self.starved.last() == Some(&stream) {
                self.starved.pop();
                served.push(stream);
            }
        }
        self.starved.extend(waiting.chain(served));
    }

    /// [`Self::handle_writable`] may have something to do: there is room for a stream that may wait for it.
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
        } else {
            self.starved.retain(|waiting| *waiting != stream);
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
