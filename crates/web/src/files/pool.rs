//! Reader threads: a bounded queue of blocking work, one flight per key.
//!
//! ```text
//!   join / submit ──▶ queue (bounded) ──▶ reader thread ──▶ flight done ──▶ every waiter woken
//!        │ full                                │ takes a job: slots are free
//!        ▼                                     ▼
//!   blocked (one entry per live exchange) ◀── woken in order, submits again
//! ```
//!
//! Jobs have owners, the connections that requested them. Owners are served in turn, and each may have as
//! many jobs in the queue as there are free places in it, so that nobody waits for everything that another
//! owner wants.
//!
//! A request for a key that is in flight joins it instead of queueing another job. A waiter that goes away
//! leaves no entry behind, and a queued job without waiters is dropped unread, so a client that opens and
//! cancels requests gains neither memory nor disk time.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use self::fair_queue::FairQueue;
use crate::Wake;
use expressway_metrics::{count, counters};

mod fair_queue;
#[cfg(test)]
mod tests;

/// How long a reader with an empty queue waits for those it woke from `blocked` to submit before it wakes
/// the next ones: a woken exchange may have nothing to submit any more.
const BLOCKED_RETRY: Duration = Duration::from_millis(5);

/// Blocked waiters woken for each job taken: one gets its place, another makes up for one that had nothing
/// to submit.
const WOKEN: usize = 2;

counters! {
    /// What the reader threads did.
    pub(crate) struct PoolCounters {
        /// Jobs run by reader threads.
        pub(crate) reader_jobs: AtomicU64,
        /// Waits that joined a job for the same block or path.
        pub(crate) reader_coalesced: AtomicU64,
        /// Jobs dropped because nobody was waiting for them any more.
        pub(crate) reader_cancelled: AtomicU64,
        /// Attempts to queue a job that found the queue or its owner's share of it full and were retried later.
        pub(crate) reader_queue_full: AtomicU64,
        /// Blocks read ahead.
        pub(crate) reader_prefetches: AtomicU64,
        /// Jobs that panicked; indicates a bug.
        pub(crate) reader_panics: AtomicU64,
    }
}

type Work<V> = Box<dyn FnOnce() -> V + Send>;

/// The outcome of one job, shared by all waiters.
struct Flight<V> {
    done: OnceLock<V>,
}

struct InFlight<V> {
    flight: Arc<Flight<V>>,
    waiters: BTreeMap<u64, Wake>,
    /// Run even if nobody waits.
    prefetch: bool,
}

struct State<K, V> {
    queue: FairQueue<(K, Work<V>)>,
    flights: HashMap<K, InFlight<V>>,
    blocked: FairQueue<Wake>,
    next: u64,
    stopping: bool,
}

struct Shared<K, V> {
    state: Mutex<State<K, V>>,
    available: Condvar,
    capacity: usize,
    counters: PoolCounters,
    /// What waiters get when their job panicked or the pool stopped.
    lost: V,
}

/// A pool of reader threads. Dropping it ends them after the job each is running.
pub(crate) struct Pool<K: Eq + Hash + Clone + Send + 'static, V: Clone + Send + Sync + 'static> {
    shared: Arc<Shared<K, V>>,
    threads: Vec<JoinHandle<()>>,
}

/// A place in a flight. Dropping it gives the place up.
pub(crate) struct Ticket<K: Eq + Hash, V> {
    shared: Arc<Shared<K, V>>,
    flight: Arc<Flight<V>>,
    key: K,
    id: u64,
}

/// A place among those waiting for room in the queue. Dropping it releases the place.
pub(crate) struct Blocked<K: Eq + Hash, V> {
    shared: Arc<Shared<K, V>>,
    owner: usize,
    id: u64,
}

/// Where a submission ended up.
pub(crate) enum Submitted<K: Eq + Hash, V> {
    /// In flight.
    Ticket(Ticket<K, V>),
    /// Not yet: submit again, with this, when woken.
    Full(Blocked<K, V>),
}

impl<K, V> Shared<K, V> {
    /// Jobs run outside the lock and nothing in it unwinds, so a poisoned state is still consistent.
    fn lock(&self) -> MutexGuard<'_, State<K, V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, V> State<K, V> {
    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Takes up to `room` blocked waiters, of owners in turn.
    fn unblock(&mut self, room: usize) -> Vec<Wake> {
        std::iter::from_fn(|| self.blocked.pop()).take(room).collect()
    }

    /// Whether the queue of `capacity` takes another job of `owner`.
    fn takes(&self, owner: usize, capacity: usize) -> bool {
        let free = capacity - self.queue.len().min(capacity);
        free > 0 && self.queue.of(owner) < free
    }
}

impl<K: Eq + Hash + Clone + Send + 'static, V: Clone + Send + Sync + 'static> Pool<K, V> {
    /// Starts `threads` readers with a queue of `capacity`. `lost` is what waiters get for a job that
    /// cannot be finished.
    pub(crate) fn start(threads: usize, capacity: usize, lost: V) -> io::Result<Self> {
        let state = State {
            queue: FairQueue::default(),
            flights: HashMap::new(),
            blocked: FairQueue::default(),
            next: 0,
            stopping: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            available: Condvar::new(),
            capacity,
            counters: PoolCounters::default(),
            lost,
        });
        let mut pool = Self { shared, threads: Vec::with_capacity(threads) };
        for index in 0..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("reader-{index}"));
            pool.threads.push(builder.spawn(move || run(&shared))?);
        }
        Ok(pool)
    }

    /// Joins the flight of `key` if there is one.
    pub(crate) fn join(&self, key: &K, wake: &Wake) -> Option<Ticket<K, V>> {
        let mut state = self.shared.lock();
        let id = state.next_id();
        let in_flight = state.flights.get_mut(key)?;
        in_flight.waiters.insert(id, wake.clone());
        let flight = Arc::clone(&in_flight.flight);
        drop(state);
        count(&self.shared.counters.reader_coalesced);
        Some(Ticket { shared: Arc::clone(&self.shared), flight, key: key.clone(), id })
    }

    /// Joins the flight of `key` or queues `work` for it, on behalf of `owner`. `blocked` is what an earlier attempt
    /// returned.
    pub(crate) fn submit(
        &self,
        key: K,
        owner: usize,
        wake: &Wake,
        blocked: Option<Blocked<K, V>>,
        work: impl FnOnce() -> V + Send + 'static,
    ) -> Submitted<K, V> {
        if let Some(ticket) = self.join(&key, wake) {
            return Submitted::Ticket(ticket);
        }
        let mut state = self.shared.lock();
        if !state.takes(owner, self.shared.capacity) && !state.flights.contains_key(&key) {
            count(&self.shared.counters.reader_queue_full);
            let blocked = blocked.unwrap_or_else(|| {
                let id = state.next_id();
                Blocked { shared: Arc::clone(&self.shared), owner, id }
            });
            state.blocked.insert(owner, blocked.id, wake.clone());
            return Submitted::Full(blocked);
        }
        let id = state.next_id();
        let flight = Self::enqueue(&mut state, &key, owner, Box::new(work), false);
        if let Some(in_flight) = state.flights.get_mut(&key) {
            in_flight.waiters.insert(id, wake.clone());
        }
        drop(state);
        drop(blocked);
        self.shared.available.notify_one();
        Submitted::Ticket(Ticket { shared: Arc::clone(&self.shared), flight, key, id })
    }

    /// Queues `work` for `key` without a waiter, unless it is in flight or the queue is half full: reading
    /// ahead must not displace what is needed now. True if it was queued.
    pub(crate) fn prefetch(&self, key: K, owner: usize, work: impl FnOnce() -> V + Send + 'static) -> bool {
        let is_queued = self.offer(key, owner, work);
        if is_queued {
            count(&self.shared.counters.reader_prefetches);
        }
        is_queued
    }

    /// As [`Self::prefetch`], for other work.
    pub(crate) fn offer(&self, key: K, owner: usize, work: impl FnOnce() -> V + Send + 'static) -> bool {
        let mut state = self.shared.lock();
        if state.queue.len() >= self.shared.capacity / 2 || state.flights.contains_key(&key) {
            return false;
        }
        Self::enqueue(&mut state, &key, owner, Box::new(work), true);
        drop(state);
        self.shared.available.notify_one();
        true
    }

    /// The flight of `key`, whose job is queued if it is new.
    fn enqueue(
        state: &mut State<K, V>,
        key: &K,
        owner: usize,
        work: Work<V>,
        prefetch: bool,
    ) -> Arc<Flight<V>> {
        if let Some(in_flight) = state.flights.get(key) {
            return Arc::clone(&in_flight.flight);
        }
        let flight = Arc::new(Flight { done: OnceLock::new() });
        let in_flight = InFlight { flight: Arc::clone(&flight), waiters: BTreeMap::new(), prefetch };
        state.flights.insert(key.clone(), in_flight);
        let number = state.next_id();
        state.queue.insert(owner, number, (key.clone(), work));
        flight
    }

    /// Counters.
    pub(crate) fn counters(&self) -> &PoolCounters {
        &self.shared.counters
    }

    /// Jobs queued, and exchanges that wait for room in the queue.
    pub(crate) fn levels(&self) -> (usize, usize) {
        let state = self.shared.lock();
        (state.queue.len(), state.blocked.len())
    }

    /// Exchanges that wait for a job or for room in the queue.
    pub(crate) fn waiters(&self) -> usize {
        let state = self.shared.lock();
        state.flights.values().map(|flight| flight.waiters.len()).sum::<usize>() + state.blocked.len()
    }
}

impl<K: Eq + Hash + Clone + Send + 'static, V: Clone + Send + Sync + 'static> Drop for Pool<K, V> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stopping = true;
        state.queue.clear();
        let mut wakes = state.unblock(usize::MAX);
        drop(state);
        self.shared.available.notify_all();
        for thread in self.threads.drain(..) {
            // The last owner may be a job that a reader has just finished; it cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a reader thread panicked");
            }
        }
        for (_, in_flight) in self.shared.lock().flights.drain() {
            let _ = in_flight.flight.done.set(self.shared.lost.clone());
            wakes.extend(in_flight.waiters.into_values());
        }
        wakes.iter().for_each(Wake::wake);
    }
}

/// A reader thread.
fn run<K: Eq + Hash + Clone, V: Clone>(shared: &Shared<K, V>) {
    let mut state = shared.lock();
    while !state.stopping {
        if let Some((key, work)) = state.queue.pop() {
            let unblocked = state.unblock(WOKEN);
            let wanted = state.flights.get(&key).is_some_and(|f| f.prefetch || !f.waiters.is_empty());
            if !wanted {
                state.flights.remove(&key);
            }
            drop(state);
            unblocked.iter().for_each(Wake::wake);
            if wanted {
                finish(shared, &key, work);
            } else {
                count(&shared.counters.reader_cancelled);
            }
            state = shared.lock();
        } else if state.blocked.is_empty() {
            state = shared.available.wait(state).unwrap_or_else(PoisonError::into_inner);
        } else {
            let unblocked = state.unblock(shared.capacity);
            drop(state);
            unblocked.iter().for_each(Wake::wake);
            let state_again = shared.lock();
            state = match shared.available.wait_timeout(state_again, BLOCKED_RETRY) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

/// Runs one job and tells its waiters.
fn finish<K: Eq + Hash, V: Clone>(shared: &Shared<K, V>, key: &K, work: Work<V>) {
    let value = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        count(&shared.counters.reader_panics);
        shared.lost.clone()
    });
    count(&shared.counters.reader_jobs);
    let in_flight = shared.lock().flights.remove(key);
    if let Some(in_flight) = in_flight {
        let _ = in_flight.flight.done.set(value);
        in_flight.waiters.values().for_each(Wake::wake);
    }
}

impl<K: Eq + Hash, V: Clone> Ticket<K, V> {
    /// The outcome, once it is there.
    pub(crate) fn poll(&self) -> Option<V> {
        self.flight.done.get().cloned()
    }
}

impl<K: Eq + Hash, V> Drop for Ticket<K, V> {
    fn drop(&mut self) {
        if self.flight.done.get().is_some() {
            return;
        }
        let mut state = self.shared.lock();
        if let Some(in_flight) = state.flights.get_mut(&self.key)
            && Arc::ptr_eq(&in_flight.flight, &self.flight)
        {
            in_flight.waiters.remove(&self.id);
        }
    }
}

impl<K: Eq + Hash, V> Drop for Blocked<K, V> {
    fn drop(&mut self) {
        self.shared.lock().blocked.remove(self.owner, self.id);
    }
}
