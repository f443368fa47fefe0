//! The QUIC side of a connection: the engine's state, and what an endpoint keeps in addition to it. `address` decides
//! where its packets go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use expressway_web::memory::{Account, Ledger};

use super::Setup;
use super::address::Address;
use super::follow::Followed;
use super::probe::{Outcome, Probe};
use super::receive::Path;
use super::turn::Worker;
use crate::quic::cid::{Cid, ClientCid};
use crate::quic::engine::{OpenError, PathChange, Transport};
use crate::quic::qlog::Qlogs;
use crate::quic::settings::{MIN_UDP_PAYLOAD, Settings};
use crate::quic::stats::Stats;
use crate::quic::table::{Ids, Key};

/// Timeouts in a row without a packet from the peer after which a path MTU above the minimum is doubted
/// (RFC 8899, section 4.3).
const BLACK_HOLE_TIMEOUTS: u8 = 3;

/// See the module.
pub(crate) struct Link {
    pub(crate) transport: Transport,
    pub(crate) setup: Arc<Setup>,
    /// Memory that it holds.
    pub(crate) account: Account,
    /// IDs of ours that lead here.
    pub(super) cids: Vec<Cid>,
    /// The client's first destination ID, until the handshake is complete.
    pub(super) initial: Option<ClientCid>,
    /// Where its packets go.
    pub(super) address: Address,
    /// The validation of that address; none before the first rebinding.
    pub(super) probe: Option<Box<Probe>>,
    /// The size of full datagrams on the active path.
    pub(super) segment: usize,
    /// The largest datagram that the engine probes for.
    pub(super) probe_limit: usize,
    pub(super) generation: u16,
    pub(super) established: bool,
    /// The recording that it was last matched with, and what is followed.
    pub(super) epoch: u32,
    pub(super) followed: Option<Box<Followed>>,
    /// The address that the engine last said the client had moved to, or its first.
    moved_to: SocketAddr,
    timeouts: u8,
    /// When the client's last packet arrived that was authentic and newer than all before.
    pub(super) heard: Instant,
}

impl Link {
    pub(super) fn new(
        transport: Transport,
        (setup, ledger): (Arc<Setup>, &Arc<Ledger>),
        (cid, initial): (Cid, ClientCid),
        (local, remote): Path,
        (generation, probe_limit): (u16, usize),
        now: Instant,
    ) -> Self {
        let settings = &setup.settings;
        Self {
            transport,
            account: Account::new(ledger, settings.send_window, settings.connection_memory()),
            setup,
            cids: vec![cid],
            initial: Some(initial),
            address: Address::new(local, remote),
            probe: None,
            segment: MIN_UDP_PAYLOAD,
            probe_limit,
            generation,
            established: false,
            epoch: 0,
            followed: None,
            moved_to: remote,
            timeouts: 0,
            heard: now,
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.setup.settings
    }

    /// Where the client is.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.address.remote
    }

    /// Has its events recorded from now on, if a qlog was ordered for it.
    #[cold]
    pub(super) fn offer_qlog(&mut self, qlogs: &Arc<Qlogs>) {
        // The client chose its first destination ID, possibly to look like another connection's.
        let first = self.first_id();
        let ids = self.cids.iter().map(|cid| &cid.0[..]).chain(std::iter::once(&first[..]));
        if let Some(writer) = qlogs.take(self.address.remote, ids) {
            self.transport.set_qlog(writer, (self.address.local, self.address.remote));
        }
    }

    /// The TLS handshake has not begun.
    pub(super) fn awaits_hello(&mut self) -> bool {
        !self.established && self.transport.awaits_hello()
    }

    /// Handles what is due of the engine's timers and the probe's.
    pub(super) fn handle_timeout(&mut self, now: Instant, stats: &mut Stats) {
        if self.transport.timeout().is_some_and(|timeout| timeout <= now) {
            self.transport.handle_timeout();
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

    /// Opens a datagram that came from `remote` to `local`; `cid` is its destination ID if that is one of
    /// ours in a short header.
    pub(super) fn open(
        &mut self,
        payload: &mut [u8],
        cid: Option<Cid>,
        (local, remote): Path,
        stats: &mut Stats,
        now: Instant,
    ) -> Result<(), OpenError> {
        let length = payload.len();
        let known = (local, remote) == (self.address.local, self.address.remote);
        let same_cid = local == self.address.local && cid.is_some() && cid == self.address.cid;
        self.timeouts = 0;
        if !known && same_cid && self.established {
            return self.open_rebound(payload, remote, stats, now);
        }
        let seen_as = self.address.seen_as(local, remote, length);
        let newest = self.transport.newest_packet();
        let opened = self.transport.open(payload, local, seen_as);
        if self.transport.newest_packet() != newest {
            self.heard = now;
        }
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
        let newest = self.transport.newest_packet();
        let opened = self.transport.open(payload, self.address.local, self.address.engine);
        self.follow_paths(stats);
        self.follow_probe(stats);
        // It says nothing of where the client is: not authentic, known, overtaken, or a probe.
        if self.transport.newest_packet() == newest {
            return opened;
        }
        self.heard = now;
        self.forget_tracer();
        if !self.address.is_proven(remote) {
            stats.paths_new += 1;
            if remote.ip() != self.address.remote.ip() {
                self.segment = MIN_UDP_PAYLOAD;
            }
            self.address.rebind(remote, length);
            self.probe.get_or_insert_default().begin(&mut self.transport, now);
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
    pub(super) fn follow_paths(&mut self, stats: &mut Stats) {
        let mut changed = false;
        while let Some(change) = self.transport.path_change() {
            match change {
                PathChange::New(_) => {
                    stats.paths_new += 1;
                    self.address.several = true;
                    changed = true;
                }
                PathChange::Validated(_) => {}
                PathChange::Migrated(peer) => {
                    changed = true;
                    stats.paths_migrated += u64::from(peer != self.moved_to);
                    self.moved_to = peer;
                }
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
                self.forget_tracer();
                // Another path has another MTU (RFC 9000, section 9.4).
                self.segment = MIN_UDP_PAYLOAD;
                if let Some(probe) = &mut self.probe {
                    probe.end();
                }
            }
        }
    }

    /// Keeps the peer in spare connection IDs, for paths to come.
    pub(super) fn follow_ids(&mut self, worker: &mut Worker, key: Key, ids: &mut Ids) {
        if !self.established {
            return;
        }
        while let Some(retired) = self.transport.retired_connection_id() {
            self.cids.retain(|cid| *cid != retired);
            ids.remove_cid(&retired);
        }
        while self.transport.connection_ids_wanted() > 0 {
            let Ok(cid) = worker.cids.issue() else { break };
            let Ok(token) = worker.resets.token(&cid) else { break };
            if !self.transport.offer_connection_id(&cid, token) {
                break;
            }
            self.cids.push(cid);
            ids.add_cid(cid, key);
        }
    }
}
