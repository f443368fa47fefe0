//! Settings of an endpoint: limits, timers, TLS material and switches, checked once before use.
//!
//! A plain structure without a file format of its own. A reload replaces it as a whole: new connections use
//! the new one, open connections keep the one they were created with.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use expressway_web::patience::{REQUEST_RATE, RESPONSE_RATE};

use super::cid::Routable;
use super::instance::Instance;
use super::tls::{FilterKey, Tls};
use super::token::SharedRetryKeys;

/// The smallest UDP payload that every QUIC path must carry, in bytes (RFC 9000, section 14).
pub const MIN_UDP_PAYLOAD: usize = 1200;

/// The largest UDP payload that the engine builds, in bytes: lengths are two-byte varints.
pub const MAX_UDP_PAYLOAD: usize = 16_383;

/// What an MTU of 9000 leaves for UDP over IPv4, in bytes: the default bound of what is sent.
pub const JUMBO_UDP_PAYLOAD: usize = 8972;

/// When a client must prove its address before state is kept for it (RFC 9000, section 8.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Never: amplification is bounded by the 3-fold rule alone.
    Never,
    /// Every new connection pays one round trip.
    Always,
    /// When the worker holds at least `handshaking` connections whose handshake is not done.
    UnderLoad {
        /// Handshakes in progress on this worker from which on Retry is sent.
        handshaking: usize,
    },
}

/// The congestion controller of new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// RFC 9002, appendix B.
    Reno,
    /// RFC 9438.
    Cubic,
    /// BBR version 2, which paces.
    Bbr2,
}

/// Everything that an endpoint needs to know; see the fields for units and cost.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Certificates, ticket keys, certificates of clients.
    pub tls: Arc<Tls>,
    /// Tells the server from others with the key. Only what the first settings of a server say counts.
    pub instance: Instance,
    /// Keys that filters in front of the server have too, two at most; IDs are issued with the first. Empty: the server
    /// has keys of its own. Only what the first settings of a server say counts.
    pub filter_keys: Vec<FilterKey>,
    /// Keys of Retry tokens that other servers have too: those of the start. [`Shared::set_retry_keys`](super::Shared::set_retry_keys)
    /// replaces them, a reload does not.
    pub retry_keys: Option<SharedRetryKeys>,
    /// Closes a connection that was silent this long; at least 1 s (`max_idle_timeout`, RFC 9000,
    /// section 10.1).
    pub idle_timeout: Duration,
    /// Connections of one worker; more are dropped and counted. A new one costs about 40 kB, an idle one 15 kB.
    pub max_connections: usize,
    /// Requests that a client may have open on one connection at a time, 1 to 10,000.
    pub max_requests: u64,
    /// Bytes of response bodies pinned for one connection beyond what its client acknowledged. It bounds
    /// memory, and by that throughput to this many bytes a round trip.
    pub send_window: usize,
    /// Bytes that one connection may hold in total, if the process has as much: file blocks that its
    /// responses keep in memory, data in flight, its requests. At least `send_window` and 64 KiB; default: 4
    /// MiB, or twice `send_window` if that is more.
    pub connection_memory: Option<usize>,
    /// Requests that one connection may have under way at once, each with a file open; more wait unread.
    pub max_open_files: usize,
    /// Resets a response of which the client reads nothing for this long, and closes a connection that
    /// acknowledges nothing. Shorter when memory is scarce.
    pub response_timeout: Duration,
    /// Bytes a second that count as reading, or as acknowledging; with less for `response_timeout` a client reads
    /// nothing. 0: any byte counts.
    pub response_rate: u64,
    /// Rejects a request whose header section does not come whole within this time, cancels one whose body does not come for it, and
    /// closes a connection on which data is missing for it.
    pub request_timeout: Duration,
    /// Time for which data may be missing while later data is kept; then the connection is closed.
    pub missing_timeout: Duration,
    /// Bytes a second that count as sending a body that its reader waits for; with less for `request_timeout` a client sends nothing.
    /// 0: any byte counts.
    pub request_rate: u64,
    /// Request body bytes a client may have under way on one stream; bodies are discarded.
    pub receive_window: u64,
    /// Largest header section of a request, in bytes as RFC 9114, section 4.2.2 counts them.
    pub max_header_size: u64,
    /// When clients are asked to prove their address.
    pub retry: RetryPolicy,
    /// How long a Retry token is good for.
    pub retry_lifetime: Duration,
    /// Congestion controller.
    pub congestion: CongestionControl,
    /// Spread packets over the round trip (BBR2); the other controllers send when the window allows.
    pub pacing: bool,
    /// Congestion window of a new connection, in packets (RFC 9002, section 7.2 says 10).
    pub initial_window: usize,
    /// Largest UDP payload to send, 1200 to 16,383 bytes; the interface and the client may bound it
    /// further, and path-MTU discovery starts at 1200 and probes up to it.
    pub max_udp_payload: usize,
    /// Probe the path MTU (RFC 8899). Without it datagrams of `max_udp_payload` are sent unprobed.
    pub discover_pmtu: bool,
    /// Accept 0-RTT: GET and HEAD only, anything else is answered 425. Replayable by design.
    pub early_data: bool,
    /// Resume sessions of any worker by tickets.
    pub session_tickets: bool,
    /// Connection IDs offered to a client for migration, 2 to 8 (RFC 9000, section 5.1.1).
    pub connection_ids: u64,
    /// Makes connection IDs that load balancers can route; [`Shared::set_routable`](super::Shared::set_routable) replaces it.
    pub routable: Option<Routable>,
    /// Stateless resets that one worker sends in a second at most.
    pub resets_per_second: u32,
    /// Directory in which each connection writes its qlog; very costly, for diagnosis, and only
    /// in a build with the feature `qlog`.
    pub qlog: Option<PathBuf>,
    /// File to which TLS secrets are appended in the SSLKEYLOGFILE format: breaks confidentiality.
    pub keylog: Option<PathBuf>,
}

impl Settings {
    /// Settings with defaults fit for an edge server.
    pub fn new(tls: Arc<Tls>) -> Self {
        Self {
            tls,
            instance: Instance::default(),
            filter_keys: Vec::new(),
            retry_keys: None,
            idle_timeout: Duration::from_secs(30),
            max_connections: 100_000,
            max_requests: 128,
            send_window: 2 << 20,
            connection_memory: None,
            max_open_files: 128,
            response_timeout: Duration::from_secs(60),
            response_rate: RESPONSE_RATE,
            request_timeout: Duration::from_secs(30),
            missing_timeout: Duration::from_secs(60),
            request_rate: REQUEST_RATE,
            receive_window: 64 << 10,
            max_header_size: 32 << 10,
            retry: RetryPolicy::UnderLoad { handshaking: 1000 },
            retry_lifetime: Duration::from_secs(15),
            congestion: CongestionControl::Cubic,
            pacing: true,
            initial_window: 32,
            max_udp_payload: JUMBO_UDP_PAYLOAD,
            discover_pmtu: true,
            early_data: false,
            session_tickets: true,
            connection_ids: 4,
            routable: None,
            resets_per_second: 1000,
            qlog: None,
            keylog: None,
        }
    }

    /// Returns what is out of range, by the field's name.
    pub fn check(&self) -> Result<(), SettingsError> {
        let range = |field: &'static str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(SettingsError::OutOfRange { field, value, least, most })
            }
        };
        let milliseconds = u64::try_from(self.idle_timeout.as_millis()).unwrap_or(u64::MAX);
        range("idle_timeout (ms)", milliseconds, 1000, 86_400_000)?;
        range("max_connections", self.max_connections as u64, 1, 16_000_000)?;
        range("max_requests", self.max_requests, 1, 10_000)?;
        range("send_window", self.send_window as u64, 64 << 10, 1 << 30)?;
        let least = (self.send_window + (64 << 10)) as u64;
        range("connection_memory", self.connection_memory() as u64, least, 4 << 30)?;
        range("max_open_files", self.max_open_files as u64, 1, 10_000)?;
        for (field, timeout) in [
            ("response_timeout (ms)", self.response_timeout),
            ("request_timeout (ms)", self.request_timeout),
            ("missing_timeout (ms)", self.missing_timeout),
        ] {
            let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            range(field, milliseconds, 100, 86_400_000)?;
        }
        range("response_rate", self.response_rate, 0, 1 << 30)?;
        range("request_rate", self.request_rate, 0, 1 << 30)?;
        range("receive_window", self.receive_window, 4 << 10, 16 << 20)?;
        range("max_header_size", self.max_header_size, 1 << 10, 1 << 20)?;
        range("initial_window", self.initial_window as u64, 2, 1000)?;
        let payload = self.max_udp_payload as u64;
        range("max_udp_payload", payload, MIN_UDP_PAYLOAD as u64, MAX_UDP_PAYLOAD as u64)?;
        range("connection_ids", self.connection_ids, 2, 8)?;
        range("retry_lifetime (s)", self.retry_lifetime.as_secs(), 1, 3600)
    }

    /// Bytes that one connection may hold in all.
    pub(crate) fn connection_memory(&self) -> usize {
        self.connection_memory.unwrap_or_else(|| (4 << 20).max(2 * self.send_window))
    }

    /// The largest UDP payload that clients may send, and so the size of hand-over buffers, in bytes. The
    /// engine probes no path MTU beyond it.
    pub(crate) fn max_receive_payload(&self) -> usize {
        self.max_udp_payload.max(1500)
    }
}

/// A setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A number outside its range.
    #[error("{field}: {value} is not between {least} and {most}")]
    OutOfRange {
        /// The field, with its unit where it has one.
        field: &'static str,
        /// The value that was given.
        value: u64,
        /// The least allowed.
        least: u64,
        /// The most allowed.
        most: u64,
    },
}
