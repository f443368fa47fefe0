//! What a reload replaces, and what strangers may take.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use boring::error::ErrorStack;
use boring::ssl::{SslContext, SslMethod};
use expressway_web::Handler;
use expressway_web::access_log::AccessLog;
use expressway_web::patience::{REQUEST_RATE, RESPONSE_RATE};

/// What connections are served by. A reload replaces it whole: requests that come then have the new handler and log,
/// and connections the new context and limits.
pub struct Setup {
    /// Answers requests.
    pub handler: Arc<dyn Handler>,
    /// Gets one line per request.
    pub access_log: Option<Arc<AccessLog>>,
    /// For listeners with TLS; it selects one of [`PROTOCOLS`](crate::PROTOCOLS).
    pub tls: SslContext,
    /// What strangers may take.
    pub limits: Limits,
}

impl Setup {
    /// For listeners without TLS alone: the context has no certificate.
    ///
    /// # Errors
    /// Of BoringSSL, which lacks memory.
    pub fn plain(handler: Arc<dyn Handler>, limits: Limits) -> Result<Self, ErrorStack> {
        let tls = SslContext::builder(SslMethod::tls())?.build();
        Ok(Self { handler, access_log: None, tls, limits })
    }
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// What strangers may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections of a worker. One more takes the place of the one that has been idle longest; if none is, it is
    /// refused.
    pub max_connections: usize,
    /// Connections from one IPv4 address or IPv6 network of 64 bits, over all workers; 0: any number.
    pub max_connections_per_address: usize,
    /// Requests at once on an HTTP/2 connection.
    pub max_requests: u32,
    /// Requests with a file open at once on a connection; more wait.
    pub max_open_files: usize,
    /// Octets of a request's header section as RFC 9114, section 4.2.2 counts them; more is answered 431.
    pub max_header: usize,
    /// Octets of responses that one connection may have in memory.
    pub send_window: usize,
    /// Octets that one connection may hold in all.
    pub connection_memory: usize,
    /// How long a PROXY header and a TLS handshake may take together.
    pub handshake_timeout: Duration,
    /// How long a request's header section may take to come, whole.
    pub header_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub idle_timeout: Duration,
    /// A request of whose body nothing comes for this long is ended.
    pub request_timeout: Duration,
    /// Octets a second that count as sending a body that its reader waits for; who sends less sends nothing. 0: any octet counts.
    pub request_rate: u64,
    /// A response of which the client takes nothing for this long is ended; less when memory is scarce.
    pub response_timeout: Duration,
    /// Octets a second that count as taking a response; who takes less takes nothing. 0: any octet counts.
    pub response_rate: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 20_000,
            max_connections_per_address: 0,
            max_requests: 128,
            max_open_files: 128,
            max_header: 32 << 10,
            send_window: 2 << 20,
            connection_memory: 4 << 20,
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            request_timeout: Duration::from_secs(30),
            request_rate: REQUEST_RATE,
            response_timeout: Duration::from_secs(60),
            response_rate: RESPONSE_RATE,
        }
    }
}
