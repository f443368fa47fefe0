//! Responses on their way: woken, given room, ended and logged.

use std::collections::VecDeque;

use super::{Session, SessionContext};
use crate::h3::stream::{Progress, RequestStream, StreamMap};
use crate::h3::{STREAM_MASK, code};
use crate::quic::engine::Transport;

impl Session {
    /// An exchange can make progress, which it will in the connection's turn; `number` is the number in its
    /// wake token. False if there is no such exchange.
    pub(crate) fn wake(&mut self, number: u64) -> bool {
        // The token holds the low bits of the request's number, which are all of it for a long time.
        let mut named = self.streams.contains_key(&(number << 2)).then_some(number << 2);
        let mut waiting = Vec::new();
        if self.next_stream >> 2 > STREAM_MASK {
            // One may have waited while millions went by, so that another has the same bits.
            waiting.extend(self.streams.keys().filter(|stream| **stream >> 2 & STREAM_MASK == number));
            named = waiting.pop();
        }
        let is_known = named.is_some();
        for stream in named.into_iter().chain(waiting) {
            self.resume(stream);
        }
        is_known
    }

    /// Lets a stream continue in the connection's turn.
    fn resume(&mut self, stream: u64) {
        if let Some(request) = self.streams.get_mut(&stream)
            && !std::mem::replace(&mut request.woken, true)
        {
            self.woken.push_back(stream);
        }
    }

    /// [`Self::handle_woken`] has something to do.
    pub(crate) fn is_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Goes on with streams that something woke or that were cut short. True: the slice was spent, and there are more.
    pub(crate) fn handle_woken(&mut self, context: &mut SessionContext<'_>) -> bool {
        // Those that are cut short again have had their turn.
        for _ in 0..self.woken.len() {
            let Some(stream) = self.woken.pop_front() else { break };
            // It may have ended meanwhile.
            let Some(request) = self.streams.get_mut(&stream) else { continue };
            request.woken = false;
            self.pump(context, stream);
            if context.slice.is_spent() || context.slice.spend() {
                break;
            }
        }
        !self.woken.is_empty()
    }

    /// Gives streams what the transport and the send window now have room for. True: the slice was spent, and there is more.
    pub(crate) fn handle_writable(&mut self, context: &mut SessionContext<'_>) -> bool {
        self.flush(context);
        if self.feed_starved(context) {
            return true;
        }
        while let Some(stream) = context.transport.writable() {
            self.pump(context, stream);
            if context.slice.is_spent() || context.slice.spend() {
                return self.has_room(context.transport);
            }
        }
        // A finished one among those returns what it held.
        self.feed_starved(context)
    }

    /// Gives available room to streams that wait for it, by priority (RFC 9218, section 10): the most urgent
    /// first; among the same urgency the one that has waited longest, and incremental ones in turn. True:
    /// the slice was used up, and there is more.
    fn feed_starved(&mut self, context: &mut SessionContext<'_>) -> bool {
        // Each is asked once: one that queues again has a higher number.
        let (mut at, limit) = (None, self.starved.next());
        while self.account.room() > 0
            && let Some((place, stream)) = self.starved.after(at, limit)
        {
            at = Some(place);
            self.pump(context, stream);
            if let Some(request) = self.streams.get_mut(&stream)
                && request.priority.incremental
                && request.place == Some(place)
                && request.has_had_its_turn()
            {
                self.starved.remove(place);
                request.wait_for_room(&mut self.starved);
            }
            if context.slice.is_spent() || context.slice.spend() {
                return self.account.room() > 0 && !self.starved.is_empty();
            }
        }
        false
    }

    /// [`Self::handle_writable`] may have something to do: there is room for a stream that may wait for it.
    pub(crate) fn has_room(&self, transport: &Transport) -> bool {
        transport.has_writable() || !self.starved.is_empty() && self.account.room() > 0
    }

    pub(super) fn pump(&mut self, context: &mut SessionContext<'_>, stream: u64) {
        let Some(request) = self.streams.get_mut(&stream) else {
            // It was stopped when its answer was over, and the engine keeps it until that is taken notice of.
            context.transport.is_stopped(stream);
            return;
        };
        match request.pump(context.transport, &self.account, context.slice) {
            Progress::Transport | Progress::Exchange => {
                if let Some(place) = request.place.take() {
                    self.starved.remove(place);
                }
            }
            Progress::Memory => {
                if request.place.is_none() {
                    request.wait_for_room(&mut self.starved);
                }
            }
            // One that waits for room has its place still.
            Progress::Turn if request.place.is_some() => {}
            // One that others wait with goes behind them: turn for turn it would take the room before they are asked.
            Progress::Turn if !self.starved.is_empty() && request.wants_room() => {
                request.wait_for_room(&mut self.starved);
            }
            Progress::Turn => self.resume(stream),
            progress => self.end(context, stream, progress),
        }
    }

    /// The response is over, one way or the other.
    pub(super) fn end(&mut self, context: &mut SessionContext<'_>, stream: u64, progress: Progress) {
        let Some(request) = self.streams.remove(&stream) else { return };
        if let Some(place) = request.place {
            self.starved.remove(place);
        }
        context.stats.requests_active -= 1;
        context.stats.response_body_bytes += request.body_sent;
        match progress {
            Progress::Complete => {
                context.stats.responses_complete += 1;
                self.abandoned = self.abandoned.saturating_sub(1);
                if !request.request_ended {
                    // The rest of the request is not needed (RFC 9114, section 4.1).
                    context.transport.stop_stream(stream, code::NO_ERROR);
                }
            }
            Progress::TimedOut => {
                context.stats.responses_timed_out += 1;
                self.abort(context, stream, code::REQUEST_CANCELLED);
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
            self.woken = VecDeque::new();
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
