//! All playlists for which requests wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::watch::Watch;
use super::{Entered, HlsOptions, Wanted};
use crate::Wake;
use crate::files::FileStore;
use crate::files::lookup::Tree;
use crate::timer::Alarms;
use expressway_metrics::{Metric, count, counters};

/// Playlists that are remembered though nobody waits for them, for those who come back, and for their hints.
const MAX_WATCHES: usize = 4096;

counters! {
    /// What became of requests that waited for playlists.
    pub(super) struct HoldCounters {
        /// Requests held for a playlist that did not have what they asked for yet, or for what it hinted at.
        pub(super) hls_held: AtomicU64,
        /// Held requests that were given up after three target durations (503).
        pub(super) hls_timeouts: AtomicU64,
        /// Requests for segments too far in the future (400).
        pub(super) hls_refused: AtomicU64,
        /// Requests that would have had to be held when as many were as may be (503).
        pub(super) hls_full: AtomicU64,
        /// Playlists read because they had changed while requests waited for them.
        pub(super) hls_playlists_read: AtomicU64,
    }
}

/// The root and the path of a file.
pub(super) type Key = (u64, Arc<[u8]>);

#[derive(Debug, Default)]
pub(super) struct Watches {
    by_path: HashMap<Key, Arc<Watch>>,
    /// By what their playlists hint at.
    by_hint: HashMap<Key, Arc<Watch>>,
}

/// Everything that is waited for. Locked before any watch.
#[derive(Debug)]
pub(crate) struct Holds {
    watches: Mutex<Watches>,
    pub(super) counters: HoldCounters,
    /// Requests that wait.
    pub(super) waiting: AtomicU64,
    pub(super) alarms: Alarms,
}

impl Holds {
    pub(crate) fn new(alarms: Alarms) -> Self {
        Self {
            watches: Mutex::default(),
            counters: HoldCounters::default(),
            waiting: AtomicU64::new(0),
            alarms,
        }
    }

    /// Nothing in the lock unwinds, so a poisoned state is still consistent.
    pub(super) fn lock(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a playlist, unless it has what is wanted.
    pub(in crate::files) fn wait(
        &self,
        store: &Arc<FileStore>,
        (tree, options): (&Arc<Tree>, HlsOptions),
        path: &[u8],
        wanted: Wanted,
        wake: &Wake,
    ) -> Entered {
        let key: Key = (tree.root.id, path.into());
        let mut watches = self.lock();
        let watch = match watches.by_path.get(&key) {
            Some(watch) => Arc::clone(watch),
            // A playlist that nobody gets to wait for is not remembered.
            None if self.is_full(tree, options) => return Entered::Full,
            None => {
                let watch = Watch::new(store, tree, Arc::clone(&key.1), options);
                watches.by_path.insert(key, Arc::clone(&watch));
                watch
            }
        };
        watch.enter(self, wanted, wake)
    }

    /// As many requests of a site are held as may be, which is counted. They do not become more while the list is locked.
    pub(super) fn is_full(&self, tree: &Tree, options: HlsOptions) -> bool {
        let is_full = tree.held.load(Ordering::Relaxed) >= options.max_held;
        if is_full {
            count(&self.counters.hls_full);
        }
        is_full
    }

    /// Waits for a file if a playlist hints at it.
    pub(in crate::files) fn wait_hinted(&self, root: u64, path: &[u8], wake: &Wake) -> Entered {
        let watches = self.lock();
        if watches.by_hint.is_empty() {
            return Entered::AtOnce;
        }
        match watches.by_hint.get(&(root, path.into())) {
            Some(watch) => Arc::clone(watch).enter(self, Wanted::Hinted(path.into()), wake),
            None => Entered::AtOnce,
        }
    }

    pub(crate) fn metrics(&self) -> impl Iterator<Item = Metric> + use<> {
        let playlists = self.lock().by_path.len() as u64;
        let gauge = Metric::gauge;
        let levels = [
            gauge("hls_requests_held", "Requests held.", self.waiting.load(Ordering::Relaxed)),
            gauge(
                "hls_playlists_watched",
                "Playlists that requests are waiting for, or waited for recently.",
                playlists,
            ),
        ];
        self.counters.fields().into_iter().chain(levels)
    }
}

impl Watches {
    /// `watch` hints at other files than before.
    pub(super) fn change_hints(&mut self, watch: &Arc<Watch>, old: &[Box<[u8]>], new: &[Box<[u8]>]) {
        for path in old {
            let key = (watch.root(), path.as_ref().into());
            if self.by_hint.get(&key).is_some_and(|known| Arc::ptr_eq(known, watch)) {
                self.by_hint.remove(&key);
            }
        }
        for path in new {
            self.by_hint.insert((watch.root(), path.as_ref().into()), Arc::clone(watch));
        }
    }

    /// Forgets a playlist.
    pub(super) fn remove(&mut self, watch: &Arc<Watch>, hints: &[Box<[u8]>]) {
        self.change_hints(watch, hints, &[]);
        let key = (watch.root(), Arc::clone(&watch.path));
        if self.by_path.get(&key).is_some_and(|known| Arc::ptr_eq(known, watch)) {
            self.by_path.remove(&key);
        }
    }

    /// The watch itself, if it is still one.
    pub(super) fn of(&self, watch: &Watch) -> Option<Arc<Watch>> {
        let known = self.by_path.get(&(watch.root(), Arc::clone(&watch.path)))?;
        std::ptr::eq(Arc::as_ptr(known), watch).then(|| Arc::clone(known))
    }

    /// One more may be remembered for its hints.
    pub(super) fn has_room(&self) -> bool {
        self.by_path.len() <= MAX_WATCHES
    }
}
