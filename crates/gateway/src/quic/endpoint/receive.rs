//! From a datagram to its connection.

use std::net::SocketAddr;
use std::time::Instant;

use expressway_netio::Context;

use super::Endpoint;
use super::line::Purpose;
use crate::quic::cid::Cid;
use crate::quic::engine::OpenError;
use crate::quic::header::{self, Header, HeaderError, LongType};
use crate::quic::message::{ForeignDatagram, Message};
use crate::quic::settings::MIN_UDP_PAYLOAD;
use crate::quic::table::Key;

/// A datagram's two addresses, ours first.
pub(super) type Path = (SocketAddr, SocketAddr);

impl Endpoint {
    /// Handles a datagram from packet I/O.
    pub(super) fn receive(
        &mut self,
        context: &mut Context<'_, Message>,
        payload: &mut [u8],
        local: SocketAddr,
        remote: SocketAddr,
    ) {
        self.stats.datagrams_received += 1;
        self.stats.bytes_received += payload.len() as u64;
        let owner = match header::parse(payload) {
            Ok(Header::Short { dcid }) => match self.table.by_cid(&dcid) {
                Some(key) => return self.open(context.now, key, payload, Some(dcid), (local, remote)),
                None => self.foreign_owner(&dcid),
            },
            Ok(Header::Long { dcid, .. }) => self.owner_of_long(dcid),
            _ => None,
        };
        match owner {
            Some(worker) if worker < context.peers.len() => {
                self.hand_over(context, worker, payload, (local, remote));
            }
            // Fewer workers than before a restart, so nobody has the connection; or a client's own first ID,
            // of which one in 65,536 looks like ours.
            Some(_) | None => self.receive_own(context.now, payload, (local, remote)),
        }
    }

    /// Handles a datagram that another worker handed over; it is never handed on.
    pub(super) fn receive_foreign(
        &mut self,
        context: &mut Context<'_, Message>,
        payload: &mut [u8],
        local: SocketAddr,
        remote: SocketAddr,
    ) {
        self.stats.datagrams_received += 1;
        self.stats.bytes_received += payload.len() as u64;
        self.receive_own(context.now, payload, (local, remote));
    }

    /// The other worker that an unknown ID names, if this server issued it.
    fn foreign_owner(&self, dcid: &Cid) -> Option<usize> {
        let worker = dcid.worker();
        (worker != usize::from(self.worker) && self.cids.is_ours(dcid)).then_some(worker)
    }

    fn owner_of_long(&mut self, dcid: &[u8]) -> Option<usize> {
        let cid = Cid::from_slice(dcid)?;
        if self.table.by_cid(&cid).is_some() || self.table.by_initial(dcid).is_some() {
            return None;
        }
        self.foreign_owner(&cid)
    }

    /// Gives the datagram to `worker`, which exists.
    fn hand_over(
        &mut self,
        context: &mut Context<'_, Message>,
        worker: usize,
        payload: &[u8],
        (local, remote): Path,
    ) {
        let Some(buffer) = self.shared.pool.take(payload) else {
            self.stats.dropped_handover_buffer += 1;
            return;
        };
        match context.peers[worker].try_send(Message::Datagram(ForeignDatagram { buffer, remote, local })) {
            Ok(()) => self.stats.handed_over += 1,
            Err(_) => self.stats.dropped_handover_full += 1,
        }
    }

    /// Handles a datagram that is this worker's to handle.
    fn receive_own(&mut self, now: Instant, payload: &mut [u8], path: Path) {
        let length = payload.len();
        match header::parse(payload) {
            Ok(Header::Short { dcid }) => match self.table.by_cid(&dcid) {
                Some(key) => self.open(now, key, payload, Some(dcid), path),
                None => self.reset_unknown(now, payload, path),
            },
            Ok(Header::Long { kind, dcid, .. }) => {
                let is_initial = kind == LongType::Initial;
                let follows = (is_initial || kind == LongType::ZeroRtt) && self.line.has(dcid);
                match self.by_long(dcid) {
                    _ if is_initial && length < MIN_UDP_PAYLOAD => self.stats.dropped_small_initial += 1,
                    _ if follows => self.stand_in_line(payload, path, Purpose::Follow),
                    Some(key) if is_initial && self.awaits_hello(key) => {
                        self.stand_in_line(payload, path, Purpose::Follow);
                    }
                    Some(key) => self.open(now, key, payload, None, path),
                    None if is_initial => self.receive_initial(payload, path),
                    None => self.stats.dropped_no_connection += 1,
                }
            }
            Ok(Header::OtherVersion { dcid, scid, .. }) => {
                if length < MIN_UDP_PAYLOAD {
                    self.stats.dropped_unknown_version += 1;
                    return;
                }
                let random = scid.first().copied().unwrap_or(0x55) & 0x7f;
                let (local, remote) = path;
                let pushed = self
                    .replies
                    .push(local, remote, |out| header::write_version_negotiation(out, dcid, scid, random));
                match pushed {
                    true => self.stats.version_negotiations_sent += 1,
                    false => self.stats.dropped_reply_queue += 1,
                }
            }
            Err(HeaderError::ServerOnly) => self.stats.dropped_server_only += 1,
            Err(HeaderError::Truncated | HeaderError::Invalid) => self.stats.dropped_malformed += 1,
        }
    }

    /// The connection that the destination ID of a long header leads to.
    pub(super) fn by_long(&mut self, dcid: &[u8]) -> Option<Key> {
        let issued = Cid::from_slice(dcid).and_then(|cid| self.table.by_cid(&cid));
        issued.or_else(|| self.table.by_initial(dcid))
    }

    /// The TLS handshake of a connection has not started: the client's first message is incomplete.
    fn awaits_hello(&mut self, key: Key) -> bool {
        self.table.get_mut(key).is_some_and(|connection| connection.awaits_hello())
    }

    /// Gives a datagram to its connection, which opens it in place.
    pub(super) fn open(&mut self, now: Instant, key: Key, payload: &mut [u8], cid: Option<Cid>, path: Path) {
        let Some(connection) = self.table.get_mut(key) else { return };
        match connection.open(payload, cid, path, &mut self.stats, now) {
            Ok(()) => {}
            Err(OpenError::NotAuthentic) => self.stats.dropped_bad_initial += 1,
            Err(OpenError::Protocol(error)) => {
                tracing::debug!(remote = %path.1, error, "QUIC protocol error by the client");
                self.stats.connections_protocol_error += 1;
            }
        }
        if !connection.queued {
            connection.queued = true;
            self.ready.push_back(key);
        }
    }

    /// Answers a packet of a connection that is not known (any more) by a stateless reset.
    fn reset_unknown(&mut self, now: Instant, payload: &[u8], (local, remote): Path) {
        let Ok(Header::Short { dcid }) = header::parse(payload) else {
            self.stats.dropped_no_connection += 1;
            return;
        };
        // An ID that no worker ever issued has no reset token that anyone knows.
        let resets = &mut self.resets;
        let sent = self.drain.is_none()
            && self.cids.is_ours(&dcid)
            && self.replies.push(local, remote, |out| resets.write(out, &dcid, payload.len(), now));
        match sent {
            true => self.stats.resets_sent += 1,
            false => self.stats.dropped_unknown_connection += 1,
        }
    }
}
