//! New connections: first the checks of RFC 9000, Retry and refusal, which keep no state; then, in their turn,
//! handshakes.

use std::time::{Instant, SystemTime};

use expressway_netio::Context;

use super::Endpoint;
use super::connection::Connection;
use super::handshake_queue::{Purpose, Waiting};
use super::link::Link;
use super::receive::Path;
use crate::quic::cid::{Cid, ClientCid};
use crate::quic::engine::{Accept, Engine, EngineError, OpenError, Refusal, Transport};
use crate::quic::settings::{MIN_UDP_PAYLOAD, RetryPolicy};
use crate::quic::token::{MAX_TOKEN_LENGTH, Verdict};

impl Endpoint {
    /// Handles an Initial packet of no known connection, which has these fields in its header.
    pub(super) fn receive_initial(
        &mut self,
        payload: &[u8],
        (dcid, scid, token): (&[u8], &[u8], &[u8]),
        path: Path,
    ) {
        if dcid.len() < 8 {
            self.worker.stats.dropped_short_cid += 1;
            return;
        }
        let verdict = self.tokens.verify(token, path.1, dcid, SystemTime::now());
        let purpose = match verdict {
            _ if self.worker.refuses_new() => return self.refuse(dcid, scid, path, Refusal::Draining),
            Verdict::Valid(original) => {
                self.worker.stats.retries_validated += 1;
                Purpose::Serve { scid: scid.into(), original: Some(original.into()) }
            }
            Verdict::Invalid => return self.refuse(dcid, scid, path, Refusal::InvalidToken),
            Verdict::Foreign if self.wants_retry() || self.passed_a_filter(dcid) => {
                return self.send_retry(dcid, scid, path);
            }
            Verdict::Foreign => Purpose::Serve { scid: scid.into(), original: None },
        };
        if self.table.len() + self.handshakes.len() >= self.setup.settings.max_connections {
            self.worker.stats.dropped_connection_limit += 1;
            return;
        }
        self.queue_handshake(payload, dcid, path, purpose);
    }

    pub(super) fn queue_handshake(&mut self, payload: &[u8], dcid: &[u8], path: Path, purpose: Purpose) {
        if !self.handshakes.push(payload, dcid, path, purpose) {
            self.worker.stats.dropped_handshake_queue_full += 1;
        }
    }

    /// Starts handshakes, within a part of the turn; none while connections are owed their share, so that
    /// handshakes get at most half of a worker's time while connections want the rest. A handshake takes as
    /// long as its signature, which depends on the private key.
    pub(super) fn admit<M>(&mut self, context: &mut Context<'_, M>) {
        if self.handshakes.is_empty() {
            return;
        }
        if self.ready.is_empty() {
            self.handshakes.settle();
        } else if self.handshakes.is_in_debt() {
            return;
        }
        let began = context.slice.look();
        let mut part = context.slice.part();
        while let Some(waiting) = self.handshakes.pop() {
            self.begin_handshake(context.now, waiting);
            if part.spend() {
                break;
            }
        }
        context.slice.rejoin(&part);
        self.handshakes.owe(part.clock() - began);
    }

    fn begin_handshake(&mut self, now: Instant, waiting: Waiting) {
        let Waiting { mut payload, dcid, path, purpose } = waiting;
        // Its connection may have been opened by an earlier packet of the queue.
        if let Some(key) = self.by_long(&dcid) {
            return self.open(now, key, &mut payload, None, path);
        }
        let retry = match &purpose {
            Purpose::Follow => {
                self.worker.stats.dropped_no_connection += 1;
                return;
            }
            Purpose::Serve { scid, .. } if self.worker.refuses_new() => {
                return self.refuse(&dcid, scid, path, Refusal::Draining);
            }
            Purpose::Serve { original, .. } => original.as_deref().map(|original| (original, &*dcid)),
        };
        let is_proven = retry.is_some();
        match self.make(retry, path) {
            Ok((cid, transport)) => self.begin((cid, dcid), is_proven, transport, &mut payload, (path, now)),
            Err(error) => {
                tracing::warn!(remote = %path.1, %error, "cannot set up a connection");
                self.worker.stats.dropped_local_error += 1;
            }
        }
    }

    fn wants_retry(&self) -> bool {
        match self.setup.settings.retry {
            RetryPolicy::Never => false,
            RetryPolicy::Always => true,
            RetryPolicy::UnderLoad { handshaking } => {
                self.handshakes.is_long() || self.worker.stats.handshaking >= handshaking as u64
            }
        }
    }

    /// Whether filters in front pass it without a token because its connection ID is, or looks like, one that these servers issued.
    /// No such connection exists here: whoever has seen an ID could open new connections with it.
    fn passed_a_filter(&self, dcid: &[u8]) -> bool {
        self.shared.secrets.filter.are_made()
            && Cid::from_slice(dcid).is_some_and(|cid| self.worker.cids.is_ours(&cid))
    }

    /// Answers a client for which no connection is opened.
    fn refuse(&mut self, dcid: &[u8], scid: &[u8], (local, remote): Path, refusal: Refusal) {
        let pushed = self.replies.push(local, remote, |out| Engine::write_refusal(out, scid, dcid, refusal));
        let stats = &mut self.worker.stats;
        match refusal {
            _ if !pushed => stats.dropped_reply_queue += 1,
            Refusal::Draining => stats.refused_draining += 1,
            Refusal::InvalidToken => stats.refused_invalid_token += 1,
        }
    }

    fn send_retry(&mut self, dcid: &[u8], scid: &[u8], (local, remote): Path) {
        let Ok(new) = self.worker.cids.issue() else {
            self.worker.stats.dropped_local_error += 1;
            return;
        };
        let mut token = [0; MAX_TOKEN_LENGTH];
        let minted = self.tokens.mint(&mut token, remote, dcid, &new.0, SystemTime::now());
        let Ok(length) = minted else {
            self.worker.stats.dropped_local_error += 1;
            return;
        };
        let pushed = self
            .replies
            .push(local, remote, |out| Engine::write_retry(out, scid, dcid, &new, &token[..length]));
        match pushed {
            true => self.worker.stats.retries_sent += 1,
            false => self.worker.stats.dropped_reply_queue += 1,
        }
    }

    fn make(&mut self, retry: Option<(&[u8], &[u8])>, path: Path) -> Result<(Cid, Transport), EngineError> {
        let cid = self.worker.cids.issue()?;
        let reset_token = self.worker.resets.token(&cid)?;
        let (local, remote) = path;
        let max_payload = self.probe_limit(local);
        let accept = Accept { cid, reset_token, retry, local, remote, max_payload };
        Ok((cid, self.engine.accept(&accept)?))
    }

    /// The largest datagram that a new connection on `local` may try.
    fn probe_limit(&self, local: std::net::SocketAddr) -> usize {
        let interface = self.max_payload[usize::from(local.is_ipv6())];
        self.setup.settings.max_udp_payload.min(interface).max(MIN_UDP_PAYLOAD)
    }

    /// Opens the first packet of a connection that has the ID `cid`, and whose client took `dcid`: from a Retry packet, if it
    /// `is_proven`.
    fn begin(
        &mut self,
        (cid, dcid): (Cid, ClientCid),
        is_proven: bool,
        mut transport: Transport,
        payload: &mut [u8],
        (path, now): (Path, Instant),
    ) {
        let mut trial = None;
        if self.shared.qlogs.are_wanted() {
            // The client chose this ID, possibly to look like another connection's.
            let ids = std::iter::once(&cid.0[..]).chain(is_proven.then_some(&dcid[..]));
            if let Some((writer, of_writer)) = self.shared.qlogs.try_out(path.1, ids) {
                transport.set_qlog(writer, path);
                trial = Some(of_writer);
            }
        }
        match transport.open(payload, path.0, path.1) {
            Ok(()) => {}
            Err(OpenError::NotAuthentic) => {
                // A recording that took this connection waits for another.
                self.worker.stats.dropped_bad_initial += 1;
                return;
            }
            Err(OpenError::Protocol(error)) => {
                tracing::debug!(remote = %path.1, error, "QUIC protocol error by the client");
                self.worker.stats.connections_protocol_error += 1;
            }
        }
        if let Some(trial) = trial {
            trial.pass();
        }
        self.generation = self.generation.wrapping_add(1);
        let setup = std::sync::Arc::clone(&self.setup);
        let limit = self.probe_limit(path.0);
        let setup = (setup, &self.worker.ledger);
        let link = Link::new(transport, setup, (cid, dcid), path, (self.generation, limit), now);
        let key = self.table.insert(Connection::new(link), cid, &dcid);
        self.worker.stats.connections_accepted += 1;
        self.worker.stats.handshaking += 1;
        self.enqueue(key);
    }
}
