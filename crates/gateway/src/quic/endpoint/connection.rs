//! What an endpoint keeps for a connection, and what it does in its turn before sending.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::link::Link;
use super::received::Received;
use super::turn::Turn;
use crate::quic::application::Session;
use crate::quic::stats::Stats;
use crate::quic::table::Ids;

/// How long a connection that has nothing left to do stays open after GOAWAY, for requests that were on
/// their way.
const LINGER: Duration = Duration::from_millis(200);

/// How long clients may open requests after the first GOAWAY of a process that has a successor (RFC 9114, section 5.2: at least
/// the round trip that the GOAWAY takes to be seen).
const NOTICE: Duration = Duration::from_secs(1);

/// How long a connection has nothing to do before it gives back the room that it does not need: longer than a client takes to
/// ask again while a page loads.
const IDLE: Duration = Duration::from_secs(1);

/// A connection.
pub(super) struct Connection {
    pub(super) link: Link,
    pub(super) upper: Upper,
    /// What has come and was not read.
    pub(super) received: Received,
    /// The deadline its timer is set to.
    pub(super) armed: Option<Instant>,
    /// The pacer holds packets back until then.
    pub(super) release: Option<Instant>,
    /// It is in the ready queue.
    pub(super) queued: bool,
    /// A packet has come since it last gave back room, or it has had something to do.
    pub(super) has_grown: bool,
    /// When it gives back room.
    shrinks: Option<Instant>,
}

/// The application's side of a connection.
pub(super) struct Upper {
    pub(super) session: Option<Box<dyn Session>>,
    /// Packets came in since its last turn.
    pub(super) fresh: bool,
    /// The engine had nothing left to send at the end of its last turn, so streams can be refilled.
    pub(super) drained: bool,
    /// After GOAWAY: closed then, if it still has nothing to do.
    linger: Option<Instant>,
    notice: Notice,
    is_cut: bool,
}

/// How far a client has been told that the process retires.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notice {
    /// Not yet.
    None,
    /// To open no more requests. Those opened until the given time are served.
    Given(Instant),
    /// That time is over.
    Over,
}

impl Connection {
    pub(super) fn new(link: Link) -> Self {
        let upper = Upper {
            session: None,
            fresh: true,
            drained: true,
            linger: None,
            notice: Notice::None,
            is_cut: false,
        };
        let received = Received::new(&link);
        Self {
            link,
            upper,
            received,
            armed: None,
            release: None,
            queued: false,
            has_grown: true,
            shrinks: None,
        }
    }

    /// Bytes in memory that the client has not acknowledged.
    pub(super) fn held(&self) -> usize {
        self.upper.session.as_ref().map_or(0, |session| session.held())
    }

    pub(super) fn handle_timer(&mut self, now: Instant, stats: &mut Stats) {
        self.armed = None;
        if self.release.is_some_and(|release| release <= now) {
            self.release = None;
        }
        if self.shrinks.is_some_and(|shrinks| shrinks <= now) {
            self.shrinks = None;
            // The session asks TLS who the client is when it begins. Without one the time begins anew.
            if let Some(session) = &mut self.upper.session {
                self.has_grown = false;
                self.link.transport.shrink_to_fit();
                session.shrink_to_fit();
            }
        }
        self.link.handle_timeout(now, stats);
    }

    /// Notes, at the end of a turn, whether work is left.
    pub(super) fn follow_idleness(&mut self, now: Instant) {
        let session = self.upper.session.as_ref();
        let is_busy = !self.upper.drained
            || self.is_cut()
            || session.is_some_and(|session| session.is_busy() || session.held() > 0);
        if is_busy {
            (self.shrinks, self.has_grown) = (None, true);
        } else if self.has_grown && self.shrinks.is_none() {
            self.shrinks = Some(now + IDLE);
        }
    }

    /// When it must be woken.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let probe = self.link.probe.as_ref().and_then(|probe| probe.deadline());
        let session = self.upper.session.as_ref().and_then(|session| session.deadline());
        let timeout = self.link.transport.timeout();
        let notice = match self.upper.notice {
            Notice::Given(until) => Some(until),
            Notice::None | Notice::Over => None,
        };
        let received = self.received.deadline();
        [timeout, self.release, self.upper.linger, notice, self.shrinks, probe, session, received]
            .into_iter()
            .flatten()
            .min()
    }

    /// Its last turn ended before all was done that could be.
    pub(super) fn is_cut(&self) -> bool {
        self.upper.is_cut && !self.link.transport.is_closing()
    }

    /// Streams could be refilled now.
    pub(super) fn has_room(&self) -> bool {
        self.upper.session.as_ref().is_some_and(|session| session.has_room(&self.link.transport))
    }
}

impl Upper {
    /// Handles what arrived since the last turn, and gives streams the available room. `scratch` is for data that is read.
    pub(super) fn progress(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8], ids: &mut Ids) {
        if self.fresh || self.session.as_ref().is_some_and(|session| session.has_unread()) {
            self.fresh = false;
            self.follow_handshake(turn, ids);
            turn.link.follow_paths(&mut turn.worker.stats);
            turn.worker.stats.dropped_datagram_frame += turn.link.transport.discard_datagrams();
            if turn.link.transport.is_readable() || self.is_cut {
                self.fresh = self.with_session(turn, |session, turn| session.handle_readable(turn, scratch));
            }
            turn.link.follow_ids(turn.worker, turn.key, ids);
        }
        self.is_cut = self.fresh;
        if self.session.as_ref().is_some_and(|session| session.is_woken()) {
            self.is_cut |= self.with_session(turn, |session, turn| session.handle_woken(turn, scratch));
        }
        if self.drained {
            self.is_cut |= self.with_session(turn, |session, turn| session.handle_writable(turn));
        }
        if self.session.as_ref().is_some_and(|session| session.is_due(turn.now)) {
            self.is_cut |= self.with_session(turn, |session, turn| session.handle_deadline(turn));
        }
        if self.session.as_ref().is_some_and(|session| session.can_begin()) {
            self.is_cut |= self.with_session(turn, |session, turn| session.handle_queue(turn, scratch));
        }
        if turn.worker.drain.is_some() {
            self.follow_drain(turn);
        }
    }

    /// Runs `action` on the session, if there is one. True: the slice was spent, and there is more to do.
    pub(super) fn with_session(
        &mut self,
        turn: &mut Turn<'_>,
        action: impl FnOnce(&mut dyn Session, &mut Turn<'_>) -> bool,
    ) -> bool {
        let Some(session) = &mut self.session else { return false };
        session.follow_limits(turn);
        let is_left = action(session.as_mut(), turn);
        session.watch(turn);
        is_left
    }

    fn follow_handshake(&mut self, turn: &mut Turn<'_>, ids: &mut Ids) {
        if turn.link.established {
            return;
        }
        let done = turn.link.transport.is_established();
        if self.session.is_none() && (done || turn.link.transport.is_in_early_data()) {
            let application = Arc::clone(&turn.link.setup.application);
            self.session = Some(application.start(turn));
            if !done {
                turn.worker.stats.connections_early_data += 1;
            }
        }
        if done {
            turn.link.established = true;
            turn.worker.stats.connections_established += 1;
            turn.worker.stats.handshaking -= 1;
            if let Some(session) = &mut self.session {
                session.confirm();
            }
            if let Some(initial) = turn.link.initial.take() {
                ids.forget_initial(&initial);
            }
            if turn.worker.drain.is_some() && self.session.is_some() {
                self.linger = Some(turn.now + LINGER);
            }
        }
    }

    /// Sends GOAWAY, and closes a connection that has then been idle for a while; any connection once the drain is over.
    fn follow_drain(&mut self, turn: &mut Turn<'_>) {
        if turn.worker.expired {
            turn.close("");
            return;
        }
        if turn.worker.retiring && !self.has_had_notice(turn) {
            self.linger = None;
            return;
        }
        if let Some(session) = &mut self.session {
            session.goaway(turn);
        }
        let busy = self.session.as_ref().is_some_and(|session| session.is_busy() || session.held() > 0);
        if busy || !turn.link.established || turn.link.transport.is_closing() {
            self.linger = None;
            return;
        }
        match self.linger {
            None => self.linger = Some(turn.now + LINGER),
            Some(linger) if linger <= turn.now => {
                self.linger = None;
                turn.close("");
            }
            Some(_) => {}
        }
    }

    /// Tells the client to open no more requests, if its handshake is complete. True once its time to react is over.
    fn has_had_notice(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(session) = &mut self.session else { return false };
        match self.notice {
            Notice::None if turn.link.established => {
                session.give_notice(turn);
                self.notice = Notice::Given(turn.now + NOTICE);
            }
            Notice::Given(until) if until <= turn.now => self.notice = Notice::Over,
            Notice::None | Notice::Given(_) | Notice::Over => {}
        }
        self.notice == Notice::Over
    }
}
