//! Whether a response may be stored, and how long it is fresh (RFC 9111, 3 and 4; RFC 5861).
//!
//! `http-cache-semantics` 3 (BSD-2-Clause, "passively maintained") is not used. Its stored responses keep only one
//! value of a repeated field (`copy_without_hop_by_hop_headers` inserts), so a second `link` or `vary` is lost. It does
//! not recognise directives in capitals, treats `proxy-revalidate` as always stale, does not count the apparent age of
//! a `date` in the past, and does not support 206. Each hit parses and allocates both sides' `cache-control` again, on
//! the worker. Without these parts, nothing more than this file would be left of it.
//!
//! There is no heuristic freshness (RFC 9111, 4.2.2): a response without freshness information is only kept if the site
//! has a `default_ttl`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use expressway_web::condition;
use http::header::{
    AGE, AUTHORIZATION, DATE, ETAG, EXPIRES, HeaderMap, LAST_MODIFIED, PRAGMA, SET_COOKIE, VARY,
};
use http::{HeaderValue, StatusCode};

use crate::directives::{Directives, seconds};
use crate::options::SiteOptions;

/// A last modification is a strong validator if the response was made so much later (RFC 9110, 8.8.2.2, and its clocks).
const STRONG_DATE: i64 = 60;

/// Milliseconds since the epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// How long a stored response is good, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Freshness {
    /// When the response was received, since the epoch.
    pub(crate) received: u64,
    /// Its age then (RFC 9111, 4.2.3).
    pub(crate) initial_age: u64,
    /// Its freshness lifetime.
    pub(crate) lifetime: u64,
    /// How long beyond it may be used while it is revalidated.
    pub(crate) while_revalidate: u64,
    /// How long beyond it may be used if the origin fails.
    pub(crate) if_error: u64,
    /// It must not be used stale, whatever the client says.
    pub(crate) strict: bool,
    /// It must not be used without revalidation.
    pub(crate) always: bool,
}

/// What may be done with a stored response for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Use it.
    Fresh,
    /// Use it, and revalidate it meanwhile.
    While,
    /// Use it: the client takes stale ones.
    Stale,
    /// Revalidate it first; it may be used if that fails.
    IfError,
    /// Revalidate it first.
    Revalidate,
}

impl Freshness {
    /// The current age.
    pub(crate) fn age(&self, now: u64) -> u64 {
        self.initial_age.saturating_add(now.saturating_sub(self.received))
    }

    /// What is left of the lifetime; negative if it is over.
    pub(crate) fn left(&self, now: u64) -> i64 {
        let clamp = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        clamp(self.lifetime).saturating_sub(clamp(self.age(now)))
    }

    /// What may be done with it for a request with these directives.
    pub(crate) fn judge(&self, request: &Directives, now: u64) -> Use {
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let left = self.left(now);
        let age = i64::try_from(self.age(now)).unwrap_or(i64::MAX);
        let is_too_old = request.no_cache || request.max_age.is_some_and(|most| age > ms(most));
        let is_too_stale = request.min_fresh.is_some_and(|least| left < ms(least));
        let beyond = left.saturating_neg();
        let within =
            |grace: u64| !self.strict && !self.always && beyond < i64::try_from(grace).unwrap_or(i64::MAX);
        if !self.always && left > 0 && !is_too_old && !is_too_stale {
            return Use::Fresh;
        }
        if left <= 0 && !is_too_old && !is_too_stale && !self.always {
            if within(self.while_revalidate) {
                return Use::While;
            }
            if !self.strict && request.max_stale.is_some_and(|most| beyond <= ms(most)) {
                return Use::Stale;
            }
        }
        if within(self.if_error) { Use::IfError } else { Use::Revalidate }
    }

    /// Made stale by a purge: what is left are its validators, and its use while it is revalidated or if the origin fails.
    pub(crate) fn expire(&mut self, now: u64) {
        self.lifetime = self.lifetime.min(self.age(now));
    }
}

/// The longest time that a playlist is good which was waited for: whoever asks for it later has fallen behind, and is of a
/// few.
const HELD_LIFETIME: Duration = Duration::from_secs(10);

/// How long it is good if its origin does not say.
const HELD_DEFAULT: Duration = Duration::from_secs(1);

/// The same as [`freshness`] for a response that the origin may have held.
pub(crate) fn held_freshness(
    request: &HeaderMap,
    status: StatusCode,
    headers: &HeaderMap,
    options: &SiteOptions,
    times: (u64, u64),
) -> Option<Freshness> {
    let default_ttl = Some(options.default_ttl.unwrap_or(HELD_DEFAULT));
    let options = SiteOptions {
        default_ttl,
        stale_while_revalidate: Duration::ZERO,
        stale_if_error: Duration::ZERO,
        ..options.clone()
    };
    let freshness = freshness(request, status, headers, &options, times)?;
    let most = u64::try_from(HELD_LIFETIME.as_millis()).unwrap_or(u64::MAX);
    let lifetime = freshness.lifetime.min(freshness.initial_age.saturating_add(most));
    Some(Freshness { lifetime, while_revalidate: 0, if_error: 0, ..freshness })
}

/// Why a response is not stored, or how long it is good.
pub(crate) fn freshness(
    request: &HeaderMap,
    status: StatusCode,
    headers: &HeaderMap,
    options: &SiteOptions,
    (sent, received): (u64, u64),
) -> Option<Freshness> {
    let said = Directives::read(headers);
    let asked = Directives::read(request);
    // must-understand lifts no-store for those who know the status (RFC 9111, 5.2.2.3).
    if asked.no_store || (said.no_store && !(said.must_understand && is_cacheable(status))) || said.private {
        return None;
    }
    if !status.is_success()
        && !status.is_redirection()
        && !status.is_client_error()
        && !status.is_server_error()
    {
        return None;
    }
    if matches!(status, StatusCode::NOT_MODIFIED) || (said.must_understand && !is_cacheable(status)) {
        return None;
    }
    if headers.contains_key(SET_COOKIE) || headers.get_all(VARY).iter().any(names_all) {
        return None;
    }
    if request.contains_key(AUTHORIZATION)
        && !(said.public || said.s_maxage.is_some() || said.must_revalidate)
    {
        return None;
    }
    let date = headers.get(DATE).and_then(condition::seconds);
    let no_cache =
        said.no_cache || (!headers.contains_key(http::header::CACHE_CONTROL) && says_no_cache(headers));
    let explicit = said.s_maxage.or(said.max_age).or_else(|| expires(headers, date, received));
    let implied = || match options.negative.get(&status) {
        Some(ttl) => Some(*ttl),
        None if is_cacheable(status) && !status.is_client_error() && !status.is_server_error() => {
            options.default_ttl
        }
        None => None,
    };
    // Other statuses than those known are stored with an explicit lifetime only, and 206 by its parts elsewhere.
    let lifetime = match explicit.or_else(implied) {
        Some(lifetime) => lifetime,
        None if no_cache && is_cacheable(status) => Duration::ZERO,
        None => return None,
    };
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let strict = said.must_revalidate || said.proxy_revalidate || said.s_maxage.is_some();
    let freshness = Freshness {
        received,
        initial_age: initial_age(headers, date, sent, received),
        lifetime: ms(lifetime),
        while_revalidate: ms(said.stale_while_revalidate.unwrap_or(options.stale_while_revalidate)),
        if_error: ms(said.stale_if_error.unwrap_or(options.stale_if_error)),
        // Who names a time in which it may be stale means it.
        strict: said.must_revalidate
            || said.proxy_revalidate
            || (strict && said.stale_while_revalidate.is_none() && said.stale_if_error.is_none()),
        always: no_cache,
    };
    let is_of_use = !freshness.always && freshness.left(received) > 0;
    let can_be_revalidated = headers.contains_key(ETAG) || headers.contains_key(LAST_MODIFIED);
    let may_be_stale =
        !freshness.strict && !freshness.always && freshness.while_revalidate.max(freshness.if_error) > 0;
    (is_of_use || can_be_revalidated || may_be_stale).then_some(freshness)
}

/// The statuses that are cacheable by definition (RFC 9110, 15.1), 206 as the whole that it is a part of.
fn is_cacheable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

fn names_all(vary: &HeaderValue) -> bool {
    vary.as_bytes().split(|&b| b == b',').any(|name| name.trim_ascii() == b"*")
}

fn says_no_cache(headers: &HeaderMap) -> bool {
    headers.get(PRAGMA).is_some_and(|pragma| pragma.as_bytes().trim_ascii().eq_ignore_ascii_case(b"no-cache"))
}

/// The lifetime by `expires`; one that is not a date is in the past, as is one that stands there twice.
fn expires(headers: &HeaderMap, date: Option<i64>, received: u64) -> Option<Duration> {
    let mut values = headers.get_all(EXPIRES).iter();
    let first = values.next()?;
    if values.next().is_some() {
        return Some(Duration::ZERO);
    }
    let from = date.unwrap_or((received / 1000) as i64);
    let expires = condition::seconds(first).unwrap_or(0);
    Some(Duration::from_secs(u64::try_from(expires.saturating_sub(from)).unwrap_or(0)))
}

/// The corrected initial age in milliseconds (RFC 9111, 4.2.3).
fn initial_age(headers: &HeaderMap, date: Option<i64>, sent: u64, received: u64) -> u64 {
    let apparent =
        date.map_or(0, |date| ((received / 1000) as i64).saturating_sub(date).max(0)) as u64 * 1000;
    let said = headers.get(AGE).map_or(0, |age| {
        let first = age.as_bytes().split(|&b| b == b',').next().unwrap_or_default();
        seconds(first.trim_ascii()).as_millis() as u64
    });
    let corrected = said + if said > 0 { received.saturating_sub(sent) } else { 0 };
    apparent.max(corrected)
}

/// What `if-range` may name of a response: its strong entity tag, or its date if that is strong.
pub(crate) fn strong_validator(headers: &HeaderMap) -> Option<&HeaderValue> {
    if let Some(etag) = headers.get(ETAG) {
        let octets = etag.as_bytes();
        return (octets.len() >= 2 && octets.starts_with(b"\"") && octets.ends_with(b"\"")).then_some(etag);
    }
    let modified = headers.get(LAST_MODIFIED)?;
    let date = headers.get(DATE).and_then(condition::seconds)?;
    (date - condition::seconds(modified)? >= STRONG_DATE).then_some(modified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_waited_for_is_good_for_a_short_time() {
        let left = |control: Option<&str>, status| {
            let control = control.map(|control| (http::header::CACHE_CONTROL, control.parse().unwrap()));
            let (asked, headers) = (HeaderMap::new(), HeaderMap::from_iter(control));
            let options = SiteOptions { stale_if_error: Duration::from_secs(9), ..SiteOptions::default() };
            let held = held_freshness(&asked, status, &headers, &options, (5000, 5000));
            held.map(|held| (held.left(5000), held.if_error))
        };
        assert_eq!(left(Some("max-age=86400, stale-if-error=99"), StatusCode::OK), Some((10_000, 0)));
        assert_eq!(left(Some("max-age=2"), StatusCode::OK), Some((2000, 0)));
        assert_eq!(left(None, StatusCode::OK), Some((1000, 0)));
        assert_eq!(left(Some("no-store"), StatusCode::OK), None);
        assert_eq!(left(None, StatusCode::SERVICE_UNAVAILABLE), None);
    }
}
