//! What the cache counts.

use expressway_web::metrics::counters;

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
        "Milliseconds that fetches took." cache_fill_milliseconds,
        "Bytes fetched." cache_fill_bytes,
        "Bytes of bodies handed out from the cache." cache_served_bytes,
        "Bodies broken off because their version was no longer to be had." cache_body_lost,
        "Objects made stale or gone by purges and by unsafe requests." cache_purged,
    }
}
