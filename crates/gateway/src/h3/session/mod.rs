//! The requests of one connection.

mod deadlines;
mod line;
mod refusals;
mod requests;
mod responses;

use std::collections::hash_map::IntoIter;
use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_h3::Error;
use expressway_netio::Slice;
use expressway_web::access_log::AccessLog;
use expressway_web::memory::{Account, Ledger};
use expressway_web::{Handler, Notify};

use self::deadlines::Sweep;
use self::line::Line;
use super::code;
use super::incoming::Incoming;
use super::peer::Peer;
use super::starved::Starved;
use super::stream::{RequestStream, StreamIdHasher, StreamMap};
use crate::quic::engine::{Priority, Transport};
use crate::quic::stats::Stats;

/// Priorities that a connection keeps for requests that have not arrived yet (RFC 9218, section 7.1); beyond
/// that the newest are dropped, since a priority is advice.
const MAX_EARLY_PRIORITIES: usize = 128;

/// What a session needs of its surroundings while it handles an event.
pub(crate) struct SessionContext<'a> {
    pub(crate) transport: &'a mut Transport,
    pub(crate) stats: &'a mut Stats,
    pub(crate) handler: &'a dyn Handler,
    pub(crate) log: Option<&'a AccessLog>,
    /// Told when exchanges can make progress.
    pub(crate) notify: &'a Arc<dyn Notify>,
    /// The wake token of stream 0; the stream's number is added.
    pub(crate) token: u64,
    pub(crate) now: Instant,
    pub(crate) remote: SocketAddr,
    /// The worker's account of memory.
    pub(crate) ledger: &'a Arc<Ledger>,
    /// Bytes of responses that the connection may have on their way, and bytes that it may hold in all.
    pub(crate) window: usize,
    pub(crate) memory: usize,
    /// Requests with a file that may be under way at once.
    pub(crate) max_open_files: usize,
    /// How long a client may take nothing of a response, and take to send a header section.
    pub(crate) response_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) max_header_size: u64,
    pub(crate) io_mode: &'a str,
    pub(crate) worker: u16,
    pub(crate) max_requests: u64,
    /// Scratch for data read from streams.
    pub(crate) scratch: &'a mut [u8],
    /// For strings decoded from header sections.
    pub(crate) strings: &'a mut Vec<u8>,
    /// What this turn of the connection may take. Each kind of work does a piece in any case.
    pub(crate) slice: &'a mut Slice,
}

/// HTTP/3 on one connection.
pub(crate) struct Session {
    peer: Peer,
    incoming: Incoming,
    streams: StreamMap<RequestStream>,
    account: Account,
    line: Line,
    sweep: Sweep,
    /// Streams that wait for the peer to acknowledge some of what the connection holds.
    starved: Starved,
    /// Streams that can make progress: something woke them, or they were interrupted.
    woken: VecDeque<u64>,
    /// A stream that was not read to its end, which the engine will not name again.
    unread: Option<u64>,
    /// The first request stream beyond all that the client has used.
    next_stream: u64,
    /// Streams below it whose request has not arrived yet, because of reordering; no more than a client may
    /// have open.
    late: HashSet<u64, BuildHasherDefault<StreamIdHasher>>,
    /// Requests that ended early, minus those that completed.
    abandoned: u32,
    /// After GOAWAY: requests from this stream on are rejected.
    refused_from: Option<u64>,
    /// Priorities of requests that have not arrived yet.
    early_priorities: Vec<(u64, Priority)>,
    /// The remaining requests when the connection is gone.
    leaving: Option<IntoIter<u64, Box<RequestStream>>>,
    cipher: &'static str,
}

impl Session {
    /// Opens HTTP/3 on a connection: SETTINGS are sent before anything else.
    pub(crate) fn start(context: &mut SessionContext<'_>) -> Self {
        let mut seed = [0; 4];
        // Reserved numbers need no secrecy, so a generator that fails costs only their variety.
        let _ = boring::rand::rand_bytes(&mut seed);
        let mut session = Self {
            peer: Peer::new(max_section(context), u32::from_ne_bytes(seed)),
            incoming: Incoming::default(),
            streams: StreamMap::default(),
            account: Account::new(context.ledger, context.window, context.memory),
            line: Line::default(),
            sweep: Sweep::default(),
            starved: Starved::default(),
            woken: VecDeque::new(),
            unread: None,
            next_stream: 0,
            late: HashSet::default(),
            abandoned: 0,
            refused_from: None,
            early_priorities: Vec::new(),
            leaving: None,
            cipher: context.transport.cipher(),
        };
        session.flush(context);
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

    /// The number within a wake token of `stream`.
    fn token(context: &SessionContext<'_>, stream: u64) -> u64 {
        context.token | (stream >> 2) & super::STREAM_MASK
    }

    /// Handles what the client sent. True: the slice was spent, and there may be more.
    pub(crate) fn handle_readable(&mut self, context: &mut SessionContext<'_>) -> bool {
        let scratch = std::mem::take(&mut context.scratch);
        let mut is_cut = false;
        while !is_cut
            && !context.transport.is_ending()
            && let Some(stream) = self.unread.take().or_else(|| context.transport.readable())
        {
            // Streams that a server opens are read by nobody, and are not named here.
            let read = if stream & 3 == 0 {
                self.read_request(context, stream, scratch)
            } else {
                self.read_peer(context, stream, scratch)
            };
            if let Err(error) = read {
                self.fail(context, stream, &error);
            }
            is_cut = context.slice.is_spent() || context.slice.spend();
        }
        context.scratch = scratch;
        is_cut && (self.unread.is_some() || context.transport.is_readable())
    }

    fn read_peer(
        &mut self,
        context: &mut SessionContext<'_>,
        stream: u64,
        scratch: &mut [u8],
    ) -> Result<(), Error> {
        let Self { peer, streams, starved, early_priorities, next_stream, late, unread, .. } = self;
        // The client's limit is what it has used plus what it may have open, or less.
        let limit = *next_stream + 4 * context.max_requests;
        let all =
            peer.read(context.transport, stream, scratch, context.slice, |transport, id, priority| {
                if id >= limit {
                    return Err(Error::connection(
                        code::ID_ERROR,
                        "PRIORITY_UPDATE beyond the limit of streams",
                    ));
                }
                if let Some(request) = streams.get_mut(&id) {
                    request.priority = priority;
                    request.place = request.place.map(|place| starved.change(place, priority.urgency));
                    transport.set_priority(id, priority);
                } else if id >= *next_stream || late.contains(&id) {
                    early_priorities.retain(|(known, _)| *known != id);
                    if early_priorities.len() < MAX_EARLY_PRIORITIES {
                        early_priorities.push((id, priority));
                    }
                }
                Ok(())
            })?;
        *unread = (!all).then_some(stream);
        Ok(())
    }

    /// Writes pending data to our control stream.
    fn flush(&mut self, context: &mut SessionContext<'_>) {
        if context.transport.is_ending() {
            return;
        }
        if let Err(error) = self.peer.flush(context.transport) {
            self.fail(context, 0, &error);
        }
    }

    /// Tells the client to open no more requests; those already open are completed.
    pub(crate) fn goaway(&mut self, context: &mut SessionContext<'_>) {
        if self.refused_from.is_none() {
            self.refused_from = Some(self.next_stream);
            self.peer.goaway(self.next_stream);
            self.flush(context);
        }
    }

    /// The connection is gone: counts and logs what was under way. False: the slice was used up, and there
    /// is more.
    pub(crate) fn abandon(&mut self, context: &mut SessionContext<'_>) -> bool {
        self.line.clear(context.stats);
        let mut leaving =
            self.leaving.take().unwrap_or_else(|| std::mem::take(&mut self.streams).into_iter());
        while let Some((_, request)) = leaving.next() {
            context.stats.requests_active -= 1;
            context.stats.responses_cancelled += 1;
            context.stats.response_body_bytes += request.body_sent;
            self.log(context, &request, false);
            drop(request);
            if leaving.len() > 0 && context.slice.spend() {
                self.leaving = Some(leaving);
                return false;
            }
        }
        true
    }
}

/// The largest encoded header section that is read, in bytes; what decodes to more than the limit in force is
/// answered 431.
fn max_section(context: &SessionContext<'_>) -> u64 {
    context.max_header_size * 2
}
