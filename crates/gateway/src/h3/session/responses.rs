//! Responses in progress: woken, given room, ended and logged.

use std::collections::VecDeque;

use expressway_netio::trace::Hop;

use super::Session;
use crate::h3::stream::{Progress, RequestStream, StreamMap};
use crate::h3::{STREAM_MASK, code};
use crate::quic::Turn;
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
    pub(super) fn resume(&mut self, stream: u64) {
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
    pub(crate) fn handle_woken(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool {
        // Those that are cut short again have had their turn.
        for _ in 0..self.woken.len() {
            let Some(stream) = self.woken.pop_front() else { break };
            // It may have ended meanwhile.
            let Some(request) = self.streams.get_mut(&stream) else { continue };
            request.woken = false;
            if request.upload.as_ref().is_some_and(|upload| upload.is_blocked())
                && !self.unread.contains(&stream)
            {
                self.read_on(turn, stream, scratch);
            }
            self.pump(turn, stream);
            if turn.slice.is_spent() || turn.slice.spend() {
                break;
            }
        }
        !self.woken.is_empty() || self.has_unread()
    }

    /// Gives streams what the transport and the send window now have room for. True: the slice was spent, and there is more.
    pub(crate) fn handle_writable(&mut self, turn: &mut Turn<'_>) -> bool {
        self.flush(turn);
        if self.handle_blocked(turn) {
            return true;
        }
        while let Some(stream) = turn.link.transport.writable() {
            self.pump(turn, stream);
            if turn.slice.is_spent() || turn.slice.spend() {
                return self.has_room(&turn.link.transport);
            }
        }
        // A finished one among those returns what it held.
        self.handle_blocked(turn)
    }

    /// Gives available room to streams that wait for it, by priority (RFC 9218, section 10): the most urgent
    /// first; among the same urgency the one that has waited longest, and incremental ones in turn. True:
    /// the slice was used up, and there is more.
    fn handle_blocked(&mut self, turn: &mut Turn<'_>) -> bool {
        // Each is asked once: one that queues again has a higher number.
        let (mut at, limit) = (None, self.blocked.next());
        while self.account.room() > 0
            && let Some((position, stream)) = self.blocked.after(at, limit)
        {
            at = Some(position);
            self.pump(turn, stream);
            if let Some(request) = self.streams.get_mut(&stream)
                && request.priority.incremental
                && request.position == Some(position)
                && request.has_had_its_turn()
            {
                self.blocked.remove(position);
                request.wait_for_room(&mut self.blocked);
            }
            if turn.slice.is_spent() || turn.slice.spend() {
                return self.account.room() > 0 && !self.blocked.is_empty();
            }
        }
        false
    }

    /// [`Self::handle_writable`] may have something to do: there is room for a stream that may wait for it.
    pub(crate) fn has_room(&self, transport: &Transport) -> bool {
        transport.has_writable() || !self.blocked.is_empty() && self.account.room() > 0
    }

    pub(super) fn pump(&mut self, turn: &mut Turn<'_>, stream: u64) {
        let Some(request) = self.streams.get_mut(&stream) else {
            // It was stopped when its answer was over, and the engine keeps it until that is taken notice of.
            turn.link.transport.is_stopped(stream);
            return;
        };
        let before = request.traced.then_some((request.status, request.body_sent));
        let taken = request.taken();
        let progress = request.pump(&mut turn.link.transport, &self.account, turn.slice);
        self.sweep.taken += request.taken() - taken;
        if let Some(before) = before {
            trace(turn, request, before);
        }
        match progress {
            Progress::Transport | Progress::Exchange => {
                if let Some(position) = request.position.take() {
                    self.blocked.remove(position);
                }
            }
            Progress::Memory => {
                if request.position.is_none() {
                    request.wait_for_room(&mut self.blocked);
                }
            }
            // One that waits for room has its position still.
            Progress::Turn if request.position.is_some() => {}
            // One that others wait with goes behind them: turn for turn it would take the room before they are asked.
            Progress::Turn if !self.blocked.is_empty() && request.wants_room() => {
                request.wait_for_room(&mut self.blocked);
            }
            Progress::Turn => self.resume(stream),
            progress => self.end(turn, stream, progress),
        }
    }

    /// The response is over, one way or the other.
    pub(super) fn end(&mut self, turn: &mut Turn<'_>, stream: u64, progress: Progress) {
        let Some(request) = self.streams.remove(&stream) else { return };
        if let Some(position) = request.position {
            self.blocked.remove(position);
        }
        turn.worker.stats.requests_active -= 1;
        turn.worker.stats.response_body_bytes += request.body_sent;
        if request.traced {
            let end = (stream, request.body_sent, progress == Progress::Complete);
            turn.link.trace_end(&turn.worker.tracer, end);
        }
        match progress {
            Progress::Complete => {
                turn.worker.stats.responses_complete += 1;
                self.abandoned = self.abandoned.saturating_sub(1);
                if !request.request_ended {
                    // The rest of the request is not needed (RFC 9114, section 4.1).
                    turn.link.transport.stop_stream(stream, code::NO_ERROR);
                }
            }
            Progress::TimedOut => {
                turn.worker.stats.responses_timed_out += 1;
                self.abort(turn, stream, code::REQUEST_CANCELLED);
            }
            Progress::Failed => {
                turn.worker.stats.responses_failed += 1;
                self.abort(turn, stream, code::INTERNAL_ERROR);
            }
            _ => {
                turn.worker.stats.responses_cancelled += 1;
                if !request.request_ended {
                    turn.link.transport.stop_stream(stream, code::REQUEST_CANCELLED);
                }
                self.count_abandoned(turn);
            }
        }
        self.log(turn, &request, progress == Progress::Complete);
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

    pub(super) fn log(&self, turn: &Turn<'_>, request: &RequestStream, complete: bool) {
        if let (Some(log), Some(logged)) = (&self.http.access_log, &request.logged) {
            let mut record =
                RequestStream::record(logged, request.status, request.body_sent, complete, turn.now);
            record.tls_cipher = self.cipher;
            record.io_mode = &self.http.io_mode;
            record.cmcd = log.cmcd(&logged.head.headers);
            record.worker = u16::from(turn.worker.number);
            record.cache = request.cache();
            let upstream = request.upstream();
            if let Some(upstream) = &upstream {
                record.upstream = &upstream.address;
                record.upstream_status = upstream.status;
                record.upstream_time = upstream.time;
            }
            log.log(&record);
        }
    }
}

/// Tells what a pump has brought about: the head of a response, and the beginning of its body.
#[cold]
fn trace(turn: &Turn<'_>, request: &RequestStream, (status, sent): (u16, u64)) {
    let stream = request.id;
    if status == 0 && request.status != 0 {
        let source: Box<str> = match (request.upstream(), request.cache()) {
            (Some(upstream), _) => upstream.address.as_str().into(),
            (None, "") => "here".into(),
            (None, word) => format!("cache {word}").into(),
        };
        turn.link.trace(&turn.worker.tracer, Hop::Answered { stream, status: request.status, source });
    }
    if sent == 0 && request.body_sent > 0 {
        turn.link.trace(&turn.worker.tracer, Hop::Body { stream });
    }
}
