//! Options: per process ([`CacheOptions`]) and per site ([`SiteOptions`]).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;

/// Options of the process-wide [`Cache`](crate::Cache).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheOptions {
    /// Octets of an object that are fetched at a time, a multiple of the block size (it is rounded up to one). 0
    /// fetches every object whole.
    pub slice: u64,
    /// The folder of the disk store; none keeps objects in memory only.
    pub disk: Option<PathBuf>,
    /// Octets that the disk store may take.
    pub disk_size: u64,
    /// Octets of memory for what is known of objects (header fields, freshness), not for their bodies.
    pub heads: usize,
    /// The longest object that is kept if its origin gives no parts of it, in octets.
    pub max_whole: u64,
    /// Fetches under way at once. Requests beyond go to the origin uncached.
    pub max_fills: usize,
    /// Requests that wait for one fetch. More go to the origin themselves.
    pub max_waiters: usize,
    /// How long a fetch may make no progress before it fails.
    pub fill_timeout: Duration,
    /// Requests of one URL that go to the origin at once after it turned out that they cannot share an answer.
    pub release: usize,
    /// How long an uncacheable URL is not waited for again.
    pub pass_for: Duration,
    /// Octets of blocks that wait to be written to the disk. Blocks beyond are not written.
    pub write_queue: usize,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            slice: 1 << 20,
            disk: None,
            disk_size: 10 << 30,
            heads: 64 << 20,
            max_whole: 64 << 20,
            max_fills: 1024,
            max_waiters: 8192,
            fill_timeout: Duration::from_secs(30),
            release: 16,
            pass_for: Duration::from_secs(10),
            write_queue: 32 << 20,
        }
    }
}

/// Which query parameters are part of the key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Query {
    /// The query as it is.
    #[default]
    Whole,
    /// All but these.
    Strip(Vec<String>),
    /// These alone.
    Keep(Vec<String>),
}

/// Options of one site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteOptions {
    /// Freshness of responses that say nothing of it and have a status that is cacheable by definition
    /// (RFC 9110, 15.1). None does not keep them: there is no heuristic.
    pub default_ttl: Option<Duration>,
    /// Freshness of errors that say nothing of it.
    pub negative: BTreeMap<StatusCode, Duration>,
    /// `stale-while-revalidate` of responses that say nothing of it.
    pub stale_while_revalidate: Duration,
    /// `stale-if-error` of responses that say nothing of it.
    pub stale_if_error: Duration,
    /// Whether `cache-control` and `pragma` of requests are ignored, `only-if-cached` and `no-store` aside.
    pub ignore_client: bool,
    /// Whether the host is part of the key. If not, all hosts of the site share objects.
    pub include_host: bool,
    /// Which query parameters are.
    pub query: Query,
    /// Ranges a request may ask for; the whole object is sent to a request for more.
    pub max_ranges: usize,
    /// How long the origin may hold a blocking reload of a low-latency HLS playlist. Its answers are kept under its own
    /// name, whatever `query` says, and for a short time. None treats it as any other request.
    pub hls_hold: Option<Duration>,
}

impl SiteOptions {
    /// It asks for a playlist that the origin may not have yet.
    pub(crate) fn is_held(&self, target: &str) -> bool {
        self.hls_hold.is_some() && expressway_web::is_blocking_reload(target)
    }
}

impl Default for SiteOptions {
    fn default() -> Self {
        Self {
            default_ttl: None,
            negative: BTreeMap::new(),
            stale_while_revalidate: Duration::ZERO,
            stale_if_error: Duration::ZERO,
            ignore_client: false,
            include_host: true,
            query: Query::Whole,
            max_ranges: 200,
            hls_hold: None,
        }
    }
}
