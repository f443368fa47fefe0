//! The requests of one connection.

mod application;
mod deadlines;
mod refusals;
mod request_queue;
mod requests;
mod responses;

use std::collections::hash_map::IntoIter;
use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use expressway_h3::Error;
use expressway_web::memory::Account;

use self::deadlines::Sweep;
use self::request_queue::RequestQueue;
use super::application::Http3;
use super::blocked::BlockedStreams;
use super::code;
use super::early::Early;
use super::incoming::Incoming;
use super::peer::Peer;
use super::stream::{RequestStream, StreamIdHasher, StreamMap};
use crate::quic::Turn;
use crate::quic::engine::Priority;

/// Priorities that a connection keeps for requests that have not arrived yet (RFC 9218, section 7.1); beyond
/// that the newest are dropped, since a priority is advice.
const MAX_EARLY_PRIORITIES: usize = 128;

/// HTTP/3 on one connection.
pub(crate) struct Session {
    http: Arc<Http3>,
    peer: Peer,
    incoming: Incoming,
    streams: StreamMap<RequestStream>,
    account: Account,
    queue: RequestQueue,
    sweep: Sweep,
    /// Streams that wait for the peer to acknowledge some of what the connection holds.
    blocked: BlockedStreams,
    /// Streams that can make progress: something woke them, or they were interrupted.
    woken: VecDeque<u64>,
    /// Streams that were not read to their end, which the engine will not name again.
    unread: VecDeque<u64>,
    /// The first request stream beyond all that the client has used.
    next_stream: u64,
    /// Streams below it whose request has not arrived yet, because of reordering; no more than a client may
    /// have open.
    late: HashSet<u64, BuildHasherDefault<StreamIdHasher>>,
    /// Requests that ended early, minus those that completed.
    abandoned: u32,
    /// Requests that wait for the handshake to be complete.
    early: Early,
    /// After GOAWAY: requests from this stream on are rejected.
    refused_from: Option<u64>,
    /// Priorities of requests that have not arrived yet.
    early_priorities: Vec<(u64, Priority)>,
    /// The remaining requests when the connection is gone.
    leaving: IntoIter<u64, Box<RequestStream>>,
    cipher: &'static str,
    /// Of the client's certificate.
    subject: Option<Arc<str>>,
}

impl Session {
    /// Opens HTTP/3 on a connection: SETTINGS are sent before anything else.
    pub(crate) fn start(http: Arc<Http3>, turn: &mut Turn<'_>) -> Self {
        let mut session = Self {
            http,
            peer: Peer::new(max_section(turn), &[]),
            incoming: Incoming::default(),
            streams: StreamMap::default(),
            account: turn.link.account.clone(),
            queue: RequestQueue::default(),
            sweep: Sweep::default(),
            blocked: BlockedStreams::default(),
            woken: VecDeque::new(),
            unread: VecDeque::new(),
            next_stream: 0,
            late: HashSet::default(),
            abandoned: 0,
            early: Early::default(),
            refused_from: None,
            early_priorities: Vec::new(),
            leaving: StreamMap::default().into_iter(),
            cipher: turn.link.transport.cipher(),
            subject: turn.link.transport.client_subject(),
        };
        session.flush(turn);
        session
    }

    /// Requests under way.
    pub(crate) fn active(&self) -> usize {
        self.streams.len()
    }

    /// Bytes of responses in memory that the client has not acknowledged.
    pub(crate) fn held(&self) -> usize {
        self.account.in_flight()
    }

    /// Handles what the client sent, read into `scratch`. True: the slice was spent, and there may be more.
    pub(crate) fn handle_readable(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool {
        let mut is_cut = false;
        while !is_cut
            && !turn.link.transport.is_ending()
            && let Some(stream) = self.unread.pop_front().or_else(|| turn.link.transport.readable())
        {
            // Streams that a server opens are read by nobody, and are not named here.
            let read = if stream & 3 == 0 {
                self.read_request(turn, stream, scratch)
            } else {
                self.read_peer(turn, stream, scratch)
            };
            if let Err(error) = read {
                self.fail(turn, stream, &error);
            }
            is_cut = turn.slice.is_spent() || turn.slice.spend();
        }
        is_cut && (self.has_unread() || turn.link.transport.is_readable())
    }

    /// [`Self::handle_readable`] has something to do, whatever the engine says.
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    fn read_peer(&mut self, turn: &mut Turn<'_>, stream: u64, scratch: &mut [u8]) -> Result<(), Error> {
        let Self { peer, streams, blocked, early_priorities, next_stream, late, unread, .. } = self;
        // The client's limit is what it has used plus what it may have open, or less.
        let limit = *next_stream + 4 * turn.link.settings().max_requests;
        let all =
            peer.read(&mut turn.link.transport, stream, scratch, turn.slice, |transport, id, priority| {
                if id >= limit {
                    return Err(Error::connection(
                        code::ID_ERROR,
                        "PRIORITY_UPDATE beyond the limit of streams",
                    ));
                }
                if let Some(request) = streams.get_mut(&id) {
                    request.priority = priority;
                    request.position =
                        request.position.map(|position| blocked.change(position, priority.urgency));
                    transport.set_priority(id, priority);
                } else if id >= *next_stream || late.contains(&id) {
                    early_priorities.retain(|(known, _)| *known != id);
                    if early_priorities.len() < MAX_EARLY_PRIORITIES {
                        early_priorities.push((id, priority));
                    }
                }
                Ok(())
            })?;
        if !all {
            unread.push_front(stream);
        }
        Ok(())
    }

    /// The handshake is complete: requests that waited for it go on.
    pub(crate) fn confirm(&mut self) {
        for stream in self.early.release() {
            self.resume(stream);
        }
    }

    /// Writes pending data to our control stream.
    fn flush(&mut self, turn: &mut Turn<'_>) {
        if turn.link.transport.is_ending() {
            return;
        }
        if let Err(error) = self.peer.flush(&mut turn.link.transport) {
            self.fail(turn, 0, &error);
        }
    }

    /// Tells the client to open no more requests; those already open are completed.
    pub(crate) fn goaway(&mut self, turn: &mut Turn<'_>) {
        if self.refused_from.is_none() {
            self.refused_from = Some(self.next_stream);
            self.peer.goaway(self.next_stream);
            self.flush(turn);
        }
    }

    /// Tells the client to open no more requests, and serves those that it opens until it has heard: the first of two GOAWAY frames
    /// (RFC 9114, section 5.2).
    pub(crate) fn give_notice(&mut self, turn: &mut Turn<'_>) {
        self.peer.goaway(LAST_STREAM);
        self.flush(turn);
    }

    /// Gives back room that is not needed for what there is.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.incoming.shrink_to_fit();
        self.streams.shrink_to_fit();
        self.woken.shrink_to_fit();
        self.late.shrink_to_fit();
        self.early_priorities.shrink_to_fit();
    }

    /// The connection is gone: counts and logs what was under way. True: the slice was used up, and there is more.
    pub(crate) fn abandon(&mut self, turn: &mut Turn<'_>) -> bool {
        self.queue.clear(&mut turn.worker.stats);
        if self.leaving.len() == 0 {
            self.leaving = std::mem::take(&mut self.streams).into_iter();
        }
        while let Some((_, request)) = self.leaving.next() {
            turn.worker.stats.requests_active -= 1;
            turn.worker.stats.responses_cancelled += 1;
            turn.worker.stats.response_body_bytes += request.body_sent;
            if request.traced {
                turn.link.trace_end(&turn.worker.tracer, (request.id, request.body_sent, false));
            }
            self.log(turn, &request, false);
            drop(request);
            if self.leaving.len() > 0 && turn.slice.spend() {
                return true;
            }
        }
        false
    }
}

/// The greatest ID of a stream that a client opens for a request.
const LAST_STREAM: u64 = (1 << 62) - 4;

/// The largest encoded header section that is read, in bytes; what decodes to more than the limit in force is
/// answered 431.
fn max_section(turn: &Turn<'_>) -> u64 {
    turn.link.settings().max_header_size * 2
}
