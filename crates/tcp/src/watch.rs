//! What is going on on a connection, and when its client has had enough of it: one who sends too slowly, takes nothing,
//! or sends much that carries nothing is ended.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use expressway_web::memory::Account;
use expressway_web::patience::{Pace, patience};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::connection;
use crate::connections::ConnectionPermit;
use crate::follow::{About, Follow};
use crate::setup::Limits;
use crate::stats::{Refusal, add, sub};
use crate::unread::Unread;
use crate::worker::Shared;
use crate::writes::Writes;

/// How long a connection may take to close that has nothing to do.
const CLOSING: Duration = Duration::from_secs(2);

/// Looks at responses within the time that one may stand still.
const LOOKS: u32 = 8;

/// The longest time between two looks.
const LONGEST: Duration = Duration::from_secs(2);

/// Part of what a connection may hold that its requests may take, as over QUIC.
const REQUESTS: usize = 4;

/// Octets that a client may send without anything in them: more than HTTP/2 lets it send of bodies that nobody has read
/// yet, and pings and settings for hours.
const WASTE: i64 = 1 << 20;

/// What it gets back of these a second.
const PARDON: i64 = 8 << 10;

/// What a request allows, in octets: its header section, and what belongs to it.
const PER_REQUEST: i64 = 4 << 10;

/// Octets that hyper may have of a connection, with what they take beside, whatever memory is left: HTTP/2's first window.
const UNREAD: usize = (connection::FIRST_WINDOW as usize) / 4 * 5;

/// The same when nothing is left.
const LEAST: usize = 16 << 10;

/// Requests that a client may have abandoned beyond those that it took the answers of (CVE-2023-44487).
const ABANDONED: u32 = 500;

/// What is to be done with a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing before then.
    Until(Instant),
    /// It is to take no more requests.
    Finish,
    /// It is over.
    End(Option<Refusal>),
}

/// A request under way.
#[derive(Debug)]
struct Request {
    /// Its handler has it, and it is counted as such.
    is_begun: bool,
    /// It waits for its exchange, and not for the client.
    waits: bool,
    /// Octets that the transport has taken of it, and how fast.
    taken: u64,
    pace: Pace,
    /// Of its task (HTTP/2).
    task: Option<AbortHandle>,
}

#[derive(Debug)]
struct State {
    requests: HashMap<u64, Request>,
    begun: usize,
    next: u64,
    /// The request whose task is started next.
    newest: Option<u64>,
    uploads: usize,
    /// Requests that wait until others have ended.
    line: VecDeque<Waker>,
    /// Responses that wait until the client has taken something.
    starved: VecDeque<Waker>,
    idle_since: Instant,
    /// When something came while there was no request.
    head_since: Option<Instant>,
    writes: Writes,
    /// Of what the client takes of all responses.
    pace: Pace,
    look: Instant,
    closing: Option<Instant>,
    abandoned: u32,
    left: i64,
    pardoned: Instant,
    doomed: Option<Refusal>,
    lingers: bool,
    unread: Unread,
    /// Since when a header section is incomplete (HTTP/2).
    section_since: Option<Instant>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) worker: Arc<Shared>,
    pub(crate) account: Account,
    pub(crate) remote: SocketAddr,
    pub(crate) limits: Limits,
    pub(crate) is_h2: bool,
    /// Octets of all bodies that an HTTP/2 client may send before they are read.
    pub(crate) window: u32,
    permit: ConnectionPermit,
    follow: Follow,
    state: Mutex<State>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (follow, about) = self.follow();
        follow.close(about);
    }
}

impl Watch {
    pub(crate) fn new(
        worker: &Arc<Shared>,
        remote: SocketAddr,
        limits: Limits,
        is_h2: bool,
        permit: ConnectionPermit,
    ) -> Arc<Self> {
        let now = Instant::now();
        let account = Account::new(&worker.ledger, limits.send_window, limits.connection_memory);
        account.follow();
        let window = connection::window(worker.ledger.memory());
        let state = State {
            requests: HashMap::new(),
            begun: 0,
            next: 0,
            newest: None,
            uploads: 0,
            line: VecDeque::new(),
            starved: VecDeque::new(),
            idle_since: now,
            head_since: None,
            writes: Writes::default(),
            pace: Pace::default(),
            look: now,
            closing: None,
            abandoned: 0,
            left: WASTE,
            pardoned: now,
            doomed: None,
            lingers: false,
            unread: Unread::new(&account, is_h2, window as usize, 2 * limits.max_header),
            section_since: None,
        };
        let worker = Arc::clone(worker);
        let follow = Follow::default();
        let state = Mutex::new(state);
        Arc::new(Self { worker, account, remote, limits, is_h2, window, permit, follow, state })
    }

    /// What it tells whoever traces.
    pub(crate) fn follow(&self) -> (&Follow, About<'_>) {
        (&self.follow, About { tracer: &self.worker.tracer, remote: self.remote, is_h2: self.is_h2 })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn permit(&self) -> &ConnectionPermit {
        &self.permit
    }

    /// A request has come; the number by which it is known here.
    pub(crate) fn arrive(&self, has_body: bool) -> u64 {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.newest = Some(id);
        state.head_since = None;
        state.unread.take_head();
        // Much of a body that is not wanted may be on its way before the client knows.
        state.credit(PER_REQUEST + if has_body { i64::from(connection::STREAM_WINDOW) } else { 0 });
        let request = Request { is_begun: false, waits: true, taken: 0, pace: Pace::default(), task: None };
        let was_idle = state.is_idle();
        state.requests.insert(id, request);
        drop(state);
        if was_idle {
            self.permit.work();
        }
        add(&self.worker.stats.requests_active, 1);
        id
    }

    /// The task that the last one who arrived runs in.
    pub(crate) fn adopt(&self, task: AbortHandle) {
        let mut state = self.lock();
        let newest = state.newest.take();
        if let Some(request) = newest.and_then(|id| state.requests.get_mut(&id)) {
            request.task = Some(task);
        }
    }

    /// Ready when the request may be begun: not too many are, and there is memory for it.
    pub(crate) fn poll_begin(&self, id: u64, context: &Context<'_>) -> Poll<()> {
        self.account.follow();
        let most = self.limits.max_open_files.min(self.worker.ledger.memory().file_share());
        let mut state = self.lock();
        let is_full = state.begun >= most
            || state.begun > 0 && self.account.requests() >= self.account.limit() / REQUESTS;
        if is_full {
            state.line.push_back(context.waker().clone());
            return Poll::Pending;
        }
        state.begun += 1;
        if let Some(request) = state.requests.get_mut(&id) {
            request.is_begun = true;
        }
        Poll::Ready(())
    }

    /// The request is over; `is_complete`: its client has the whole answer.
    pub(crate) fn leave(&self, id: u64, is_complete: bool) {
        let mut state = self.lock();
        let Some(request) = state.requests.remove(&id) else { return };
        state.begun -= usize::from(request.is_begun);
        state.abandoned = if is_complete { state.abandoned.saturating_sub(1) } else { state.abandoned + 1 };
        let is_flood = state.abandoned > ABANDONED;
        if is_flood {
            state.doomed.get_or_insert(Refusal::Flood);
        }
        let next = state.line.pop_front();
        self.rest(state);
        sub(&self.worker.stats.requests_active, 1);
        if let Some(next) = next {
            next.wake();
        }
        if is_flood {
            self.permit.signal.alarm().ring();
        }
        // What it may hold of the window is for others.
        self.feed();
    }

    fn rest(&self, mut state: MutexGuard<'_, State>) {
        if state.is_idle() {
            state.idle_since = Instant::now();
            state.unread.rest();
            drop(state);
            self.permit.rest();
            // Its deadline is another now.
            self.permit.signal.alarm().ring();
        }
    }

    /// A body is being read.
    pub(crate) fn begin_upload(&self) {
        self.lock().uploads += 1;
    }

    /// It is not any more. Who did not read it to its end has the connection linger before it closes, or the answer may
    /// be lost.
    pub(crate) fn end_upload(&self, is_whole: bool) {
        let mut state = self.lock();
        state.uploads -= 1;
        state.lingers |= !is_whole;
        self.rest(state);
    }

    /// Something may come that nobody reads: the rest of a body, or what HTTP/2 clients send while they read, as window
    /// updates.
    pub(crate) fn lingers(&self) -> bool {
        self.is_h2 || self.lock().lingers
    }

    /// From now on the exchange of a response is waited for (`waits`), or its client.
    pub(crate) fn turns(&self, id: u64, waits: bool) {
        if let Some(request) = self.lock().requests.get_mut(&id) {
            request.waits = waits;
            request.pace.forget();
            if !waits {
                let now = Instant::now().into_std();
                request.pace.slow_since(now, request.taken, u64::MAX, self.limits.response_rate);
            }
        }
    }

    /// The transport took so many octets of a response.
    pub(crate) fn gave(&self, id: u64, octets: usize) {
        if let Some(request) = self.lock().requests.get_mut(&id) {
            request.waits = false;
            request.taken += octets as u64;
        }
    }

    /// Has `waker` called when the client has taken something.
    pub(crate) fn starve(&self, waker: &Waker) {
        self.lock().starved.push_back(waker.clone());
    }

    /// There may be room for one that waits for it.
    pub(crate) fn feed(&self) {
        let next = self.lock().starved.pop_front();
        if let Some(next) = next {
            next.wake();
        }
    }

    /// Ends the request and counts why; over HTTP/1 the connection with it.
    pub(crate) fn end(&self, id: u64, why: Refusal) {
        let mut state = self.lock();
        if self.is_h2 {
            if let Some(task) = state.requests.get_mut(&id).and_then(|request| request.task.take()) {
                drop(state);
                self.worker.stats.refuse(why);
                task.abort();
            }
        } else {
            state.doomed.get_or_insert(why);
            drop(state);
            self.permit.signal.alarm().ring();
        }
    }

    /// Octets came of the connection. False: it wastes our time, or takes more memory than there is.
    pub(crate) fn received(&self, octets: &[u8]) -> bool {
        add(&self.worker.stats.received[usize::from(self.is_h2)], octets.len() as u64);
        let mut state = self.lock();
        let is_idle = state.is_idle();
        if is_idle && state.head_since.is_none() {
            state.head_since = Some(Instant::now());
        }
        state.unread.receive(octets, is_idle);
        let since = state.section_since.take();
        state.section_since = state.unread.is_in_section().then(|| since.unwrap_or_else(Instant::now));
        if self.holds_too_much(state.unread.octets()) {
            state.doomed.get_or_insert(Refusal::Memory);
            return false;
        }
        state.left -= octets.len() as i64;
        if state.left < 0 {
            let now = Instant::now();
            let seconds = now.duration_since(state.pardoned).as_secs_f64();
            state.pardoned = now;
            state.credit((seconds * PARDON as f64) as i64);
        }
        if state.left < 0 {
            state.doomed.get_or_insert(Refusal::Flood);
            return false;
        }
        true
    }

    /// More is unread than a connection may have with the memory that is left.
    fn holds_too_much(&self, unread: usize) -> bool {
        if unread <= LEAST {
            return false;
        }
        let memory = self.worker.ledger.memory();
        let least = if memory.left() > 0.0 { UNREAD } else { LEAST };
        unread > least && unread > memory.share().min(self.limits.connection_memory)
    }

    /// A piece of a body was taken of what came.
    pub(crate) fn took(&self, octets: usize) {
        self.lock().unread.take(octets);
    }

    /// So many of the octets that came, or went, were of bodies.
    pub(crate) fn carried(&self, octets: usize) {
        self.lock().credit(octets as i64);
    }

    /// So many octets went; none if the connection takes no more for now.
    pub(crate) fn sent(&self, octets: Option<usize>) {
        let mut state = self.lock();
        match octets {
            Some(octets) => {
                state.writes.took(octets);
                // Acknowledgements and updates of windows belong to them.
                state.credit(octets as i64 / 4);
                drop(state);
                add(&self.worker.stats.sent[usize::from(self.is_h2)], octets as u64);
            }
            None => state.writes.refused(Instant::now().into_std(), self.limits.response_rate),
        }
    }

    /// Why the connection is to end, if it is.
    pub(crate) fn doomed(&self) -> Option<Refusal> {
        self.lock().doomed
    }

    /// What is to be done now, and when to ask next.
    pub(crate) fn check(&self, now: Instant) -> Verdict {
        let mut state = self.lock();
        if let Some(why) = state.doomed {
            return Verdict::End(Some(why));
        }
        let patience = patience(self.limits.response_timeout, self.worker.ledger.memory().left());
        let mut next = now + Duration::from_secs(3600);
        let mut late = |since: Instant, limit: Duration| {
            next = next.min(since + limit);
            now >= since + limit
        };
        let (std, rate) = (now.into_std(), self.limits.response_rate);
        if state.writes.blocked_since(std, rate).is_some_and(|since| late(since.into(), patience)) {
            return Verdict::End(Some(Refusal::ResponseTimeout));
        }
        let owed = self.account.in_flight() as u64;
        if owed == 0 {
            state.pace.forget();
        } else {
            let since = state.pace.slow_since(std, self.account.arrived(), owed, rate).unwrap_or(std);
            // Its responses are ended first.
            if late(since.into(), patience + patience / 4) {
                return Verdict::End(Some(Refusal::ResponseTimeout));
            }
        }
        if state.section_since.is_some_and(|since| late(since, self.limits.header_timeout)) {
            return Verdict::End(Some(Refusal::HeaderTimeout));
        }
        if state.is_idle() {
            let head = state.head_since.filter(|_| !self.is_h2);
            if state.closing.is_some_and(|since| late(since.max(state.idle_since), CLOSING)) {
                return Verdict::End(None);
            }
            if head.is_some_and(|since| late(since, self.limits.header_timeout)) {
                return Verdict::End(Some(Refusal::HeaderTimeout));
            }
            if state.closing.is_none() && head.is_none() && late(state.idle_since, self.limits.idle_timeout) {
                state.closing = Some(now);
                return Verdict::Finish;
            }
        } else if now >= state.look {
            state.look = now + (patience / LOOKS).min(LONGEST);
            let is_late = |request: &mut Request| {
                let since = request.pace.slow_since(std, request.taken, u64::MAX, rate);
                since.is_some_and(|since| std.duration_since(since) >= patience)
            };
            let waiting = state.requests.iter_mut().filter(|(_, request)| !request.waits);
            let overdue: Vec<u64> =
                waiting.filter_map(|(id, request)| is_late(request).then_some(*id)).collect();
            next = next.min(state.look);
            drop(state);
            for id in overdue {
                self.end(id, Refusal::ResponseTimeout);
            }
            if let Some(why) = self.doomed() {
                return Verdict::End(Some(why));
            }
        } else {
            next = next.min(state.look);
        }
        Verdict::Until(next)
    }

    /// The connection takes no more requests.
    pub(crate) fn close(&self) {
        self.lock().closing.get_or_insert_with(Instant::now);
    }

    /// The connection is over, and everything on it.
    pub(crate) fn abandon(&self) {
        let tasks: Vec<_> =
            self.lock().requests.values_mut().filter_map(|request| request.task.take()).collect();
        for task in tasks {
            task.abort();
        }
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.uploads == 0
    }

    fn credit(&mut self, octets: i64) {
        self.left = (self.left + octets).min(WASTE);
    }
}
