//! Finds the connection of a datagram.

use std::net::SocketAddr;
use std::time::Instant;

use expressway_netio::mailbox::Mailbox;

use super::Endpoint;
use super::handshake_queue::Purpose;
use crate::quic::cid::Cid;
use crate::quic::engine::OpenError;
use crate::quic::header::{self, Header, HeaderError, LongType};
use crate::quic::message::{ForeignDatagram, Message};
use crate::quic::older::Forwarded;
use crate::quic::settings::MIN_UDP_PAYLOAD;
use crate::quic::table::Key;

/// Who has a connection that this worker has not.
enum Owner<'a, M> {
    /// Another worker of this process.
    Worker(&'a Mailbox<M>),
    /// An older process, by its index in [`Generations::older`](crate::quic::older::Generations::older).
    Older(usize),
}

/// A datagram's two addresses, ours first.
pub(super) type Path = (SocketAddr, SocketAddr);

impl Endpoint {
    /// Handles a datagram, or hands it over to the worker among `peers` that has its connection. What another worker
    /// handed over is never handed on: it comes with no peers.
    pub(super) fn receive<M: From<Message> + Send>(
        &mut self,
        now: Instant,
        peers: &[Mailbox<M>],
        payload: &mut [u8],
        path: Path,
    ) {
        let length = payload.len();
        self.worker.stats.datagrams_received += 1;
        self.worker.stats.bytes_received += length as u64;
        match header::parse(payload) {
            Ok(Header::Short { dcid }) => match self.table.ids.by_cid(&dcid) {
                Some(key) => self.open(now, key, payload, Some(dcid), path),
                None => match self.owner(&dcid, peers) {
                    Some(Owner::Worker(owner)) => self.hand_over(owner, payload, path),
                    Some(Owner::Older(older)) if self.forward(older, payload, path) => {}
                    _ => self.reset_unknown(now, &dcid, length, path),
                },
            },
            Ok(Header::Long { kind, dcid, scid, token }) => {
                let known = self.by_long(dcid);
                if known.is_none()
                    && let Some(cid) = Cid::from_slice(dcid)
                {
                    match self.owner(&cid, peers) {
                        Some(Owner::Worker(owner)) => return self.hand_over(owner, payload, path),
                        Some(Owner::Older(older)) if self.forward(older, payload, path) => return,
                        _ => {}
                    }
                }
                let is_initial = kind == LongType::Initial;
                let follows = (is_initial || kind == LongType::ZeroRtt) && self.handshakes.has(dcid);
                match known {
                    _ if is_initial && length < MIN_UDP_PAYLOAD => {
                        self.worker.stats.dropped_small_initial += 1
                    }
                    _ if follows => self.queue_handshake(payload, dcid, path, Purpose::Follow),
                    Some(key) if is_initial && self.awaits_hello(key) => {
                        self.queue_handshake(payload, dcid, path, Purpose::Follow);
                    }
                    Some(key) => self.open(now, key, payload, None, path),
                    None if is_initial => self.receive_initial(payload, (dcid, scid, token), path),
                    None => self.worker.stats.dropped_no_connection += 1,
                }
            }
            Ok(Header::OtherVersion { dcid, scid, .. }) => {
                if length < MIN_UDP_PAYLOAD {
                    self.worker.stats.dropped_unknown_version += 1;
                    return;
                }
                let random = scid.first().copied().unwrap_or(0x55) & 0x7f;
                let (local, remote) = path;
                let pushed = self
                    .replies
                    .push(local, remote, |out| header::write_version_negotiation(out, dcid, scid, random));
                match pushed {
                    true => self.worker.stats.version_negotiations_sent += 1,
                    false => self.worker.stats.dropped_reply_queue += 1,
                }
            }
            Err(HeaderError::ServerOnly) => self.worker.stats.dropped_server_only += 1,
            Err(HeaderError::Truncated | HeaderError::Invalid) => self.worker.stats.dropped_bad_header += 1,
        }
    }

    /// Who else has the connection of an unknown ID, if this server issued it: the other worker that it names, or an older
    /// process. None also when there are fewer workers than before a restart, so that nobody has the connection; a client's own
    /// first ID looks like ours one time in 65,536. What was handed over or forwarded comes with no peers, and goes no further.
    fn owner<'a, M>(&self, dcid: &Cid, peers: &'a [Mailbox<M>]) -> Option<Owner<'a, M>> {
        if peers.is_empty() {
            return None;
        }
        let keys = self.worker.cids.keys();
        let seen = keys.generation(dcid);
        let generations = &self.shared.generations;
        if generations.is_own(seen) {
            let owner = peers.get(dcid.worker())?;
            return (dcid.worker() != usize::from(self.worker.number)).then_some(Owner::Worker(owner));
        }
        generations.issuer(dcid, keys, seen).map(Owner::Older)
    }

    /// Gives the datagram to an older process. False if that has ended.
    fn forward(&mut self, older: usize, payload: &[u8], (local, remote): Path) -> bool {
        match self.shared.generations.older[older].forward.forward(local, remote, payload) {
            Forwarded::Sent => self.worker.stats.forwarded_older += 1,
            Forwarded::Full => self.worker.stats.dropped_older_full += 1,
            Forwarded::Gone => return false,
        }
        true
    }

    /// Gives the datagram to another worker.
    fn hand_over<M: From<Message> + Send>(
        &mut self,
        owner: &Mailbox<M>,
        payload: &[u8],
        (local, remote): Path,
    ) {
        let Some(buffer) = self.shared.pool.take(payload) else {
            self.worker.stats.dropped_handover_buffer += 1;
            return;
        };
        match owner.try_send(Message::Datagram(ForeignDatagram { buffer, remote, local }).into()) {
            Ok(()) => self.worker.stats.handed_over += 1,
            Err(_) => self.worker.stats.dropped_handover_full += 1,
        }
    }

    /// The connection that the destination ID of a long header leads to.
    pub(super) fn by_long(&mut self, dcid: &[u8]) -> Option<Key> {
        let issued = Cid::from_slice(dcid).and_then(|cid| self.table.ids.by_cid(&cid));
        issued.or_else(|| self.table.ids.by_initial(dcid))
    }

    /// The TLS handshake of a connection has not started: the client's first message is incomplete.
    fn awaits_hello(&mut self, key: Key) -> bool {
        self.table.get_mut(key).is_some_and(|connection| connection.link.awaits_hello())
    }

    /// Gives a datagram to its connection, which opens it in place.
    pub(super) fn open(&mut self, now: Instant, key: Key, payload: &mut [u8], cid: Option<Cid>, path: Path) {
        let Some(connection) = self.table.get_mut(key) else { return };
        connection.upper.fresh = true;
        connection.has_grown = true;
        if self.shared.qlogs.are_wanted() {
            connection.link.offer_qlog(&self.shared.qlogs);
        }
        if let Some(arrival) = self.arrival {
            connection.link.follow_tracer(&self.worker.tracer);
            connection.link.trace_taken(&self.worker.tracer, arrival, payload.len(), path);
        }
        match connection.link.open(payload, cid, path, &mut self.worker.stats, now) {
            Ok(()) => {}
            Err(OpenError::NotAuthentic) => self.worker.stats.dropped_bad_initial += 1,
            Err(OpenError::Protocol(error)) => {
                tracing::debug!(remote = %path.1, error, "QUIC protocol error by the client");
                self.worker.stats.connections_protocol_error += 1;
            }
        }
        if self.arrival.is_some() {
            self.arrival = None;
            connection.link.trace_opened(&self.worker.tracer);
        }
        if !connection.queued {
            connection.queued = true;
            self.ready.push_back(key);
        }
    }

    /// Answers a packet of a connection that is not known (any more) by a stateless reset.
    fn reset_unknown(&mut self, now: Instant, dcid: &Cid, length: usize, (local, remote): Path) {
        // An ID that no worker ever issued has no reset token that anyone knows.
        let resets = &mut self.worker.resets;
        let sent = self.worker.drain.is_none()
            && self.worker.cids.is_ours(dcid)
            && self.replies.push(local, remote, |out| resets.write(out, dcid, length, now));
        match sent {
            true => self.worker.stats.resets_sent += 1,
            false => self.worker.stats.dropped_unknown_connection += 1,
        }
    }
}
