//! What the cache counts.

use expressway_web::metrics::{Times, counters};

counters! {
    /// What requests led to, and what was fetched.
    pub struct CacheCounters {
        "Requests answered from the cache, stale ones included." cache_hits,
        "Requests that the cache could not answer by itself." cache_misses,
        "Requests answered with a stale response." cache_stale,
        "Responses that the origin confirmed." cache_revalidated,
        "Requests that waited for the fetch of another one." cache_collapsed,
        "Requests passed to the origin uncached." cache_bypass,
        "Responses that could not be stored." cache_uncacheable,
        "Requests that waited for an answer that could not be shared, and went to the origin themselves." cache_released,
        "Fetches started." cache_fills,
        "Fetches that failed, or took too long." cache_fill_failed,
        "Fetches given up because nobody waited any more." cache_fill_abandoned,
        "Bytes fetched." cache_fill_bytes,
        "Bytes of bodies handed out from the cache." cache_served_bytes,
        "Bodies broken off because their version was no longer to be had." cache_body_lost,
        "Objects made stale or gone by purges and by unsafe requests." cache_purged,
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
