//! One request: from the stored object to the response.

use std::cell::OnceCell;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use expressway_metrics::count;
use expressway_web::blocks::{Block, BlockKey, BlockSource};
use expressway_web::files::Reading;
use expressway_web::memory::{Account, Charge};
use expressway_web::parts::BodyParts;
use expressway_web::{Exchange, RequestBody, RequestHead, ResponseHead, Wake};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, StatusCode};

use crate::body::ObjectBody;
use crate::directives::Directives;
use crate::fill::{Answer, Handover, Joined, Kind, Plan, Ticket, authorized};
use crate::heads::Found;
use crate::key::Key;
use crate::object::{Entry, Object};
use crate::policy::{self, Use};
use crate::respond::{Content, respond};
use crate::site::SiteShared;
use crate::status::{Forward, Status};
use crate::throttle::Permit;

mod source;

/// Times that a request waits for another's answer that then is of another variant.
const TRIES: u8 = 3;

/// A request for something that is stored, or may be.
struct CachedExchange {
    site: Arc<SiteShared>,
    wake: Wake,
    waker: OnceCell<Waker>,
    account: Option<Account>,
    /// What the request takes.
    charge: Option<Charge>,
    key: Key,
    /// By what requests wait for each other.
    lane: u128,
    /// Missing once nothing can be asked for any more.
    request: Option<Arc<RequestHead>>,
    asked: Directives,
    state: State,
    head: Option<ResponseHead>,
    tries: u8,
    forward: Forward,
    is_looked_up: bool,
    is_first: bool,
    /// What was done, in a word.
    word: &'static str,
}

enum State {
    /// Looks what is stored.
    Decide,
    /// A reader thread looks on disk.
    Look(Reading),
    /// Waits for a fetch; this is what there is if that fails.
    Wait(Ticket, Option<Arc<Object>>),
    /// Waits for its turn at the origin.
    Line(Permit),
    /// The origin answers.
    Pass(Box<Pass>),
    Fixed(Bytes),
    Body(Box<ObjectBody>),
}

/// An answer of the origin that is passed on.
struct Pass {
    exchange: Exchange,
    status: Status,
    /// Held to the end.
    _permit: Option<Permit>,
    /// The URL whose objects the answer may make invalid.
    invalidates: Option<Key>,
    /// The head, if it has come already.
    head: Option<ResponseHead>,
}

/// Starts answering.
pub(crate) fn start(
    site: &Arc<SiteShared>,
    request: &RequestHead,
    body: RequestBody,
    wake: Wake,
) -> Exchange {
    let cache = &site.cache;
    let mut asked = Directives::of_request(&request.headers);
    if site.options.ignore_client {
        let Directives { no_store, only_if_cached, .. } = asked;
        asked = Directives { no_store, only_if_cached, ..Directives::default() };
    }
    let key = Key::new(request, &site.options, cache.seed());
    let lane = match request.headers.contains_key(AUTHORIZATION) {
        true => authorized(key.hash),
        false => key.hash,
    };
    let mut exchange = CachedExchange {
        site: Arc::clone(site),
        wake,
        waker: OnceCell::new(),
        account: None,
        charge: None,
        key,
        lane,
        request: None,
        asked,
        state: State::Decide,
        head: None,
        tries: 0,
        forward: Forward::UriMiss,
        is_looked_up: false,
        is_first: false,
        word: "",
    };
    let is_cacheable = matches!(request.method, Method::GET | Method::HEAD);
    if !is_cacheable || !body.is_empty() || asked.no_store {
        count(&cache.counters.cache_bypass);
        let forward = if is_cacheable { Forward::Request } else { Forward::Method };
        let is_safe = matches!(request.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
        exchange.state = State::Pass(Box::new(Pass {
            exchange: site.upstream.start(request, body, exchange.wake.clone()),
            status: Status::forward(Some(forward)),
            _permit: None,
            invalidates: (!is_safe).then(|| exchange.key.clone()),
            head: None,
        }));
        return Exchange::new(Box::new(exchange));
    }
    if !exchange.hit_at_once(request) {
        exchange.request = Some(Arc::new(request.clone()));
        exchange.decide();
    }
    Exchange::new(Box::new(exchange))
}

impl CachedExchange {
    /// Answers with what is fresh and in memory. False if there is no such thing.
    fn hit_at_once(&mut self, request: &RequestHead) -> bool {
        let Found::Memory(entry) = self.site.cache.heads.find(&self.key) else { return false };
        let Some(object) = entry.variant(&request.headers) else { return false };
        let now = policy::now();
        if object.freshness.judge(&self.asked, now) != Use::Fresh {
            return false;
        }
        let object = Arc::clone(object);
        let status = Status::hit(object.freshness.left(now) / 1000);
        self.serve(request, object, None, status, now)
    }

    /// Answers with `object`, whose blocks come from `ticket` if it is arriving. False if it is not there as a whole.
    fn serve(
        &mut self,
        request: &RequestHead,
        object: Arc<Object>,
        ticket: Option<Ticket>,
        mut status: Status,
        now: u64,
    ) -> bool {
        let site = Arc::clone(&self.site);
        let cache = &site.cache;
        let (head, content) =
            respond(&request.method, &request.headers, &object, site.options.max_ranges, now);
        let is_missing = |parts: &BodyParts| {
            let first = parts.first_offset().map(|at| at / cache.block_bytes as u64);
            ticket.is_none() && first.is_some_and(|first| !cache.has_block(&object, first))
        };
        if object.is_sliced
            && status.forward.is_none()
            && let Content::Parts(parts) = &content
            && is_missing(parts)
        {
            status.forward = Some(Forward::Partial);
        }
        let parts = match content {
            Content::Fixed(octets) => {
                self.request = None;
                self.state = State::Fixed(octets);
                self.announce(head, status);
                return true;
            }
            Content::Parts(parts) => Some(parts),
            Content::Unknown => None,
        };
        let mut first: Option<Block> = None;
        if ticket.is_none() {
            let blocks = object.length.div_ceil(cache.block_bytes as u64);
            if blocks == 1 {
                first = cache
                    .store
                    .blocks()
                    .cached(&BlockKey { source: BlockSource::object(object.version), index: 0 });
            }
            // Parts of what has no parts to be fetched cannot be missing.
            let is_there = first.is_some()
                || object.is_sliced
                || (0..blocks).all(|index| cache.has_block(&object, index));
            if !is_there {
                cache.heads.remove_version(&self.key, object.version);
                return false;
            }
        }
        self.request = match first {
            Some(_) => None,
            None if object.is_sliced => self.request.take().or_else(|| Some(Arc::new(request.clone()))),
            None => None,
        };
        let mut body = ObjectBody::new(object, parts, ticket);
        if let Some(first) = first {
            body.set_first(0, first);
        }
        self.state = State::Body(Box::new(body));
        self.announce(head, status);
        true
    }

    /// Has the head sent, with what the cache did.
    fn announce(&mut self, mut head: ResponseHead, status: Status) {
        let counters = &self.site.cache.counters;
        match status.forward {
            None => count(&counters.cache_hits),
            Some(Forward::Partial) => count(&counters.cache_misses),
            // Counted when it was found out.
            Some(_) => {}
        }
        self.word = status.word();
        status.append(&mut head.headers);
        self.head = Some(head);
    }

    /// Looks what is stored, and starts what it takes to answer.
    fn decide(&mut self) {
        let Some(request) = self.request.clone() else { return };
        let site = Arc::clone(&self.site);
        let cache = &site.cache;
        let found = cache.heads.find(&self.key);
        let entry = match found {
            Found::Disk if !self.is_looked_up => {
                self.is_looked_up = true;
                self.state = State::Look(Reading::default());
                return;
            }
            Found::Memory(entry) => Some(entry),
            Found::Disk | Found::Nowhere => None,
        };
        let now = policy::now();
        let object = entry.as_ref().and_then(|entry| entry.variant(&request.headers)).cloned();
        let mut old = None;
        if let Some(object) = object {
            let ttl = object.freshness.left(now).div_euclid(1000);
            let how = object.freshness.judge(&self.asked, now);
            if let Use::Fresh | Use::While | Use::Stale = how {
                if self.serve(&request, Arc::clone(&object), None, Status::hit(ttl), now) {
                    if how != Use::Fresh {
                        count(&cache.counters.cache_stale);
                    }
                    if how == Use::While {
                        self.revalidate_meanwhile(&request, object, entry);
                    }
                    return;
                }
            } else {
                let is_whole = object.is_sliced
                    || (0..object.length.div_ceil(cache.block_bytes as u64))
                        .all(|index| cache.has_block(&object, index));
                if is_whole {
                    self.forward = if ttl > 0 { Forward::Request } else { Forward::Stale };
                    old = Some(object);
                }
            }
        } else if entry.is_some() {
            self.forward = Forward::VaryMiss;
        }
        if !self.miss(&request, old, entry, now) {
            return self.decide();
        }
        count(&cache.counters.cache_misses);
    }

    /// Takes part in a fetch, or passes. False: what is stored is newer than what was looked up.
    fn miss(
        &mut self,
        request: &Arc<RequestHead>,
        old: Option<Arc<Object>>,
        known: Option<Arc<Entry>>,
        now: u64,
    ) -> bool {
        let site = Arc::clone(&self.site);
        let cache = &site.cache;
        if self.asked.only_if_cached {
            let exchange = Exchange::error(&request.method, StatusCode::GATEWAY_TIMEOUT, HeaderMap::new());
            self.pass_on(exchange, Status::forward(Some(self.forward)), None, None);
            return true;
        }
        if old.is_none() && cache.table.throttle(self.lane, now).is_some() {
            self.pass(request, None);
            return true;
        }
        let Some(joined) = self.join(request, old.as_ref(), known.as_ref()) else { return false };
        match joined {
            Joined::First(fill, ticket) => {
                self.is_first = true;
                Plan {
                    site: Arc::clone(&site),
                    fill,
                    request: Arc::clone(request),
                    kind: Kind::Head { slice: self.first_slice(request), old: conditional(&old), known },
                    _background: None,
                }
                .start();
                self.state = State::Wait(ticket, old);
            }
            Joined::Another(ticket) => {
                self.is_first = false;
                count(&cache.counters.cache_collapsed);
                self.state = State::Wait(ticket, old);
            }
            Joined::Full => self.pass(request, None),
        }
        true
    }

    /// Joins the fetch of the URL that is under way, or begins one; neither if one has stored a response since `known` was looked up.
    fn join(
        &self,
        request: &RequestHead,
        old: Option<&Arc<Object>>,
        known: Option<&Arc<Entry>>,
    ) -> Option<Joined> {
        let cache = &self.site.cache;
        let known = known.and_then(|entry| entry.variant(&request.headers));
        let is_renewed = || {
            let Found::Memory(entry) = cache.heads.find(&self.key) else { return false };
            entry.variant(&request.headers).is_some_and(|object| {
                known.is_none_or(|known| !Arc::ptr_eq(known, object))
                    && object.freshness.left(policy::now()) > 0
            })
        };
        let purges = cache.heads.bans.last();
        cache.table.join_head(&self.key, (self.lane, purges), &request.headers, old, is_renewed)
    }

    /// The slice that the request begins in, as far as that can be told without the length.
    fn first_slice(&self, request: &RequestHead) -> u64 {
        let slice = self.site.cache.slice;
        if slice == 0 || request.method != Method::GET {
            return 0;
        }
        let range = request.headers.get(http::header::RANGE).and_then(|range| range.to_str().ok());
        let first = range
            .and_then(|range| range.strip_prefix("bytes=")?.split_once('-')?.0.trim().parse::<u64>().ok());
        first.map_or(0, |first| first / slice)
    }

    fn revalidate_meanwhile(
        &self,
        request: &Arc<RequestHead>,
        object: Arc<Object>,
        known: Option<Arc<Entry>>,
    ) {
        if let Some(Joined::First(fill, ticket)) = self.join(request, Some(&object), known.as_ref()) {
            Plan {
                site: Arc::clone(&self.site),
                fill,
                request: Arc::clone(request),
                kind: Kind::Head { slice: 0, old: conditional(&Some(object)), known },
                _background: Some(ticket),
            }
            .start();
        }
    }

    /// Asks the origin for this request alone.
    fn pass(&mut self, request: &Arc<RequestHead>, permit: Option<Permit>) {
        let cache = &self.site.cache;
        count(if permit.is_some() { &cache.counters.cache_released } else { &cache.counters.cache_bypass });
        let forward = if permit.is_some() { self.forward } else { Forward::Bypass };
        let exchange = self.site.upstream.start(request, RequestBody::empty(), self.wake.clone());
        self.pass_on(exchange, Status::forward(Some(forward)), permit, None);
    }

    fn pass_on(
        &mut self,
        mut exchange: Exchange,
        status: Status,
        permit: Option<Permit>,
        head: Option<ResponseHead>,
    ) {
        if let Some(account) = &self.account {
            exchange.charge_to(account);
        }
        self.request = None;
        self.charge = None;
        self.state =
            State::Pass(Box::new(Pass { exchange, status, _permit: permit, invalidates: None, head }));
    }

    /// What a fetch came to.
    fn take_answer(&mut self, answer: Answer, ticket: Ticket, old: Option<Arc<Object>>) {
        let Some(request) = self.request.clone() else { return };
        let mut status = Status::forward(Some(self.forward));
        status.is_collapsed = !self.is_first;
        let (object, ticket) = match answer {
            Answer::Object(object, origin) => {
                status.forward_status = Some(origin);
                status.is_stored = true;
                (object, Some(ticket))
            }
            Answer::Confirmed(object) => {
                status.forward_status = Some(StatusCode::NOT_MODIFIED);
                (object, None)
            }
            Answer::Failed(throttle) => {
                let now = policy::now();
                if let Some(old) = &old
                    && old.freshness.judge(&self.asked, now) == Use::IfError
                {
                    count(&self.site.cache.counters.cache_stale);
                    let mut status = Status::hit(old.freshness.left(now).div_euclid(1000));
                    status.detail = Some("stale-if-error");
                    if self.serve(&request, Arc::clone(old), None, status, now) {
                        return;
                    }
                }
                let handover = if self.is_first { ticket.take_handover() } else { None };
                match handover {
                    Some(handover) => self.hand_over(&request, handover, status),
                    None if self.is_first => {
                        let exchange =
                            Exchange::error(&request.method, StatusCode::GATEWAY_TIMEOUT, HeaderMap::new());
                        self.pass_on(exchange, status, None, None);
                    }
                    None => self.state = State::Line(throttle.enter()),
                }
                return;
            }
            Answer::Alone(throttle) => {
                // It is for the one whose request it answers, and for nobody else.
                let handover = if self.is_first { ticket.take_handover() } else { None };
                match handover {
                    Some(handover) => self.hand_over(&request, handover, status),
                    None if self.is_first => self.pass(&request, None),
                    None => self.state = State::Line(throttle.enter()),
                }
                return;
            }
            Answer::Gone => return self.pass(&request, None),
        };
        self.tries += 1;
        if object.is_for(&request.headers) && self.serve(&request, object, ticket, status, policy::now()) {
            return;
        }
        if self.tries < TRIES {
            self.state = State::Decide;
        } else {
            self.pass(&request, None);
        }
    }

    /// Passes on what the origin answered to the fetch that was made for this request.
    fn hand_over(&mut self, request: &RequestHead, handover: Handover, mut status: Status) {
        let Handover { mut head, exchange, relay } = handover;
        relay.set_transport(&self.wake);
        status.forward_status = Some(head.status);
        status.is_collapsed = false;
        if request.method == Method::HEAD {
            // Its body is not wanted.
            head.body_length = Some(0);
            self.word = status.word();
            status.append(&mut head.headers);
            self.request = None;
            self.state = State::Fixed(Bytes::new());
            self.head = Some(head);
            return;
        }
        self.pass_on(exchange, status, None, Some(head));
    }
}

/// An old version to revalidate, if it has validators.
fn conditional(old: &Option<Arc<Object>>) -> Option<Arc<Object>> {
    old.clone().filter(|old| old.can_be_revalidated())
}
