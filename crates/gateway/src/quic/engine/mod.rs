//! The QUIC engine behind a narrow interface of our own: nothing outside this directory uses `quiche`.
//!
//! [`Engine`] creates [`Transport`]s (one QUIC connection each) and holds their configuration. Neither does
//! I/O; time is the engine's own reading of the monotonic clock. HTTP/3 is in `crate::h3`.
//!
//! # Patches to quiche
//!
//! In bulk transfers nearly all of a worker's CPU is spent in quiche and BoringSSL. A call-graph profile
//! showed work repeated for each packet: quiche prepares a handshake that completed long ago (a copy of the
//! transport parameters and three allocations), reads the clock, computes when a loss would be declared,
//! counts references atomically where an ID is enough, and collects streams with little window left where
//! there are none. It also showed stalls. A packet's payload was copied into the datagram and encrypted
//! there; then the packet's record, some 260 bytes, was moved four times. A processor forwards a store to a
//! load only if a single store covers the load; a record that was written in small pieces and is moved in
//! pieces of 64 bytes waits until all earlier stores, including those of the payload, have reached the cache.
//!
//! The patches (`patches/`) remove the repeated work, let AES read the body where it is (not ChaCha20, which
//! would use a slower implementation), and build the record in place before the packet is encrypted. They
//! also fill packets: quiche puts data of one stream into a packet, so eight small responses were eight
//! datagrams of slightly different lengths, which GSO takes in two messages; with data of several streams
//! (RFC 9000, section 13) packets are nearly full and most often fit one message. Finally, they fix two waits
//! that ended by a timer only, or not at all: for room after the loss of everything in flight, and of
//! CONNECTION_CLOSE for room in the congestion window, which does not apply to it, so that at the end of a
//! drain clients with a full window were not notified. None of these changes the protocol; quiche's unit
//! tests pass, and so do ours of in-place encryption, except for those of quiche's that expect packets with
//! data of one stream. Datagrams that leave together are sealed as a train (below), and packets that an ACK names
//! are told to their stream as one range. An idle connection gives back room and the state of TLS. Other patches
//! bound what a peer can make quiche hold or do, and add what the endpoint needs to keep a client's address and to
//! refuse connections.
//!
//! `scripts/patched` creates the patched crate from quiche's release, which cargo downloads and verifies. It is
//! required: with quiche as released this does not build (`patches/README.md`). A fork would have to
//! be maintained, a copy in our tree would obscure what is ours, and this project does not need its own
//! engine. quiche's `qlog` feature has a cost even with no file open. Being able to inspect a connection of a
//! running server is worth that by default; a build with `--no-default-features` does without it, and then
//! the key is rejected.
//!
//! # Trains
//!
//! The datagrams of a burst are a train. They are sealed one after the other into the slots that packet I/O lends:
//!
//! ```text
//! train(path, now) ─▶ first packet: whatever is due ─▶ only streams left? ─▶ run: header, STREAM frames, record, seal ─▶ next slot
//!                          ▲                                                  │ number skipped or longer, window for a part,
//!                          └──────────────── the ordinary way ◀───────────────┘ nothing more to send
//! ```
//!
//! A train borrows the connection. Meanwhile nothing is received and no timer expires, so the answers to what quiche
//! asks for each packet cannot change: is an ACK due, must a window be raised or a path be probed, which path and keys
//! apply. A run asks once. The streams in a packet are chosen by the same code as for any packet, one packet at a
//! time, so priorities, turns and every byte are the same as without trains. A train is as long as a burst was before,
//! so turns are no longer. Figures and tests are at the head of `patches/quiche-0.30.0/24-trains.patch`; what trains
//! leave out is in `patches/README.md`.

mod stream;
mod transport;
mod within;

use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use boring::ssl::SslOptions;
use bytes::Bytes;

use super::application::{Application, StreamLimits};
use super::cid::Cid;
use super::endpoint::Setup;
use super::settings::{CongestionControl, Settings};

pub(crate) use stream::Priority;
pub use stream::{Received, SendError};
pub use transport::Transport;
pub(crate) use transport::{OpenError, PathChange};
pub(crate) use within::{Closing, Credit, Within};

/// Why the engine could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The TLS context.
    #[error("TLS context: {0}")]
    Tls(#[from] super::tls::TlsError),
    /// Secrets of the server.
    #[error("secrets: {0}")]
    Secrets(#[from] boring::error::ErrorStack),
    /// The QUIC configuration.
    #[error("QUIC configuration: {0}")]
    Quic(#[from] quiche::Error),
    /// A connection ID names its worker by one byte.
    #[error("worker {worker}: at most 256 workers are supported")]
    TooManyWorkers {
        /// The worker's index.
        worker: usize,
    },
    /// The key log cannot be written.
    #[error("{}: {source}", path.display())]
    KeyLog {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The qlog directory cannot be written.
    #[error("{}: {source}", path.display())]
    Qlog {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// qlog files are asked of a build without them.
    #[error("this build does not support qlog; build with the feature `qlog`")]
    NoQlog,
}

/// How stream data is held: a reference-counted slice, split and never copied.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buffers;

impl quiche::BufFactory for Buffers {
    type Buf = Bytes;
    type DgramBuf = Vec<u8>;

    fn buf_from_slice(slice: &[u8]) -> Bytes {
        Bytes::copy_from_slice(slice)
    }

    fn dgram_buf_from_slice(slice: &[u8]) -> Vec<u8> {
        slice.to_vec()
    }
}

/// A new connection's particulars.
pub(crate) struct Accept<'a> {
    /// Our connection ID.
    pub(crate) cid: Cid,
    /// The stateless reset token of `cid`.
    pub(crate) reset_token: [u8; 16],
    /// After a Retry: the client's first destination connection ID, and that of the Retry.
    pub(crate) retry: Option<(&'a [u8], &'a [u8])>,
    /// The address that the client asked.
    pub(crate) local: SocketAddr,
    /// The client's address.
    pub(crate) remote: SocketAddr,
    /// The largest UDP payload to send.
    pub(crate) max_payload: usize,
}

/// Creates connections. One per worker, since its configuration changes with each connection.
pub(crate) struct Engine {
    config: quiche::Config,
    initial_window: usize,
    keylog: Option<SharedWriter>,
    #[cfg(feature = "qlog")]
    qlog: Option<PathBuf>,
}

impl Engine {
    /// An engine for connections made with `setup`.
    pub(crate) fn new(setup: &Setup) -> Result<Self, EngineError> {
        let Setup { settings, application } = setup;
        let mut context = settings.tls.quic()?;
        if !settings.session_tickets {
            context.set_options(SslOptions::NO_TICKET);
        }
        let mut config = quiche::Config::with_boring_ssl_ctx_builder(quiche::PROTOCOL_VERSION, context)?;
        config.set_application_protos(application.protocols())?;
        limit(&mut config, settings, application.as_ref());
        let keylog = settings.keylog.as_ref().map(open_keylog).transpose()?;
        if keylog.is_some() {
            config.log_keys();
        }
        if let Some(path) = &settings.qlog {
            if !cfg!(feature = "qlog") {
                return Err(EngineError::NoQlog);
            }
            std::fs::create_dir_all(path)
                .map_err(|source| EngineError::Qlog { path: path.clone(), source })?;
        }
        let initial_window = settings.initial_window;
        Ok(Self {
            config,
            initial_window,
            keylog,
            #[cfg(feature = "qlog")]
            qlog: settings.qlog.clone(),
        })
    }

    /// Creates the server side of a connection.
    pub(crate) fn accept(&mut self, accept: &Accept<'_>) -> Result<Transport, EngineError> {
        let config = &mut self.config;
        config.set_stateless_reset_token(Some(u128::from_be_bytes(accept.reset_token)));
        config.set_max_send_udp_payload_size(accept.max_payload);
        config.set_initial_congestion_window_packets(initial_window(self.initial_window, accept.max_payload));
        let cid = quiche::ConnectionId::from_ref(&accept.cid.0);
        let mut connection = match accept.retry {
            Some((original, retry)) => quiche::accept_with_retry::<Buffers>(
                &cid,
                quiche::RetryConnectionIds {
                    original_destination_cid: &quiche::ConnectionId::from_ref(original),
                    retry_source_cid: &quiche::ConnectionId::from_ref(retry),
                },
                accept.local,
                accept.remote,
                config,
            )?,
            None => {
                quiche::accept_with_buf_factory::<Buffers>(&cid, None, accept.local, accept.remote, config)?
            }
        };
        if let Some(writer) = &self.keylog {
            connection.set_keylog(Box::new(writer.clone()));
        }
        #[cfg_attr(not(feature = "qlog"), expect(unused_mut))]
        let mut transport = Transport::new(connection);
        #[cfg(feature = "qlog")]
        if let Some(directory) = &self.qlog {
            let path = directory.join(format!("{}.sqlog", transport.first_id()));
            match File::create(&path) {
                Ok(file) => {
                    transport.set_qlog(std::io::BufWriter::new(file), (accept.local, accept.remote));
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "cannot write the qlog of this connection")
                }
            }
        }
        Ok(transport)
    }

    /// Writes a Retry packet (RFC 9000, section 17.2.5) that answers an Initial with `dcid` and `scid`, and
    /// returns its length.
    pub(crate) fn write_retry(
        out: &mut [u8],
        scid: &[u8],
        dcid: &[u8],
        new_scid: &Cid,
        token: &[u8],
    ) -> Option<usize> {
        quiche::retry(
            &quiche::ConnectionId::from_ref(scid),
            &quiche::ConnectionId::from_ref(dcid),
            &quiche::ConnectionId::from_ref(&new_scid.0),
            token,
            quiche::PROTOCOL_VERSION,
            out,
        )
        .ok()
    }

    /// Writes an Initial packet with CONNECTION_CLOSE that answers one with `dcid` and `scid`, and returns its length: a few
    /// derived keys, and no connection.
    pub(crate) fn write_refusal(out: &mut [u8], scid: &[u8], dcid: &[u8], refusal: Refusal) -> Option<usize> {
        quiche::refuse(
            &quiche::ConnectionId::from_ref(scid),
            &quiche::ConnectionId::from_ref(dcid),
            quiche::PROTOCOL_VERSION,
            refusal.into(),
            out,
        )
        .ok()
    }
}

/// Why a connection is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The server takes no more (RFC 9000, section 5.2.2).
    Draining,
    /// The client's Retry token is not valid (RFC 9000, section 8.1.2).
    InvalidToken,
}

impl From<Refusal> for quiche::WireErrorCode {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Draining => Self::ConnectionRefused,
            Refusal::InvalidToken => Self::InvalidToken,
        }
    }
}

/// The initial window in packets of `max_payload` bytes, in which the engine counts once it probes the path
/// MTU: as many bytes as `packets` of Ethernet's size, and ten packets at least (RFC 9002, section 7.2).
fn initial_window(packets: usize, max_payload: usize) -> usize {
    (packets * 1472 / max_payload.max(1472)).max(packets.min(10))
}

fn limit(config: &mut quiche::Config, settings: &Settings, application: &dyn Application) {
    let StreamLimits {
        bidirectional,
        unidirectional,
        bidirectional_window,
        unidirectional_window,
        own_window,
        max_stream_window,
        connection_window,
        max_connection_window,
    } = application.limits(settings);
    let milliseconds = u64::try_from(settings.idle_timeout.as_millis()).unwrap_or(u64::MAX);
    config.set_max_idle_timeout(milliseconds);
    config.set_max_recv_udp_payload_size(settings.max_receive_payload());
    config.set_initial_max_data(connection_window);
    config.set_max_connection_window(max_connection_window);
    config.set_initial_max_stream_data_bidi_remote(bidirectional_window);
    config.set_initial_max_stream_data_bidi_local(own_window);
    config.set_initial_max_stream_data_uni(unidirectional_window);
    config.set_max_stream_window(max_stream_window);
    config.set_initial_max_streams_bidi(bidirectional);
    config.set_initial_max_streams_uni(unidirectional);
    config.set_active_connection_id_limit(settings.connection_ids);
    config.set_cc_algorithm(match settings.congestion {
        CongestionControl::Reno => quiche::CongestionControlAlgorithm::Reno,
        CongestionControl::Cubic => quiche::CongestionControlAlgorithm::CUBIC,
        CongestionControl::Bbr2 => quiche::CongestionControlAlgorithm::Bbr2Gcongestion,
    });
    let datagrams = application.datagrams();
    if datagrams > 0 {
        // None is sent.
        config.enable_dgram(true, datagrams, 1);
    }
    config.enable_pacing(settings.pacing);
    config.discover_pmtu(settings.discover_pmtu);
    if settings.early_data {
        config.enable_early_data();
    }
}

/// A key log that connections of a worker append to, one whole line a call.
#[derive(Clone)]
struct SharedWriter(Arc<Mutex<File>>);

impl Write for SharedWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

fn open_keylog(path: &PathBuf) -> Result<SharedWriter, EngineError> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .map(|file| SharedWriter(Arc::new(Mutex::new(file))))
        .map_err(|source| EngineError::KeyLog { path: path.clone(), source })
}
