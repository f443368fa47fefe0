//! A session: one QUIC connection.
//!
//! * here: its life, and what it reads of streams that begin.
//! * `publish`: what its peer announces and sends, and what is asked of it.
//! * `subscribe`: what its peer asks for, and what it is sent.
//! * `writer`: octets on their way to streams that are read slowly.
//!
//! Streams are read as far as there is something to do with what they say; what a peer sends before it has said which room it wants
//! stays with QUIC. All that is kept for a peer is counted: requests by the room's limit, and of a stream one message at most.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use expressway_gateway::quic::{self, Received, Transport, Turn};
use slab::Slab;

use super::application::{Moq, Rights};
use super::room::{Broadcast, Publisher, Room};
use super::wire::{self, Message, Problem, data, request, session_code, stream_code};
use publish::{Answers, GroupIn, Upstreams};
use subscribe::{Deliveries, Owner, Watch};
use writer::Writers;

mod publish;
mod subscribe;
mod writer;

pub use subscribe::CONCURRENT;

/// How long a peer may take to say which room it wants.
const SETUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Streams on which a session hears of broadcasts at most.
const WATCHES: usize = 4;

/// Octets of answers that are looked at in a piece of work: the shortest have a few, and each may wake many sessions.
const PIECE: usize = 256;

/// What wakes a session: tracks that are asked for, broadcasts that come and go; from [`OWNERS`] on what it is sent.
const QUEUE: u64 = 0;
const BROADCASTS: u64 = 1;
const OWNERS: u64 = 2;

/// See the module.
pub struct Session {
    moq: Arc<Moq>,
    publisher: Arc<Publisher>,
    /// Where it is, once it has said that.
    place: Option<Place>,
    begun: Instant,
    /// What is read of streams.
    incoming: HashMap<u64, Incoming>,
    /// Streams with something that waits until it is known where the session is, and whether that is all of them.
    held: VecDeque<(u64, bool)>,
    /// Streams that were not read to their end, which the engine will not name again.
    unread: VecDeque<u64>,
    writers: Writers,
    /// Broadcasts that the peer announces, by its path for them.
    broadcasts: HashMap<Box<str>, Arc<Broadcast>>,
    /// Those of others that they have replaced, with tracks that are to be ended.
    replaced: VecDeque<Arc<Broadcast>>,
    /// The tracks that are asked of it.
    upstreams: Upstreams,
    /// Its requests that something is sent for.
    owners: Slab<Owner>,
    deliveries: Deliveries,
    watches: Vec<Watch>,
    /// Numbers that something is to be done for, each once.
    woken: VecDeque<u64>,
    is_woken: HashSet<u64>,
    /// The peer is going: nothing more is asked of it.
    is_leaving: bool,
    has_said_goaway: bool,
}

/// Where a session is.
#[derive(Clone)]
struct Place {
    room: Arc<Room>,
    /// In front of all of its paths.
    prefix: Box<str>,
    rights: Rights,
}

/// What a stream is that the peer sends on.
enum Incoming {
    /// What there is of its type and first message.
    Begun(Vec<u8>),
    /// Frames of a group.
    Group(Box<GroupIn>),
    /// Changes of a subscription, by its key.
    Updates(usize, Vec<u8>),
    /// The end of a request, by its key.
    End(usize),
    /// The end of what a watch is for.
    Watch,
    /// Answers to what was asked of the peer.
    Answers(Answers, Vec<u8>),
    /// Whatever it is, nobody wants it.
    Ignored,
    /// The peer was asked to send no more of it, and nothing of it is kept: QUIC does not name it again.
    Stopped,
}

impl Session {
    /// Begins on a connection.
    pub(super) fn start(moq: Arc<Moq>, turn: &mut Turn<'_>) -> Self {
        let publisher = Publisher::new(moq.number(), turn.waker(QUEUE));
        let mut session = Self {
            moq,
            publisher,
            place: None,
            begun: turn.now(),
            incoming: HashMap::new(),
            held: VecDeque::new(),
            unread: VecDeque::new(),
            writers: Writers::default(),
            broadcasts: HashMap::new(),
            replaced: VecDeque::new(),
            upstreams: Upstreams::default(),
            owners: Slab::new(),
            deliveries: Deliveries::default(),
            watches: Vec::new(),
            woken: VecDeque::new(),
            is_woken: HashSet::new(),
            is_leaving: false,
            has_said_goaway: false,
        };
        let stream = session.writers.open_unidirectional();
        session.writers.write(turn.transport(), stream, wire::write::setup(), true);
        session
    }

    /// The peer has broken the protocol.
    fn fail(&mut self, turn: &mut Turn<'_>, words: &'static str) {
        if let Some(place) = &self.place {
            place.room.counters.sessions_failed.fetch_add(1, Relaxed);
        }
        tracing::debug!(remote = %turn.remote(), words, "MoQ protocol error by the client");
        turn.transport().close(session_code::PROTOCOL_VIOLATION, words);
    }

    /// Reads `stream` until there is nothing more, or the slice is used up: true.
    fn read(&mut self, turn: &mut Turn<'_>, stream: u64, scratch: &mut [u8]) -> bool {
        loop {
            if self.is_held(stream) {
                return false;
            }
            let most = piece(self.incoming.get(&stream), scratch.len());
            match turn.transport().receive(stream, &mut scratch[..most]) {
                Received::Data { length, last } => {
                    if let Err(words) = self.take(turn, stream, &scratch[..length], last) {
                        self.fail(turn, words);
                        return false;
                    }
                    if last {
                        return false;
                    }
                }
                Received::Reset => {
                    self.handle_end(turn, stream, true);
                    return false;
                }
                Received::Nothing => return false,
            }
            if turn.spend() {
                self.unread.push_front(stream);
                return true;
            }
        }
    }

    /// Takes in what has come on a stream.
    fn take(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        octets: &[u8],
        last: bool,
    ) -> Result<(), &'static str> {
        let incoming = match self.incoming.remove(&stream) {
            Some(incoming) => incoming,
            // It answers what is not asked any more.
            None if writer::is_ours(stream) => return Ok(()),
            None => Incoming::Begun(Vec::new()),
        };
        let next = match incoming {
            Incoming::Begun(mut buffer) => {
                buffer.extend_from_slice(octets);
                self.begin(turn, stream, buffer)?
            }
            Incoming::Group(mut group) => match group.take(octets, self.place.as_ref()) {
                Ok(()) => Incoming::Group(group),
                Err(code) => {
                    turn.transport().stop_stream(stream, code);
                    Incoming::Stopped
                }
            },
            Incoming::Updates(key, mut buffer) => {
                buffer.extend_from_slice(octets);
                self.update(key, &mut buffer)?;
                Incoming::Updates(key, buffer)
            }
            Incoming::Answers(mut answers, mut buffer) => {
                buffer.extend_from_slice(octets);
                self.hear(turn, &mut answers, &mut buffer)?;
                Incoming::Answers(answers, buffer)
            }
            // Nothing is to come on them but their end.
            Incoming::End(_) | Incoming::Watch if !octets.is_empty() => {
                return Err("octets behind a request");
            }
            other => other,
        };
        if matches!(next, Incoming::Stopped) {
            return Ok(());
        }
        self.incoming.insert(stream, next);
        if let Some((_, has_ended)) = self.held.iter_mut().find(|(held, _)| *held == stream) {
            *has_ended |= last;
        } else if last {
            self.handle_end(turn, stream, false);
        }
        Ok(())
    }

    /// It waits until it is known where the session is.
    fn is_held(&self, stream: u64) -> bool {
        self.held.iter().any(|(held, _)| *held == stream)
    }

    /// Looks at the type and the first message of a stream.
    fn begin(&mut self, turn: &mut Turn<'_>, stream: u64, buffer: Vec<u8>) -> Result<Incoming, &'static str> {
        let Some((kind, prefix)) = wire::stream_type(&buffer) else { return Ok(Incoming::Begun(buffer)) };
        let is_request = stream & 2 == 0;
        let is_setup = !is_request && kind == data::SETUP;
        if self.place.is_none() && !is_setup {
            // The session has not said where it is: what it says reaches us as it may.
            if self.held.len() as u64 > 2 * self.requests() {
                return Err("requests before SETUP");
            }
            self.held.push_back((stream, false));
            return Ok(Incoming::Begun(buffer));
        }
        let message = &buffer[prefix..];
        // Nothing comes behind most requests.
        let alone = |length: usize| match length == message.len() {
            true => Ok(()),
            false => Err(Problem::Invalid("octets behind a request")),
        };
        let read = match (is_request, kind) {
            (false, data::SETUP) => wire::Setup::read(message).and_then(|(setup, length)| {
                alone(length)?;
                self.enter(turn, setup.path).map_err(Problem::Invalid)?;
                Ok(Incoming::Ignored)
            }),
            (false, data::GROUP) => wire::Group::read(message)
                .map(|(group, length)| self.begin_group(turn, stream, group, &message[length..])),
            (true, request::ANNOUNCE) => wire::AnnounceRequest::read(message).and_then(|(asked, length)| {
                alone(length)?;
                Ok(self.watch(turn, stream, asked))
            }),
            (true, request::SUBSCRIBE) => wire::Subscribe::read(message)
                .map(|(asked, length)| self.subscribe(turn, stream, asked, &message[length..])),
            (true, request::FETCH) => wire::Fetch::read(message).and_then(|(asked, length)| {
                alone(length)?;
                Ok(self.fetch(turn, stream, asked))
            }),
            (true, request::TRACK) => wire::Track::read(message).and_then(|(asked, length)| {
                alone(length)?;
                Ok(self.tell(turn, stream, asked))
            }),
            (true, request::GOAWAY) => wire::Goaway::read(message).map(|_| {
                self.is_leaving = true;
                Incoming::Ignored
            }),
            // Nothing is measured for the peer (PROBE), and types to come are none of ours.
            _ => {
                self.refuse(turn, stream, stream_code::CANCEL);
                return Ok(Incoming::Stopped);
            }
        };
        match read {
            Ok(incoming) => Ok(incoming),
            Err(Problem::Incomplete) => Ok(Incoming::Begun(buffer)),
            Err(Problem::Invalid(words)) => Err(words),
        }
    }

    /// Requests that the session may have open.
    fn requests(&self) -> u64 {
        self.place.as_ref().map_or(self.moq.requests, |place| place.room.limits.subscriptions as u64)
    }

    /// The peer says which room it wants.
    fn enter(&mut self, turn: &mut Turn<'_>, path: Option<&str>) -> Result<(), &'static str> {
        if self.place.is_some() {
            return Err("a second SETUP");
        }
        let Some((room, prefix, rights)) = self.moq.enter(path.unwrap_or_default(), turn.remote().ip())
        else {
            self.moq.refused_session().fetch_add(1, Relaxed);
            tracing::debug!(remote = %turn.remote(), "MoQ: no such room, or no right to it");
            turn.transport().close(session_code::UNAUTHORIZED, "no such room, or no right to it");
            return Ok(());
        };
        room.counters.sessions.fetch_add(1, Relaxed);
        room.gauges.sessions.fetch_add(1, Relaxed);
        self.place = Some(Place { room, prefix, rights });
        if rights.publish {
            let stream = self.writers.open_bidirectional();
            let asked = wire::write::announce_request(self.moq.hop);
            self.writers.write(turn.transport(), stream, asked, false);
            self.incoming.insert(stream, Incoming::Answers(Answers::Broadcasts(None), Vec::new()));
        }
        Ok(())
    }

    /// Goes on with streams that waited for [`Self::enter`]. True: there are more, for another turn.
    fn release_held(&mut self, turn: &mut Turn<'_>) -> Result<bool, &'static str> {
        while self.place.is_some()
            && let Some((stream, has_ended)) = self.held.pop_front()
        {
            self.take(turn, stream, &[], has_ended)?;
            if !has_ended {
                self.unread.push_back(stream);
            }
            if turn.spend() {
                return Ok(!self.held.is_empty());
            }
        }
        Ok(false)
    }

    /// The peer has ended its side of a stream, or reset it.
    fn handle_end(&mut self, turn: &mut Turn<'_>, stream: u64, is_reset: bool) {
        match self.incoming.remove(&stream) {
            None | Some(Incoming::Ignored | Incoming::Stopped) => {}
            Some(Incoming::Begun(_)) => {
                if stream & 2 == 0 {
                    self.writers.reset(turn.transport(), stream, stream_code::CANCEL);
                }
            }
            Some(Incoming::Group(group)) => group.end(is_reset, self.place.as_ref()),
            Some(Incoming::Updates(key, _)) => self.unsubscribe(turn, key, is_reset),
            Some(Incoming::End(key)) => {
                if is_reset {
                    self.give_up(turn, key, stream_code::CANCEL);
                }
            }
            Some(Incoming::Watch) => self.unwatch(turn, stream),
            Some(Incoming::Answers(answers, _)) => self.handle_last_answer(turn, answers, stream, is_reset),
        }
    }

    /// Answers a request, or a stream, by nothing.
    fn refuse(&mut self, turn: &mut Turn<'_>, stream: u64, code: u64) {
        if stream & 2 == 0 {
            self.writers.reset(turn.transport(), stream, code);
        }
        turn.transport().stop_stream(stream, code);
    }

    /// Has a number looked at in this turn or the next.
    fn again(&mut self, number: u64) {
        if self.is_woken.insert(number) {
            self.woken.push_back(number);
        }
    }

    /// Path of a broadcast within the room, from what the peer says it is.
    fn full_path(place: &Place, path: &str) -> String {
        let path = path.trim_matches('/');
        match (place.prefix.is_empty(), path.is_empty()) {
            (true, _) => path.to_owned(),
            (false, true) => place.prefix.to_string(),
            (false, false) => format!("{}/{path}", place.prefix),
        }
    }
}

/// Octets of a stream that are read at once, of so many that there is space for.
fn piece(incoming: Option<&Incoming>, space: usize) -> usize {
    match incoming {
        Some(Incoming::Answers(..) | Incoming::Updates(..)) => space.min(PIECE),
        _ => space,
    }
}

impl quic::Session for Session {
    fn handle_readable(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool {
        while !turn.transport().is_ending() {
            match self.release_held(turn) {
                Ok(false) => {}
                Ok(true) => return true,
                Err(words) => {
                    self.fail(turn, words);
                    break;
                }
            }
            let Some(stream) = self.unread.pop_front().or_else(|| turn.transport().readable()) else { break };
            if self.read(turn, stream, scratch) || turn.spend() {
                return self.has_unread() || turn.transport().is_readable();
            }
        }
        self.settle_upstreams();
        false
    }

    fn has_unread(&self) -> bool {
        !self.unread.is_empty() || self.place.is_some() && !self.held.is_empty()
    }

    fn wake(&mut self, number: u64) -> bool {
        let is_known = number < OWNERS || self.owners.contains((number - OWNERS) as usize);
        if is_known {
            self.again(number);
        }
        is_known
    }

    fn is_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    fn handle_woken(&mut self, turn: &mut Turn<'_>, _scratch: &mut [u8]) -> bool {
        while !turn.transport().is_ending()
            && let Some(number) = self.woken.pop_front()
        {
            self.is_woken.remove(&number);
            let is_cut = match number {
                QUEUE => self.serve_queue(turn),
                BROADCASTS => {
                    self.follow_broadcasts(turn);
                    false
                }
                _ => self.pump(turn, (number - OWNERS) as usize),
            };
            if is_cut {
                self.again(number);
            }
            if is_cut || turn.spend() {
                return !self.woken.is_empty();
            }
        }
        self.woken.clear();
        self.is_woken.clear();
        false
    }

    fn handle_writable(&mut self, turn: &mut Turn<'_>) -> bool {
        while !turn.transport().is_ending()
            && let Some(stream) = turn.transport().writable()
        {
            if let Some(owner) = self.deliveries.owner(stream) {
                // It is looked at with the others of its request, and again if the slice ends within.
                self.again(OWNERS + owner as u64);
            } else if self.writers.flush(turn.transport(), stream) && self.is_watched(stream) {
                self.again(BROADCASTS);
            }
            if turn.spend() {
                return true;
            }
        }
        while let Some(stream) = self.writers.open_next(turn.transport()) {
            match self.deliveries.owner(stream) {
                Some(owner) => self.again(OWNERS + owner as u64),
                None => {
                    self.writers.flush(turn.transport(), stream);
                }
            }
            if turn.spend() {
                return true;
            }
        }
        self.is_woken() && self.handle_woken(turn, &mut [])
    }

    fn has_room(&self, transport: &Transport) -> bool {
        transport.has_writable()
    }

    fn deadline(&self) -> Option<Instant> {
        self.place.is_none().then(|| self.begun + SETUP_TIMEOUT)
    }

    fn handle_deadline(&mut self, turn: &mut Turn<'_>) -> bool {
        if self.place.is_none() {
            turn.transport().close(session_code::TIMEOUT, "no SETUP in time");
        }
        // The deadline is over, whatever becomes of the connection.
        self.begun = turn.now();
        false
    }

    fn is_busy(&self) -> bool {
        !self.owners.is_empty() || !self.broadcasts.is_empty()
    }

    fn goaway(&mut self, turn: &mut Turn<'_>) {
        if !std::mem::replace(&mut self.has_said_goaway, true) {
            let stream = self.writers.open_bidirectional();
            self.writers.write(turn.transport(), stream, wire::write::goaway(), true);
            self.incoming.insert(stream, Incoming::Ignored);
        }
    }

    fn shrink_to_fit(&mut self) {
        self.incoming.shrink_to_fit();
        self.woken.shrink_to_fit();
        self.unread.shrink_to_fit();
        self.owners.shrink_to_fit();
    }

    fn abandon(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(place) = self.place.clone() else { return false };
        while let Some(path) = self.broadcasts.keys().next().cloned() {
            if let Some(broadcast) = self.broadcasts.remove(&path) {
                self.replaced.extend(place.room.retract(&broadcast, self.moq.number()));
                self.replaced.push_back(broadcast);
            }
            if turn.spend() {
                return true;
            }
        }
        while let Some(key) = self.owners.iter().next().map(|(key, _)| key) {
            self.forget(key);
            if turn.spend() {
                return true;
            }
        }
        for watch in self.watches.drain(..) {
            place.room.unwatch(watch.key);
        }
        while let Some(former) = self.replaced.front() {
            if !former.close_one() {
                self.replaced.pop_front();
            }
            if turn.spend() {
                return true;
            }
        }
        // Tracks of broadcasts that were retracted before: who asks from now on is told at once.
        while self.publisher.close_one() {
            if turn.spend() {
                return true;
            }
        }
        while self.upstreams.abandon_one() {
            if turn.spend() {
                return true;
            }
        }
        for (_, incoming) in self.incoming.drain() {
            if let Incoming::Group(group) = incoming {
                group.end(true, None);
            }
        }
        place.room.gauges.sessions.fetch_sub(1, Relaxed);
        self.place = None;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_in_small_pieces_and_groups_in_large_ones() {
        let answers = Incoming::Answers(Answers::Broadcasts(None), Vec::new());
        assert_eq!(piece(Some(&answers), 65536), PIECE);
        assert_eq!(piece(Some(&Incoming::Updates(0, Vec::new())), 65536), PIECE);
        assert_eq!(piece(Some(&answers), 100), 100);
        assert_eq!(piece(Some(&Incoming::Begun(Vec::new())), 65536), 65536);
        assert_eq!(piece(None, 65536), 65536);
    }
}
