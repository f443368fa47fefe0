//! One QUIC connection.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::{Buffers, Within};
use crate::quic::cid::Cid;
use crate::quic::settings::MIN_UDP_PAYLOAD;

/// Why a datagram could not be opened. What merely does not belong is ignored and no error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// The first packets did not authenticate: garbage, not a connection.
    NotAuthentic,
    /// The peer broke the protocol, and the connection is closing because of it.
    Protocol(String),
}

/// What happened to a connection's paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathChange {
    /// The peer was seen at this address for the first time.
    New(SocketAddr),
    /// The peer proved that it receives at this address.
    Validated(SocketAddr),
    /// The peer moved to this address, and proved it.
    Migrated(SocketAddr),
    /// This address could not be validated.
    Failed(SocketAddr),
    /// Path-MTU discovery settled on this many bytes of UDP payload.
    Mtu(usize),
}

/// The server side of a QUIC connection.
pub struct Transport {
    pub(super) quic: Box<quiche::Connection<Buffers>>,
    /// What differs for the session that is shown it; `None`: it has all of the connection.
    pub(crate) within: Option<Box<Within>>,
    /// DATAGRAM frames that have come, as counted last.
    datagrams: usize,
}

/// Datagrams of a connection that leave together: what holds for all of them is looked at once.
pub(crate) struct Train<'a> {
    quic: quiche::Train<'a, Buffers>,
    is_on_path: bool,
}

impl Train<'_> {
    /// Seals the next datagram into `out` and returns its length, 0 when there is nothing to send.
    #[inline]
    pub(crate) fn seal(&mut self, out: &mut [u8]) -> usize {
        match self.quic.send(out) {
            Ok((length, _)) => length,
            Err(quiche::Error::Done) => 0,
            // The path no longer exists.
            Err(quiche::Error::InvalidState) if self.is_on_path => 0,
            Err(error) => {
                let quic = self.quic.connection_mut();
                tracing::debug!(connection = quic.trace_id(), %error, "sealing a packet failed");
                let internal = quiche::WireErrorCode::InternalError as u64;
                let _ = quic.close(false, internal, b"");
                // The packet that tells the peer; if that fails too, the idle timeout ends it.
                self.quic.send(out).map_or(0, |(length, _)| length)
            }
        }
    }

    /// When the pacer releases the next packet, if that is after `now`.
    #[inline]
    pub(crate) fn release_time(&self, now: Instant) -> Option<Instant> {
        self.quic.connection().get_next_release_time()?.time(now)
    }
}

impl Transport {
    pub(super) fn new(quic: quiche::Connection<Buffers>) -> Self {
        Self { quic: Box::new(quic), within: None, datagrams: 0 }
    }

    /// Opens a datagram in place.
    #[inline]
    pub(crate) fn open(
        &mut self,
        datagram: &mut [u8],
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<(), OpenError> {
        let info = quiche::RecvInfo { from: remote, to: local };
        self.quic.recv(datagram, info).map(|_| ()).map_err(|error| match self.quic.is_closed() {
            // Without a word: nothing that the peer has sent was authentic.
            true => OpenError::NotAuthentic,
            false => OpenError::Protocol(error.to_string()),
        })
    }

    /// Datagrams that leave together, at the time `now`: on `path` (local, remote) if given, else on the active path.
    #[inline]
    pub(crate) fn train(&mut self, path: Option<&(SocketAddr, SocketAddr)>, now: Instant) -> Train<'_> {
        let (local, remote) = path.copied().unzip();
        Train { quic: self.quic.train(local, remote, now), is_on_path: path.is_some() }
    }

    /// Seals the next datagram on the active path into `out`; see [`Train::seal`].
    #[inline]
    pub(crate) fn seal(&mut self, out: &mut [u8], now: Instant) -> usize {
        self.train(None, now).seal(out)
    }

    /// Sends PATH_CHALLENGE with `data`, which has to be unpredictable, in the next packet on the active path, in place of
    /// one that was not sent yet.
    pub(crate) fn challenge(&mut self, data: [u8; 8]) {
        self.quic.challenge_peer(data);
    }

    /// The data of the next challenge that the peer has answered, once.
    pub(crate) fn answered_challenge(&mut self) -> Option<[u8; 8]> {
        self.quic.peer_challenge_answered()
    }

    /// Increases with each packet that shows where the client is: its number is higher than all before it,
    /// and it does more than probe a path (RFC 9000, section 9.3).
    pub(crate) fn newest_packet(&self) -> u64 {
        self.quic.newest_packet()
    }

    /// Gives back what is not needed for what there is: room, and what TLS needs for a handshake only.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.quic.release_tls();
        self.quic.shrink_to_fit();
        if let Some(within) = &mut self.within {
            within.shrink_to_fit();
        }
    }

    /// The state of TLS, as long as it is there.
    fn tls(&mut self) -> Option<&mut boring::ssl::SslRef> {
        (!self.quic.is_tls_released()).then(|| (*self.quic).as_mut())
    }

    /// When [`Self::handle_timeout`] must be called next.
    #[inline]
    pub(crate) fn timeout(&self) -> Option<Instant> {
        self.quic.timeout_instant()
    }

    /// Handles whatever timeout is due; does nothing when none is.
    pub(crate) fn handle_timeout(&mut self) {
        self.quic.on_timeout();
    }

    /// Bytes that may leave in one burst.
    #[inline]
    pub(crate) fn quantum(&self) -> usize {
        self.quic.send_quantum()
    }

    /// The largest datagram that the engine builds now, path-MTU probes aside.
    pub(crate) fn max_datagram(&self) -> usize {
        self.quic.max_send_udp_payload_size()
    }

    /// True while path-MTU discovery on the active path is not finished.
    pub(crate) fn is_probing_mtu(&self) -> bool {
        self.quic.pmtu().is_none()
    }

    /// Has path-MTU discovery start over on the active path, from the minimum.
    pub(crate) fn doubt_mtu(&mut self) {
        self.quic.revalidate_pmtu();
    }

    /// The handshake is complete.
    #[inline]
    pub fn is_established(&self) -> bool {
        self.quic.is_established()
    }

    /// 0-RTT data is being received.
    pub(crate) fn is_in_early_data(&self) -> bool {
        self.quic.is_in_early_data()
    }

    /// Nothing of it is needed any more.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.quic.is_closed()
    }

    /// It was the idle timeout that closed it.
    pub(crate) fn is_timed_out(&self) -> bool {
        self.quic.is_timed_out()
    }

    /// It is closing or draining (RFC 9000, section 10.2), or the session is that has a part of it: nothing new happens on it.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.within.as_ref().is_some_and(|within| within.is_over()) || self.is_closing()
    }

    /// The connection is closing or draining.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.quic.is_draining() || self.quic.local_error().is_some() || self.quic.is_closed()
    }

    /// Closes the connection, or the session that has a part of it, with a code of the application's; the peer is told by the next
    /// packet.
    pub fn close(&mut self, code: u64, reason: &str) {
        match &mut self.within {
            Some(within) => within.close(code, reason),
            None => self.close_connection(code, reason),
        }
    }

    /// Closes the connection.
    pub(crate) fn close_connection(&mut self, code: u64, reason: &str) {
        // An error says that it is closing already.
        let _ = self.quic.close(true, code, reason.as_bytes());
    }

    /// Drops DATAGRAM frames that have come; how many.
    #[inline]
    pub(crate) fn discard_datagrams(&mut self) -> u64 {
        if self.quic.dgram_recv_queue_len() == 0 {
            return 0;
        }
        while self.quic.dgram_recv_buf().is_ok() {}
        // The queue has let go of some if more have come than it takes.
        let total = self.quic.stats().dgram_recv;
        (total - std::mem::replace(&mut self.datagrams, total)) as u64
    }

    /// What the session was asked for that has a part of the connection, path and query of a URL. `None`: it has all of it, and nobody has
    /// said that.
    pub fn target(&self) -> Option<&str> {
        self.within.as_ref().map(|within| within.target())
    }

    /// Has the next packet ask for an acknowledgment, by PING if there is nothing else to send.
    pub fn ping(&mut self) {
        // An error says that it is closing.
        let _ = self.quic.send_ack_eliciting();
    }

    /// Our first ID of the connection, in hexadecimal.
    pub(crate) fn first_id(&self) -> &str {
        self.quic.trace_id()
    }

    /// Has events written there from now on, in place of where they were; without stateless reset tokens. Nothing without the
    /// feature `qlog`.
    pub(crate) fn set_qlog(
        &mut self,
        writer: impl Write + Send + Sync + 'static,
        (local, remote): (SocketAddr, SocketAddr),
    ) {
        #[cfg(feature = "qlog")]
        self.quic.set_qlog(
            Box::new(crate::quic::qlog::Blank::new(writer)),
            "expressway".to_owned(),
            format!("server {local} client {remote}"),
        );
        #[cfg(not(feature = "qlog"))]
        let _ = (writer, local, remote);
    }

    /// The application protocol that was agreed on, by its ALPN ID; empty before the handshake.
    pub fn protocol(&self) -> &[u8] {
        self.quic.application_proto()
    }

    /// The subject of the client's certificate, if it has shown one. To be asked when the handshake is complete.
    pub(crate) fn client_subject(&mut self) -> Option<Arc<str>> {
        expressway_tls::peer_subject(self.tls()?).map(Arc::from)
    }

    /// The cipher suite in IANA's spelling; empty before the handshake. To be asked when it is complete.
    pub(crate) fn cipher(&mut self) -> &'static str {
        let cipher = self.tls().and_then(|ssl| ssl.current_cipher()?.standard_name());
        cipher.unwrap_or("")
    }

    /// The client's first TLS message is incomplete.
    pub(crate) fn awaits_hello(&mut self) -> bool {
        self.tls().is_some_and(|ssl| ssl.current_cipher().is_none())
    }

    /// How many more connection IDs the peer would keep.
    #[inline]
    pub(crate) fn connection_ids_wanted(&self) -> usize {
        self.quic.scids_left()
    }

    /// Offers `cid` to the peer. False when it cannot be.
    pub(crate) fn offer_connection_id(&mut self, cid: &Cid, reset_token: [u8; 16]) -> bool {
        let token = u128::from_be_bytes(reset_token);
        self.quic.new_scid(&quiche::ConnectionId::from_ref(&cid.0), token, false).is_ok()
    }

    /// The next of our connection IDs that the peer has retired.
    #[inline]
    pub(crate) fn retired_connection_id(&mut self) -> Option<Cid> {
        self.quic.retired_scid_next().and_then(|cid| Cid::from_slice(&cid))
    }

    /// The next thing that happened to its paths.
    #[inline]
    pub(crate) fn path_change(&mut self) -> Option<PathChange> {
        loop {
            return Some(match self.quic.path_event_next()? {
                quiche::PathEvent::New(_, peer) => PathChange::New(peer),
                quiche::PathEvent::Validated(_, peer) => PathChange::Validated(peer),
                quiche::PathEvent::PeerMigrated(_, peer) => PathChange::Migrated(peer),
                quiche::PathEvent::FailedValidation(_, peer) => PathChange::Failed(peer),
                quiche::PathEvent::PmtuUpdated { pmtu, .. } => PathChange::Mtu(pmtu.max(MIN_UDP_PAYLOAD)),
                // Closed paths and reused IDs ask for nothing.
                _ => continue,
            });
        }
    }

    /// Calls `visit` with (local, remote, is active) of each path.
    pub(crate) fn paths(&self, mut visit: impl FnMut(SocketAddr, SocketAddr, bool)) {
        for path in self.quic.path_stats() {
            visit(path.local_addr, path.peer_addr, path.active);
        }
    }

    /// Packets declared lost and bytes retransmitted on streams since the connection was made.
    pub(crate) fn losses(&self) -> (u64, u64) {
        let stats = self.quic.stats();
        (stats.lost as u64, stats.stream_retrans_bytes)
    }
}
