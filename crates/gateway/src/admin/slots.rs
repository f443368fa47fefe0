//! Connection slots: when all are taken, a new connection displaces the one that has been idle longest
//! without a request, so idle connections cannot lock others out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::{AbortHandle, JoinHandle};

use expressway_metrics::Sample;

/// All places.
#[derive(Clone)]
pub(super) struct Slots {
    shared: Arc<Shared>,
}

struct Shared {
    most: usize,
    seats: Mutex<Seats>,
    accepted: AtomicU64,
    displaced: AtomicU64,
    timeouts: AtomicU64,
    refused_pages: AtomicU64,
    unauthorized: AtomicU64,
    misdirected: AtomicU64,
}

#[derive(Default)]
struct Seats {
    /// Connections by when they came or asked last.
    taken: BTreeMap<u64, AbortHandle>,
    last: u64,
}

/// A connection's place, until it is dropped.
pub(super) struct Slot {
    shared: Arc<Shared>,
    /// Its key among those taken.
    at: AtomicU64,
}

impl Slots {
    /// So many, all free.
    pub(super) fn new(most: usize) -> Self {
        let zero = || AtomicU64::new(0);
        let shared = Shared {
            most,
            seats: Mutex::default(),
            accepted: zero(),
            displaced: zero(),
            timeouts: zero(),
            refused_pages: zero(),
            unauthorized: zero(),
            misdirected: zero(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Gives a connection a slot, displacing another if necessary. `start` starts its task, which does not
    /// run before this returns.
    pub(super) fn seat(&self, start: impl FnOnce(Slot) -> JoinHandle<()>) {
        let shared = &self.shared;
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let (key, displaced) = {
            let mut seats = shared.seats();
            let displaced = (seats.taken.len() >= shared.most).then(|| seats.taken.pop_first()).flatten();
            seats.last += 1;
            (seats.last, displaced)
        };
        if let Some((_, quietest)) = displaced {
            shared.displaced.fetch_add(1, Ordering::Relaxed);
            quietest.abort();
        }
        let task = start(Slot { shared: shared.clone(), at: AtomicU64::new(key) });
        shared.seats().taken.insert(key, task.abort_handle());
    }

    /// Connections there are.
    pub(super) fn taken(&self) -> usize {
        self.shared.seats().taken.len()
    }

    /// A page was refused.
    pub(super) fn count_refused_page(&self) {
        self.shared.refused_pages.fetch_add(1, Ordering::Relaxed);
    }

    /// A request had no token, or a wrong one.
    pub(super) fn count_unauthorized(&self) {
        self.shared.unauthorized.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was addressed to another name.
    pub(super) fn count_misdirected(&self) {
        self.shared.misdirected.fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted.
    pub(super) fn samples(&self, out: &mut Vec<Sample>) {
        let shared = &self.shared;
        let connections = shared.seats().taken.len() as u64;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        out.push(Sample::gauge(
            "admin_connections",
            "Current connections to the admin listener.",
            connections,
        ));
        for (name, help, counter) in [
            ("admin_accepted", "Connections that the admin listener has accepted.", &shared.accepted),
            (
                "admin_displaced",
                "Connections to the admin listener that were closed to make room for others.",
                &shared.displaced,
            ),
            (
                "admin_timeouts",
                "Connections to the admin listener that took too long to send a request or read the response.",
                &shared.timeouts,
            ),
            (
                "admin_refused_pages",
                "Requests that the admin listener refused because clients had not read earlier responses.",
                &shared.refused_pages,
            ),
            (
                "admin_unauthorized",
                "Requests that the admin listener refused for lack of a token.",
                &shared.unauthorized,
            ),
            (
                "admin_misdirected",
                "Requests that the admin listener refused because they were addressed to another name.",
                &shared.misdirected,
            ),
        ] {
            out.push(Sample::counter(name, help, load(counter)));
        }
    }
}

impl Shared {
    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// It asks something: others are now quieter.
    pub(super) fn touch(&self) {
        let mut seats = self.shared.seats();
        if let Some(task) = seats.taken.remove(&self.at.load(Ordering::Relaxed)) {
            seats.last += 1;
            self.at.store(seats.last, Ordering::Relaxed);
            let key = seats.last;
            seats.taken.insert(key, task);
        }
    }

    /// It took too long.
    pub(super) fn count_timeout(&self) {
        self.shared.timeouts.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // One that was displaced is not there any more.
        self.shared.seats().taken.remove(&self.at.load(Ordering::Relaxed));
    }
}
