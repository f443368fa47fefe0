//! The task that fetches.

mod body;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_metrics::count;
use expressway_web::{Exchange, RequestBody, RequestHead, ResponseHead};
use http::header::{
    AGE, CONTENT_RANGE, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
    LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use body::Body;

use super::{Answer, Fill, Handover, Ticket};
use crate::object::{Entry, Object};
use crate::policy::{self, freshness, held_freshness, strong_validator};
use crate::relay::Relay;
use crate::site::SiteShared;
use crate::throttle::Throttle;

/// What is fetched.
pub(crate) enum Kind {
    /// Whatever is at the URL now, beginning with this slice. If there is an old version, it is revalidated.
    Head { slice: u64, old: Option<Arc<Object>>, known: Option<Arc<Entry>> },
    /// A slice of this version.
    Slice { object: Arc<Object>, slice: u64 },
}

/// A fetch to be made.
pub(crate) struct Plan {
    pub(crate) site: Arc<SiteShared>,
    pub(crate) fill: Arc<Fill>,
    /// The request that it is made for.
    pub(crate) request: Arc<RequestHead>,
    pub(crate) kind: Kind,
    /// Keeps it going though no request waits for it.
    pub(crate) _background: Option<Ticket>,
}

/// The octets of an object that an answer has.
struct Part {
    object: Object,
    start: u64,
    /// Octets to come, if that is known.
    length: Option<u64>,
    status: StatusCode,
}

/// What the first look at an answer leads to.
enum Verdict {
    Object(Part),
    Confirmed(Object),
    /// Ask again for all of it.
    Whole,
    /// Ask again without conditions.
    Unconditional,
    Alone(bool),
    Failed,
    Gone,
}

impl Plan {
    /// Starts it as a task.
    pub(crate) fn start(self) {
        let cache = Arc::clone(&self.site.cache);
        count(&cache.counters.cache_fills);
        let _task = cache.runtime.spawn(async move {
            let started = Instant::now();
            let slice = self.run().await;
            let cache = &self.site.cache;
            cache.table.finish(&self.fill, slice);
            cache.times.whole.add(started.elapsed());
        });
    }

    /// Fetches. The version and slice that it was found by.
    async fn run(&self) -> Option<(u64, u64)> {
        let cache = &self.site.cache;
        let by_slice = match &self.kind {
            Kind::Slice { object, slice } => Some((object.version, *slice)),
            Kind::Head { .. } => None,
        };
        let whole = cache.slice == 0 || self.request.method != Method::GET || self.is_held();
        let (mut whole, mut unconditional) = (whole, false);
        // Once as a slice, once whole, once without conditions.
        for _ in 0..3 {
            let request = self.upstream_request(whole, unconditional);
            let purges = cache.heads.bans.last();
            let relay = Arc::new(Relay::default());
            let (sent, began) = (policy::now(), Instant::now());
            let mut exchange = self.site.upstream.start(&request, RequestBody::empty(), relay.wake());
            let head = within(
                self.patience(),
                poll_fn(|context| {
                    relay.set_task(context.waker());
                    exchange.poll_head()
                }),
            )
            .await;
            let Some(head) = head else {
                self.fail(None);
                return by_slice;
            };
            cache.times.response.add(began.elapsed());
            match self.judge(&request, &head, (sent, policy::now())) {
                Verdict::Whole => whole = true,
                Verdict::Unconditional => unconditional = true,
                Verdict::Gone => {
                    self.lose();
                    return by_slice;
                }
                Verdict::Failed => {
                    self.fail(Some(Handover { head, exchange, relay }));
                    return by_slice;
                }
                Verdict::Alone(is_usable) => {
                    let head = complete(head);
                    self.leave_alone(is_usable.then_some(Handover { head, exchange, relay }));
                    return by_slice;
                }
                Verdict::Confirmed(mut object) => {
                    count(&cache.counters.cache_revalidated);
                    object.purges_seen = purges;
                    let object = Arc::new(object);
                    if !self.fill.is_void() {
                        cache.heads.refresh(&self.fill.key, &object);
                    }
                    self.fill.settle(Answer::Confirmed(object), None);
                    return by_slice;
                }
                Verdict::Object(mut part) => {
                    part.object.purges_seen = purges;
                    return self.take(part, exchange, &relay).await.or(by_slice);
                }
            }
        }
        self.leave_alone(None);
        by_slice
    }

    /// The origin may hold it.
    fn is_held(&self) -> bool {
        self.site.options.is_held(&self.request.target)
    }

    /// How long the head of an answer may take.
    fn patience(&self) -> Duration {
        let timeout = self.site.cache.options.fill_timeout;
        let hold = self.site.options.hls_hold.filter(|_| self.is_held());
        hold.map_or(timeout, |hold| timeout.max(hold))
    }

    /// The request as the origin gets it.
    fn upstream_request(&self, whole: bool, unconditional: bool) -> RequestHead {
        let mut request = RequestHead::clone(&self.request);
        request.method = Method::GET;
        let headers = &mut request.headers;
        for name in [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, IF_RANGE, RANGE] {
            headers.remove(name);
        }
        let slice_bytes = self.site.cache.slice;
        let range = |slice: u64, most: u64| {
            let start = slice * slice_bytes;
            let end = (start + slice_bytes).min(most);
            HeaderValue::try_from(format!("bytes={start}-{}", end.saturating_sub(1))).ok()
        };
        let mut set = |name: HeaderName, value: Option<HeaderValue>| {
            if let Some(value) = value {
                headers.insert(name, value);
            }
        };
        match &self.kind {
            Kind::Slice { object, slice } => {
                set(RANGE, range(*slice, object.length));
                set(IF_RANGE, object.strong_validator().cloned());
            }
            Kind::Head { slice, old, .. } => {
                if !whole {
                    set(RANGE, range(*slice, u64::MAX));
                }
                if let Some(old) = old
                    && !unconditional
                {
                    set(IF_NONE_MATCH, old.headers.get(ETAG).cloned());
                    set(IF_MODIFIED_SINCE, old.headers.get(LAST_MODIFIED).cloned());
                }
            }
        }
        request
    }

    fn judge(&self, request: &RequestHead, head: &ResponseHead, times: (u64, u64)) -> Verdict {
        let old = match &self.kind {
            Kind::Slice { object, slice } => return self.judge_slice(object, *slice, head),
            Kind::Head { old, .. } => old.as_ref(),
        };
        let fresh = |status, headers: &HeaderMap| {
            let freshness = if self.is_held() { held_freshness } else { freshness };
            freshness(&self.request.headers, status, headers, &self.site.options, times)
        };
        let is_partial = request.headers.contains_key(RANGE);
        match head.status {
            StatusCode::NOT_MODIFIED => match old {
                Some(old) if old.is_same(&head.headers) => {
                    let merged = old.refreshed(&head.headers, old.freshness);
                    let mut now = merged.headers.clone();
                    now.extend(head.headers.get(AGE).map(|age| (AGE, age.clone())));
                    match fresh(old.status, &now) {
                        Some(freshness) => Verdict::Confirmed(Object { freshness, ..merged }),
                        None => Verdict::Unconditional,
                    }
                }
                _ if request.headers.contains_key(IF_NONE_MATCH)
                    || request.headers.contains_key(IF_MODIFIED_SINCE) =>
                {
                    Verdict::Unconditional
                }
                _ => Verdict::Alone(false),
            },
            StatusCode::PARTIAL_CONTENT if is_partial => {
                self.judge_partial(head, fresh(StatusCode::OK, &head.headers))
            }
            StatusCode::RANGE_NOT_SATISFIABLE if is_partial => Verdict::Whole,
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => Verdict::Alone(false),
            status => match fresh(status, &head.headers) {
                Some(freshness) => self.judge_whole(head, freshness),
                None if is_failure(status) => Verdict::Failed,
                None => Verdict::Alone(true),
            },
        }
    }

    fn judge_whole(&self, head: &ResponseHead, freshness: policy::Freshness) -> Verdict {
        let cache = &self.site.cache;
        let most = cache.options.max_whole;
        let length = head.body_length;
        if length.is_some_and(|length| length > most || !cache.has_room_for(length)) {
            return Verdict::Alone(true);
        }
        let known = length.unwrap_or(u64::MAX);
        match Object::new(head.status, &head.headers, &self.request.headers, known, freshness) {
            Some(object) => Verdict::Object(Part { object, start: 0, length, status: head.status }),
            None => Verdict::Alone(true),
        }
    }

    /// The first slice of a version.
    fn judge_partial(&self, head: &ResponseHead, freshness: Option<policy::Freshness>) -> Verdict {
        let Kind::Head { slice, .. } = &self.kind else { return Verdict::Alone(false) };
        let Some((start, end, total)) = content_range(&head.headers) else { return Verdict::Whole };
        let is_all = start == 0 && end == total;
        let Some(freshness) = freshness else { return Verdict::Alone(is_all) };
        let slice_bytes = self.site.cache.slice;
        let from = slice * slice_bytes;
        let is_asked_for = start == from && end == (from + slice_bytes).min(total);
        let is_sliced = strong_validator(&head.headers).is_some();
        let has_length = head.body_length.is_none_or(|length| length == end - start);
        if !is_asked_for || !has_length || !(is_sliced || is_all) {
            return Verdict::Whole;
        }
        match Object::new(StatusCode::OK, &head.headers, &self.request.headers, total, freshness) {
            Some(mut object) => {
                object.is_sliced = is_sliced;
                object.headers.remove(CONTENT_RANGE);
                Verdict::Object(Part { object, start, length: Some(end - start), status: head.status })
            }
            None => Verdict::Alone(is_all),
        }
    }

    /// A further slice: only of the very same version.
    fn judge_slice(&self, object: &Object, slice: u64, head: &ResponseHead) -> Verdict {
        if is_failure(head.status) {
            return Verdict::Failed;
        }
        let slice_bytes = self.site.cache.slice;
        let start = slice * slice_bytes;
        let end = (start + slice_bytes).min(object.length);
        let is_it = head.status == StatusCode::PARTIAL_CONTENT
            && content_range(&head.headers) == Some((start, end, object.length))
            && head.body_length.is_none_or(|length| length == end - start)
            && strong_validator(&with_date(&head.headers, object)) == object.strong_validator();
        match is_it {
            true => Verdict::Object(Part {
                object: object.clone(),
                start,
                length: Some(end - start),
                status: head.status,
            }),
            false => Verdict::Gone,
        }
    }

    fn fail(&self, handover: Option<Handover>) {
        let cache = &self.site.cache;
        count(&cache.counters.cache_fill_failed);
        // No later request may wait for what has failed.
        cache.table.forget_head(&self.fill);
        self.fill.settle(Answer::Failed(Throttle::new(cache.options.release, 0)), handover);
    }

    fn leave_alone(&self, handover: Option<Handover>) {
        let cache = &self.site.cache;
        count(&cache.counters.cache_uncacheable);
        let until = policy::now() + u64::try_from(cache.options.pass_for.as_millis()).unwrap_or(0);
        let throttle = Throttle::new(cache.options.release, until);
        cache.table.set_throttle(self.fill.lane, &throttle);
        cache.table.forget_head(&self.fill);
        self.fill.settle(Answer::Alone(throttle), handover);
    }

    /// A version is to be had no more.
    fn lose(&self) {
        if let Kind::Slice { object, .. } = &self.kind {
            self.site.cache.heads.remove_version(&self.fill.key, object.version);
        }
        self.fill.settle(Answer::Gone, None);
    }

    /// Takes the octets in, block by block. The version and slice that it is found by.
    async fn take(&self, mut part: Part, exchange: Exchange, relay: &Arc<Relay>) -> Option<(u64, u64)> {
        let cache = &self.site.cache;
        let is_new = matches!(self.kind, Kind::Head { .. });
        if is_new {
            part.object.version = cache.next_version();
        }
        let object = Arc::new(part.object.clone());
        self.fill.begin(u32::try_from(part.start / cache.block_bytes as u64).unwrap_or(u32::MAX));
        let by_slice = object.is_sliced.then(|| (object.version, part.start / cache.slice.max(1)));
        if is_new && (object.is_sliced || object.length == 0) {
            // Slices are good one by one; others may come to be asked for at once.
            self.keep(&object);
        }
        self.fill.settle(Answer::Object(Arc::clone(&object), part.status), None);
        if let (true, Some((version, slice))) = (is_new, by_slice) {
            cache.table.turn_into_slice(version, slice, &self.fill);
        }
        let mut body = Body {
            plan: self,
            object: &part.object,
            length: part.length,
            start: part.start,
            done: 0,
            is_kept: true,
            is_whole: is_new && !object.is_sliced,
        };
        let end = body.take(exchange, relay).await;
        if end.is_none() {
            count(&cache.counters.cache_fill_failed);
        }
        self.fill.end(end.map(|octets| part.start + octets));
        by_slice
    }

    /// Has the object found by others.
    fn keep(&self, object: &Arc<Object>) {
        let known = match &self.kind {
            Kind::Head { known, .. } => known.clone(),
            Kind::Slice { .. } => None,
        };
        if !self.fill.is_void() {
            self.site.cache.heads.store(&self.fill.key, object, known);
        }
    }
}

/// The result, or `None` if that takes too long.
async fn within<T>(most: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(most, future).await.ok()
}

/// The errors that stale-if-error is for (RFC 5861, 4).
pub(crate) fn is_failure(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}

/// First octet, octet past the last, and octets of the whole.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    let value = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, total): (u64, u64, u64) =
        (first.parse().ok()?, last.parse().ok()?, total.parse().ok()?);
    (first <= last && last < total && total < i64::MAX as u64).then_some((first, last + 1, total))
}

/// A 206 with all of it, as it goes to someone who asked for all of it.
fn complete(mut head: ResponseHead) -> ResponseHead {
    if head.status == StatusCode::PARTIAL_CONTENT {
        head.status = StatusCode::OK;
        head.headers.remove(CONTENT_RANGE);
    }
    head
}

/// The fields of a later slice with the date of the first one: whether a last modification is strong was decided by that.
fn with_date(headers: &HeaderMap, object: &Object) -> HeaderMap {
    let mut validators = HeaderMap::new();
    for (name, from) in [(ETAG, headers), (LAST_MODIFIED, headers), (http::header::DATE, &object.headers)] {
        if let Some(value) = from.get(&name) {
            validators.insert(name, value.clone());
        }
    }
    validators
}
