//! Fetches in progress, and URLs that bypass the cache.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderMap;
use quick_cache::sync::Cache;

use super::{Answer, Fill, Ticket};
use crate::key::Key;
use crate::object::Object;
use crate::policy;
use crate::throttle::Throttle;

/// URLs that are known not to share answers; more push out others, which are then found out again.
const THROTTLES: usize = 1 << 14;

/// Fetches, by what they are found by.
#[derive(Debug, Default)]
struct Running {
    /// Of a URL: by lane.
    heads: HashMap<u128, Vec<Arc<Fill>>>,
    /// Of a slice: by version and slice.
    slices: HashMap<(u64, u64), Arc<Fill>>,
    count: usize,
}

impl Running {
    fn forget_head(&mut self, fill: &Arc<Fill>) {
        if let Some(fills) = self.heads.get_mut(&fill.lane) {
            fills.retain(|other| !Arc::ptr_eq(other, fill));
            if fills.is_empty() {
                self.heads.remove(&fill.lane);
            }
        }
    }
}

/// All fetches of a cache.
#[derive(Debug)]
pub(crate) struct Table {
    running: Mutex<Running>,
    throttles: Cache<u128, Arc<Throttle>>,
    held: Arc<AtomicUsize>,
    most_fills: usize,
    most_waiters: usize,
}

/// How a request takes part in a fetch.
#[derive(Debug)]
pub(crate) enum Joined {
    /// As the one who has to start it.
    First(Arc<Fill>, Ticket),
    /// It waits, or reads an object that is arriving.
    Another(Ticket),
    /// There are too many.
    Full,
}

impl Table {
    pub(crate) fn new(most_fills: usize, most_waiters: usize) -> Self {
        Self {
            running: Mutex::default(),
            throttles: Cache::new(THROTTLES),
            held: Arc::default(),
            most_fills,
            most_waiters,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes part in the fetch of a URL that has no answer yet or one that is for a request with these fields, or begins one.
    /// `purges` is the number of the last purge. A fetch stores its response before it ends: `is_renewed` looks, once none is under way,
    /// whether one has since the request was looked up; then there is none to take part in.
    pub(crate) fn join_head(
        &self,
        key: &Key,
        (lane, purges): (u128, u64),
        request: &HeaderMap,
        old: Option<&Arc<Object>>,
        is_renewed: impl FnOnce() -> bool,
    ) -> Option<Joined> {
        let mut running = self.lock();
        for fill in running.heads.get(&lane).into_iter().flatten() {
            let is_for = match fill.answer() {
                None => true,
                // One that is stale already was for those who have waited for it.
                Some(Answer::Object(object, _)) => {
                    object.is_for(request)
                        && old.is_none_or(|old| old.version != object.version)
                        && object.freshness.left(policy::now()) > 0
                }
                Some(_) => false,
            };
            if is_for && fill.key == *key && fill.purges == purges && !fill.is_void() {
                return Some(fill.join(self.most_waiters).map_or(Joined::Full, Joined::Another));
            }
        }
        if is_renewed() {
            return None;
        }
        if running.count >= self.most_fills {
            return Some(Joined::Full);
        }
        let fill = Arc::new(Fill::new(key.clone(), lane, purges, Arc::clone(&self.held)));
        running.heads.entry(lane).or_default().push(Arc::clone(&fill));
        running.count += 1;
        let ticket = fill.ticket();
        Some(Joined::First(fill, ticket))
    }

    /// The same for a slice.
    pub(crate) fn join_slice(&self, key: &Key, version: u64, slice: u64) -> Joined {
        let mut running = self.lock();
        if let Some(fill) = running.slices.get(&(version, slice)) {
            return fill.join(self.most_waiters).map_or(Joined::Full, Joined::Another);
        }
        if running.count >= self.most_fills {
            return Joined::Full;
        }
        let fill = Arc::new(Fill::new(key.clone(), key.hash, 0, Arc::clone(&self.held)));
        running.slices.insert((version, slice), Arc::clone(&fill));
        running.count += 1;
        let ticket = fill.ticket();
        Joined::First(fill, ticket)
    }

    /// Takes part in the fetch of a slice if there is one.
    pub(crate) fn find_slice(&self, version: u64, slice: u64) -> Option<Ticket> {
        self.lock().slices.get(&(version, slice))?.join(self.most_waiters)
    }

    /// Has the fetch of a URL found as that of a slice, and no longer by its URL.
    pub(crate) fn turn_into_slice(&self, version: u64, slice: u64, fill: &Arc<Fill>) {
        let mut running = self.lock();
        running.slices.entry((version, slice)).or_insert_with(|| Arc::clone(fill));
        running.forget_head(fill);
    }

    /// The fetch is no longer found by its URL.
    pub(crate) fn forget_head(&self, fill: &Arc<Fill>) {
        self.lock().forget_head(fill);
    }

    /// The fetch is over; `slice` is the version and slice that it was found by.
    pub(crate) fn finish(&self, fill: &Arc<Fill>, slice: Option<(u64, u64)>) {
        let mut running = self.lock();
        running.forget_head(fill);
        if let Some(slice) = slice
            && running.slices.get(&slice).is_some_and(|other| Arc::ptr_eq(other, fill))
        {
            running.slices.remove(&slice);
        }
        running.count -= 1;
    }

    /// What is being fetched of a URL is not to be kept.
    pub(crate) fn void(&self, hash: u128) {
        for lane in [hash, authorized(hash)] {
            for fill in self.lock().heads.get(&lane).into_iter().flatten() {
                fill.void();
            }
        }
    }

    /// The throttle of a lane whose answers cannot be shared now.
    pub(crate) fn throttle(&self, lane: u128, now: u64) -> Option<Arc<Throttle>> {
        self.throttles.get(&lane).filter(|throttle| throttle.is_open(now))
    }

    pub(crate) fn set_throttle(&self, lane: u128, throttle: &Arc<Throttle>) {
        self.throttles.insert(lane, Arc::clone(throttle));
    }

    /// Octets of blocks that fetches hold.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Fetches under way, and who waits for them.
    pub(crate) fn levels(&self) -> (usize, usize) {
        let running = self.lock();
        let all = running.heads.values().flatten().chain(running.slices.values());
        (running.count, all.map(|fill| fill.readers()).sum())
    }
}

/// The lane of requests with credentials, whose answers are seldom for others.
pub(crate) fn authorized(hash: u128) -> u128 {
    hash ^ 0x5bd1_e995_7f4a_7c15_85eb_ca6b_c2b2_ae35
}
