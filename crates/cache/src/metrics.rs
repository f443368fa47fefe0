//! The metrics of the cache.

use expressway_metrics::{Times, counters};

counters! {
    /// What requests led to, and what was fetched.
    pub struct CacheCounters {
        /// Requests answered from the cache, stale ones included.
        pub cache_hits: AtomicU64,
        /// Requests that the cache could not answer by itself.
        pub cache_misses: AtomicU64,
        /// Requests answered with a stale response.
        pub cache_stale: AtomicU64,
        /// Responses that the origin confirmed.
        pub cache_revalidated: AtomicU64,
        /// Requests that waited for the fetch of another one.
        pub cache_collapsed: AtomicU64,
        /// Requests passed to the origin uncached.
        pub cache_bypass: AtomicU64,
        /// Responses that could not be stored.
        pub cache_uncacheable: AtomicU64,
        /// Requests that waited for an answer that could not be shared, and went to the origin themselves.
        pub cache_released: AtomicU64,
        /// Fetches started.
        pub cache_fills: AtomicU64,
        /// Fetches that failed, or took too long.
        pub cache_fill_failed: AtomicU64,
        /// Fetches given up because nobody waited any more.
        pub cache_fill_abandoned: AtomicU64,
        /// Bytes fetched.
        pub cache_fill_bytes: AtomicU64,
        /// Bytes of bodies handed out from the cache.
        pub cache_served_bytes: AtomicU64,
        /// Bodies broken off because their version was no longer to be had.
        pub cache_body_lost: AtomicU64,
        /// Objects made stale or gone by purges and by unsafe requests.
        pub cache_purged: AtomicU64,
    }
}

/// How long fetches take.
#[derive(Debug, Default)]
pub(crate) struct FillTimes {
    /// From the request to the origin until the head of its response.
    pub(crate) response: Times,
    /// From the first request to the origin until the body is there, or the fetch has failed.
    pub(crate) whole: Times,
}

impl FillTimes {
    /// Name, help and times of each.
    pub(crate) fn fields(&self) -> [(&'static str, &'static str, &Times); 2] {
        [
            (
                "cache_fill_response_seconds",
                "Time from a fetch's request to the origin until the head of the response.",
                &self.response,
            ),
            ("cache_fill_seconds", "Time that fetches took, failed ones included.", &self.whole),
        ]
    }
}
