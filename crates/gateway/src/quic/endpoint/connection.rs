//! What an endpoint keeps for a connection in addition to the engine's state. Where its packets go is in
//! `address`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_netio::Slice;
use expressway_web::Notify;
use expressway_web::memory::Ledger;

use super::Setup;
use super::address::Address;
use super::probe::{Outcome, PLACE, Probe};
use crate::h3::{Session, SessionContext};
use crate::quic::cid::{Cid, CidIssuer};
use crate::quic::engine::{CloseKind, OpenError, PathChange, Transport};
use crate::quic::reset::Resets;
use crate::quic::settings::MIN_UDP_PAYLOAD;
use crate::quic::stats::Stats;
use crate::quic::table::{Key, Table};

/// How long a connection that has nothing left to do stays open after GOAWAY, for requests that were on
/// their way.
const LINGER: Duration = Duration::from_millis(200);

/// Timeouts in a row without a packet from the peer after which a path MTU above the minimum is doubted
/// (RFC 8899, section 4.3).
const BLACK_HOLE_TIMEOUTS: u8 = 3;

/// A connection.
pub(super) struct Connection {
    pub(super) transport: Transport,
    pub(super) session: Option<Box<Session>>,
    pub(super) setup: Arc<Setup>,
    /// IDs of ours that lead here.
    pub(super) cids: Vec<Cid>,
    /// The client's first destination ID, until the handshake is complete.
    pub(super) initial: Option<Box<[u8]>>,
    /// Where its packets go.
    pub(super) address: Address,
    /// The validation of that address; none before the first rebinding.
    pub(super) probe: Option<Box<Probe>>,
    /// The size of full datagrams on the active path.
    pub(super) segment: usize,
    /// The largest datagram that the engine probes for.
    pub(super) probe_limit: usize,
    /// What the wheel has for it.
    pub(super) armed: Option<Instant>,
    /// The pacer holds packets back until then.
    pub(super) release: Option<Instant>,
    /// After GOAWAY: closed then, if it still has nothing to do.
    pub(super) linger: Option<Instant>,
    pub(super) generation: u16,
    /// The address that the engine last said the client had moved to, or its first.
    moved_to: SocketAddr,
    timeouts: u8,
    /// It is in the ready line.
    pub(super) queued: bool,
    /// Packets came in since its last turn.
    pub(super) fresh: bool,
    /// The engine had nothing left to send at the end of its last turn, so streams can be refilled.
    pub(super) drained: bool,
    pub(super) established: bool,
    is_cut: bool,
}

/// What connections are driven with.
pub(super) struct Surroundings<'a> {
    pub(super) stats: &'a mut Stats,
    pub(super) notify: &'a Arc<dyn Notify>,
    pub(super) scratch: &'a mut [u8],
    pub(super) strings: &'a mut Vec<u8>,
    pub(super) cids: &'a mut CidIssuer,
    pub(super) resets: &'a Resets,
    pub(super) ledger: &'a Arc<Ledger>,
    pub(super) now: Instant,
    pub(super) worker: u8,
    pub(super) draining: bool,
    /// The drain is over.
    pub(super) expired: bool,
    /// What this turn of the connection may take.
    pub(super) slice: &'a mut Slice,
}

impl Connection {
    pub(super) fn new(
        transport: Transport,
        setup: Arc<Setup>,
        cid: Cid,
        initial: &[u8],
        (local, remote): (SocketAddr, SocketAddr),
        generation: u16,
        probe_limit: usize,
    ) -> Self {
        Self {
            transport,
            session: None,
            setup,
            cids: vec![cid],
            initial: Some(initial.into()),
            address: Address::new(local, remote),
            probe: None,
            segment: MIN_UDP_PAYLOAD,
            probe_limit,
            armed: None,
            release: None,
            linger: None,
            generation,
            moved_to: remote,
            timeouts: 0,
            queued: false,
            fresh: true,
            drained: true,
            established: false,
            is_cut: false,
        }
    }

    /// Bytes of responses in memory that the client has not acknowledged.
    pub(super) fn held(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.held())
    }

    pub(super) fn handle_timer(&mut self, now: Instant, stats: &mut Stats) {
        self.armed = None;
        if self.release.is_some_and(|release| release <= now) {
            self.release = None;
        }
        if self.transport.timeout().is_some_and(|timeout| timeout <= now) {
            self.transport.handle_timeout();
            if let Some(probe) = &mut self.probe {
                probe.handle_timeout(&mut self.transport);
            }
            self.timeouts = self.timeouts.saturating_add(1);
            if self.timeouts == BLACK_HOLE_TIMEOUTS && self.segment > MIN_UDP_PAYLOAD {
                self.segment = MIN_UDP_PAYLOAD;
                self.transport.doubt_mtu();
            }
        }
        if let Some(probe) = &mut self.probe {
            let outcome = probe.handle_repeat(&mut self.transport, now);
            self.take_in(outcome, stats);
        }
    }

    /// When it must be woken.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let probe = self.probe.as_ref().and_then(|probe| probe.deadline());
        let session = self.session.as_ref().and_then(|session| session.deadline());
        [self.transport.timeout(), self.release, self.linger, probe, session].into_iter().flatten().min()
    }

    /// Runs `action` on the session, if there is one.
    pub(super) fn with_session<R>(
        &mut self,
        key: Key,
        around: &mut Surroundings<'_>,
        action: impl FnOnce(&mut Session, &mut SessionContext<'_>) -> R,
    ) -> Option<R> {
        let mut session = self.session.take()?;
        let mut context = self.context(key, around);
        session.follow_limits(&context);
        let result = action(&mut session, &mut context);
        session.watch(&context);
        self.session = Some(session);
        Some(result)
    }

    /// The TLS handshake has not begun.
    pub(super) fn awaits_hello(&mut self) -> bool {
        !self.established && self.transport.awaits_hello()
    }

    /// What a session is driven with.
    fn context<'a>(&'a mut self, key: Key, around: &'a mut Surroundings<'_>) -> SessionContext<'a> {
        SessionContext {
            transport: &mut self.transport,
            stats: around.stats,
            handler: &*self.setup.handler,
            log: self.setup.access_log.as_deref(),
            notify: around.notify,
            token: u64::from(self.generation) << 48 | (key as u64) << 24,
            now: around.now,
            remote: self.address.remote,
            ledger: around.ledger,
            window: self.setup.settings.send_window,
            memory: self.setup.settings.connection_memory(),
            max_open_files: self.setup.settings.max_open_files,
            response_timeout: self.setup.settings.response_timeout,
            request_timeout: self.setup.settings.request_timeout,
            max_header_size: self.setup.settings.max_header_size,
            io_mode: &self.setup.io_mode,
            worker: u16::from(around.worker),
            max_requests: self.setup.settings.max_requests,
            scratch: around.scratch,
            strings: around.strings,
            slice: around.slice,
        }
    }

    /// Handles what arrived since the last turn, and gives streams the available room.
    pub(super) fn progress(&mut self, key: Key, around: &mut Surroundings<'_>, table: &mut IdChanges) {
        if self.fresh {
            self.fresh = false;
            self.follow_handshake(key, around, table);
            self.follow_paths(around.stats);
            if self.transport.is_readable() || self.is_cut {
                let left =
                    self.with_session(key, around, |session, context| session.handle_readable(context));
                self.fresh = left.unwrap_or_default();
            }
            self.follow_ids(around, table);
        }
        self.is_cut = self.fresh;
        if self.session.as_ref().is_some_and(|session| session.is_woken()) {
            let left = self.with_session(key, around, |session, context| session.handle_woken(context));
            self.is_cut |= left.unwrap_or_default();
        }
        if self.drained {
            let left = self.with_session(key, around, |session, context| session.handle_writable(context));
            self.is_cut |= left.unwrap_or_default();
        }
        if self.session.as_ref().is_some_and(|session| session.is_due(around.now)) {
            let left = self.with_session(key, around, |session, context| session.handle_deadline(context));
            self.is_cut |= left.unwrap_or_default();
        }
        if self.session.as_ref().is_some_and(|session| session.can_begin()) {
            let left = self.with_session(key, around, |session, context| session.handle_line(context));
            self.is_cut |= left.unwrap_or_default();
        }
        if around.draining {
            self.follow_drain(key, around);
        }
    }

    /// Its last turn ended before all was done that could be.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut && !self.transport.is_ending()
    }

    /// Streams could be refilled now.
    pub(super) fn has_room(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.has_room(&self.transport))
    }

    fn follow_handshake(&mut self, key: Key, around: &mut Surroundings<'_>, table: &mut IdChanges) {
        if self.established {
            return;
        }
        let done = self.transport.is_established();
        if self.session.is_none() && (done || self.transport.is_in_early_data()) {
            let session = Session::start(&mut self.context(key, around));
            self.session = Some(Box::new(session));
            if !done {
                around.stats.connections_early_data += 1;
            }
        }
        if done {
            self.established = true;
            around.stats.connections_established += 1;
            around.stats.handshaking -= 1;
            table.forget_initial = self.initial.take();
            if around.draining && self.session.is_some() {
                self.linger = Some(around.now + LINGER);
            }
        }
    }

    /// Opens a datagram that came from `remote` to `local`; `cid` is its destination ID if that is one of
    /// ours in a short header.
    pub(super) fn open(
        &mut self,
        payload: &mut [u8],
        cid: Option<Cid>,
        (local, remote): (SocketAddr, SocketAddr),
        stats: &mut Stats,
        now: Instant,
    ) -> Result<(), OpenError> {
        let length = payload.len();
        let known = (local, remote) == (self.address.local, self.address.remote);
        let same_cid = local == self.address.local && cid.is_some() && cid == self.address.cid;
        self.fresh = true;
        self.timeouts = 0;
        if !known && same_cid && self.established {
            return self.open_rebound(payload, remote, stats, now);
        }
        let seen_as = self.address.seen_as(local, remote, length);
        let opened = self.transport.open(payload, local, seen_as);
        if known {
            self.address.cid = cid.or(self.address.cid);
            self.follow_probe(stats);
        } else if self.established {
            self.follow_paths(stats);
        }
        opened
    }

    /// Decrypts a datagram from an address other than the client's last one, under the same connection ID:
    /// the work of a NAT, or of somebody else who captured a datagram.
    fn open_rebound(
        &mut self,
        payload: &mut [u8],
        remote: SocketAddr,
        stats: &mut Stats,
        now: Instant,
    ) -> Result<(), OpenError> {
        let length = payload.len();
        let is_proven = self.address.is_proven(remote);
        let has_place = self.probe.as_ref().is_some_and(|probe| probe.is_ready());
        let seen_as = if is_proven || has_place { self.address.engine } else { PLACE };
        let newest = self.transport.newest_packet();
        let opened = self.transport.open(payload, self.address.local, seen_as);
        self.follow_paths(stats);
        self.follow_probe(stats);
        // It says nothing of where the client is: not authentic, known, overtaken, or a probe.
        if self.transport.newest_packet() == newest {
            return opened;
        }
        if !is_proven {
            stats.paths_new += 1;
            if remote.ip() != self.address.remote.ip() {
                self.segment = MIN_UDP_PAYLOAD;
            }
            self.address.several = true;
            self.address.rebind(remote, length);
            let probe = self.probe.get_or_insert_with(|| Box::new(Probe::new(self.address.local)));
            probe.begin(&mut self.transport, remote, now);
        } else {
            tracing::debug!(%remote, "client returned to its former address");
            self.address.failed();
            if let Some(probe) = &mut self.probe {
                probe.end();
            }
        }
        opened
    }

    /// Sees whether the datagram just opened has answered a challenge.
    fn follow_probe(&mut self, stats: &mut Stats) {
        if self.address.is_unproven()
            && let Some(probe) = &mut self.probe
        {
            let outcome = probe.handle_arrival(&mut self.transport);
            self.take_in(outcome, stats);
        }
    }

    fn take_in(&mut self, outcome: Outcome, stats: &mut Stats) {
        match outcome {
            Outcome::Open => {}
            Outcome::Answered => {
                stats.paths_migrated += 1;
                self.address.validated();
            }
            Outcome::Failed => {
                stats.paths_failed += 1;
                self.address.failed();
            }
        }
    }

    /// Handles the engine's own path events: the client has migrated on purpose.
    fn follow_paths(&mut self, stats: &mut Stats) {
        let mut changed = false;
        while let Some(change) = self.transport.path_change() {
            match change {
                PathChange::New(PLACE) => self.address.several = true,
                PathChange::New(_) => {
                    stats.paths_new += 1;
                    self.address.several = true;
                    changed = true;
                }
                PathChange::Validated(_) => {}
                PathChange::Migrated(peer) => {
                    // Back from the path for challenges it has not moved.
                    changed |= peer != PLACE;
                    stats.paths_migrated += u64::from(peer != PLACE && peer != self.moved_to);
                    if peer != PLACE {
                        self.moved_to = peer;
                    }
                }
                PathChange::Failed(PLACE) => changed = true,
                PathChange::Failed(_) => {
                    stats.paths_failed += 1;
                    changed = true;
                }
                PathChange::Mtu(payload) => self.segment = payload,
            }
        }
        if changed && self.address.several {
            let mut active = None;
            self.transport.paths(|local, remote, is_active| {
                if is_active {
                    active = Some((local, remote));
                }
            });
            if let Some((local, remote)) = active
                && self.address.follow(local, remote)
            {
                // Another path has another MTU (RFC 9000, section 9.4).
                self.segment = MIN_UDP_PAYLOAD;
                if let Some(probe) = &mut self.probe {
                    probe.end();
                }
            }
        }
    }

    /// Keeps the peer in spare connection IDs, for paths to come.
    fn follow_ids(&mut self, around: &mut Surroundings<'_>, table: &mut IdChanges) {
        if !self.established {
            return;
        }
        while let Some(retired) = self.transport.retired_connection_id() {
            self.cids.retain(|cid| *cid != retired);
            table.retired.push(retired);
        }
        while self.transport.connection_ids_wanted() > 0 {
            let Ok(cid) = around.cids.issue() else { break };
            let Ok(token) = around.resets.token(&cid) else { break };
            if !self.transport.offer_connection_id(&cid, token) {
                break;
            }
            self.cids.push(cid);
            table.added.push(cid);
        }
    }

    /// Says GOAWAY, and closes a connection that has had nothing to do for a while then; any, when the drain is over.
    fn follow_drain(&mut self, key: Key, around: &mut Surroundings<'_>) {
        if around.expired {
            self.transport.close(CloseKind::Application, crate::h3::code::NO_ERROR, "");
            return;
        }
        self.with_session(key, around, |session, context| session.goaway(context));
        let busy = self.session.as_ref().is_some_and(|session| session.active() > 0 || session.held() > 0);
        if busy || !self.established || self.transport.is_ending() {
            self.linger = None;
            return;
        }
        match self.linger {
            None => self.linger = Some(around.now + LINGER),
            Some(linger) if linger <= around.now => {
                self.linger = None;
                self.transport.close(CloseKind::Application, crate::h3::code::NO_ERROR, "");
            }
            Some(_) => {}
        }
    }
}

/// Changes to the connection table that a connection's progress asks for.
#[derive(Default)]
pub(super) struct IdChanges {
    added: Vec<Cid>,
    retired: Vec<Cid>,
    forget_initial: Option<Box<[u8]>>,
}

impl IdChanges {
    /// Applies them for the connection `key`, and is empty afterwards.
    pub(super) fn apply(&mut self, table: &mut Table<Connection>, key: Key) {
        for cid in self.added.drain(..) {
            table.add_cid(cid, key);
        }
        for cid in self.retired.drain(..) {
            table.remove_cid(&cid);
        }
        if let Some(initial) = self.forget_initial.take() {
            table.forget_initial(&initial);
        }
    }
}
