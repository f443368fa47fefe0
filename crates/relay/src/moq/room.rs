//! A room: its broadcasts by path, and the limits of what it keeps.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use expressway_gateway::quic::Waker;

use super::broadcast::Broadcast;
use super::cache::{Cache, Gone};
use super::track::Track;
use super::wakers::Wakers;
use crate::status::{MoqCounters, MoqGauges};

/// Broadcasts of a path that were replaced and are remembered.
const FORMER: usize = 4;

/// What sessions may take of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Broadcasts of the room.
    pub broadcasts: usize,
    /// Tracks of a broadcast.
    pub tracks: usize,
    /// Subscriptions and other requests of a session at a time.
    pub subscriptions: usize,
    /// Bytes of a track that are kept.
    pub track_cache: usize,
    /// Bytes of all tracks of a room that are kept.
    pub room_cache: usize,
    /// Bytes of a frame.
    pub frame: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            broadcasts: 64,
            tracks: 64,
            subscriptions: 128,
            track_cache: 16 << 20,
            room_cache: 64 << 20,
            frame: 4 << 20,
        }
    }
}

/// Has a session go on, from any thread.
pub trait Wake: std::fmt::Debug + Send + Sync {
    /// Wakes it.
    fn wake(&self);
}

impl Wake for Waker {
    fn wake(&self) {
        Waker::wake(self);
    }
}

impl Limits {
    /// Broadcasts of a session: one alone does not take all that the room may have.
    pub fn session_broadcasts(&self) -> usize {
        self.broadcasts.div_ceil(2)
    }
}

/// A room.
#[derive(Debug)]
pub struct Room {
    /// Its name.
    pub name: Box<str>,
    /// What may be taken of it.
    pub limits: Limits,
    /// What has happened in it.
    pub counters: MoqCounters,
    /// What it is like.
    pub gauges: MoqGauges,
    pub(super) cache: Cache,
    track_numbers: AtomicU64,
    state: Mutex<State>,
    /// What is left to do, and how much of that. Any other lock of the room's is taken before this one.
    rest: Mutex<Rests>,
    rests: AtomicUsize,
}

/// Work that is too much for one turn, and left to a session that does it between other work.
#[derive(Debug)]
pub(super) enum Rest {
    /// Those who follow a track are to be woken.
    Followers(Weak<Track>),
    /// Those who hear of broadcasts are to be woken.
    Watchers,
    /// The cache has chunks that are not kept any more.
    Chunks,
}

#[derive(Debug, Default)]
struct Rests {
    /// Of each track's followers, of watchers and of chunks one at most.
    queue: VecDeque<Rest>,
    /// Chunks are in it, or are being dropped.
    has_chunks: bool,
    /// A session does it.
    is_taken: bool,
}

#[derive(Debug, Default)]
struct State {
    broadcasts: BTreeMap<Box<str>, Arc<Broadcast>>,
    /// What they have replaced and whose publishers still announce it, by path, the latest last.
    former: HashMap<Box<str>, Vec<Arc<Broadcast>>>,
    watchers: Wakers,
}

/// A room has as many broadcasts as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

impl Room {
    /// An empty one.
    pub fn new(name: &str, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            limits,
            counters: MoqCounters::default(),
            gauges: MoqGauges::default(),
            cache: Cache::new(limits.room_cache),
            track_numbers: AtomicU64::new(0),
            state: Mutex::default(),
            rest: Mutex::default(),
            rests: AtomicUsize::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are kept.
    pub fn cached(&self) -> usize {
        self.cache.held()
    }

    pub(super) fn track_number(&self) -> u64 {
        self.track_numbers.fetch_add(1, Relaxed)
    }

    /// A number for a broadcast, or for its publisher, that is not of a session: theirs count from 0.
    pub(super) fn local_number(&self) -> u64 {
        1 << 63 | self.track_number()
    }

    fn lock_rest(&self) -> MutexGuard<'_, Rests> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves work to a session of the room.
    pub(super) fn leave(&self, rest: Rest) {
        let mut rests = self.lock_rest();
        rests.queue.push_back(rest);
        self.rests.store(rests.queue.len(), Relaxed);
    }

    /// Drops chunks that are not kept any more; many are dropped in pieces.
    pub(super) fn discard(&self, gone: Gone) {
        if self.cache.discard(gone) {
            self.leave_chunks();
        }
    }

    fn leave_chunks(&self) {
        if !std::mem::replace(&mut self.lock_rest().has_chunks, true) {
            self.leave(Rest::Chunks);
        }
    }

    /// Takes on the work that is left, if there is some and nobody has. True: the caller does [some](Self::do_some) of it until none is left.
    pub(super) fn take_rest(&self) -> bool {
        if self.rests.load(Relaxed) == 0 {
            return false;
        }
        let mut rests = self.lock_rest();
        !rests.queue.is_empty() && !std::mem::replace(&mut rests.is_taken, true)
    }

    /// Does a piece of the work that is left. False: there is no more.
    pub(super) fn do_some(&self) -> bool {
        let first = self.lock_rest().queue.pop_front();
        let again = first.and_then(|rest| self.go_on(rest));
        let mut rests = self.lock_rest();
        rests.queue.extend(again);
        self.rests.store(rests.queue.len(), Relaxed);
        rests.is_taken = !rests.queue.is_empty();
        rests.is_taken
    }

    /// Does a piece of some work; what is left of it.
    fn go_on(&self, rest: Rest) -> Option<Rest> {
        match rest {
            Rest::Followers(track) => {
                let is_left = track.upgrade().is_some_and(|track| track.wake_some());
                is_left.then_some(Rest::Followers(track))
            }
            Rest::Watchers => self.lock().watchers.go_on().then_some(Rest::Watchers),
            Rest::Chunks => {
                self.cache.drop_some();
                // Who brings more looks at this behind it.
                let mut rests = self.lock_rest();
                rests.has_chunks = self.cache.has_gone();
                rests.has_chunks.then_some(Rest::Chunks)
            }
        }
    }

    /// Tells those who hear of broadcasts; where they are many, a session of the room goes on with them.
    fn stir(&self, state: &mut State) {
        if state.watchers.stir() {
            self.leave(Rest::Watchers);
        }
    }

    /// Adds a broadcast, in place of one with that path, which is returned for its tracks to be ended.
    ///
    /// # Errors
    /// There are too many.
    pub fn announce(&self, broadcast: Arc<Broadcast>) -> Result<Option<Arc<Broadcast>>, TooMany> {
        let mut state = self.lock();
        let is_known = state.broadcasts.contains_key(&broadcast.path);
        if !is_known && state.broadcasts.len() >= self.limits.broadcasts {
            return Err(TooMany);
        }
        let former = state.broadcasts.insert(broadcast.path.clone(), broadcast);
        self.gauges.broadcasts.store(state.broadcasts.len() as u64, Relaxed);
        self.stir(&mut state);
        if let Some(former) = &former {
            let all = state.former.entry(former.path.clone()).or_default();
            if all.len() >= FORMER {
                all.remove(0);
            }
            all.push(Arc::clone(former));
        }
        drop(state);
        if let Some(former) = &former {
            self.counters.replaced.fetch_add(1, Relaxed);
            former.end();
        }
        Ok(former)
    }

    /// A publisher does not announce a broadcast any more. One that it had replaced is there again, under `number`. Returns what was taken
    /// away: that broadcast, or what it was when it was there again.
    pub fn retract(&self, broadcast: &Broadcast, number: u64) -> Option<Arc<Broadcast>> {
        let is_same = |other: &Broadcast| {
            other.publisher.id == broadcast.publisher.id && other.own_path == broadcast.own_path
        };
        let path = &broadcast.path;
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(all) = state.former.get_mut(path) {
            all.retain(|former| !is_same(former));
        }
        let is_current = state.broadcasts.get(path).is_some_and(|current| is_same(current));
        let mut taken = None;
        if is_current {
            taken = state.broadcasts.remove(path);
            if let Some(former) = state.former.get_mut(path).and_then(Vec::pop) {
                // Who had subscribed was told that it was over: it is another one.
                let again = Broadcast::new(
                    number,
                    (path, &former.own_path),
                    former.hops.clone(),
                    Arc::clone(&former.publisher),
                );
                state.broadcasts.insert(path.clone(), again);
            }
            self.gauges.broadcasts.store(state.broadcasts.len() as u64, Relaxed);
            self.stir(state);
        }
        if state.former.get(path).is_some_and(Vec::is_empty) {
            state.former.remove(path);
        }
        taken
    }

    /// The broadcast with that path.
    pub fn find(&self, path: &str) -> Option<Arc<Broadcast>> {
        self.lock().broadcasts.get(path).cloned()
    }

    /// All broadcasts, by path.
    pub fn broadcasts(&self) -> Vec<Arc<Broadcast>> {
        self.lock().broadcasts.values().cloned().collect()
    }

    /// The next broadcasts behind a path, in the order of their paths, so many at most.
    pub fn broadcasts_after(&self, path: Option<&str>, most: usize) -> Vec<Arc<Broadcast>> {
        let from = path.map_or(Bound::Unbounded, Bound::Excluded);
        let state = self.lock();
        let behind = state.broadcasts.range::<str, _>((from, Bound::Unbounded));
        behind.take(most).map(|(_, broadcast)| Arc::clone(broadcast)).collect()
    }

    /// Has `waker` woken when broadcasts come or go.
    pub fn watch(&self, waker: impl Wake + 'static) -> usize {
        self.lock().watchers.add(waker)
    }

    /// A watcher has been woken: what changes from now on wakes it again.
    pub fn look(&self, watcher: usize) {
        self.lock().watchers.look(watcher);
    }

    /// It is not to be woken any more.
    pub fn unwatch(&self, watcher: usize) {
        self.lock().watchers.remove(watcher);
    }
}

#[cfg(test)]
impl Wake for Arc<AtomicUsize> {
    fn wake(&self) {
        self.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moq::broadcast::Publisher;
    use crate::moq::track::End;
    use crate::moq::wire::stream_code;

    fn publisher(id: u64) -> Arc<Publisher> {
        Publisher::new(id, Arc::new(AtomicUsize::new(0)))
    }

    fn broadcast(number: u64, publisher: &Arc<Publisher>) -> Arc<Broadcast> {
        Broadcast::new(number, ("cam", "cam"), Vec::new(), Arc::clone(publisher))
    }

    #[test]
    fn a_broadcast_that_is_over_gets_no_more_tracks() {
        let room = Room::new("studio", Limits::default());
        let broadcast = broadcast(1, &publisher(0));
        let track = broadcast.track(&room, "video").unwrap();
        assert!(Arc::ptr_eq(&broadcast.track(&room, "video").unwrap(), &track));
        assert!(!broadcast.is_closed());
        while broadcast.close_one() {}
        assert_eq!(track.end(), Some(End::Failed(stream_code::SESSION_CLOSED)));
        assert!(broadcast.is_closed() && broadcast.track(&room, "audio").is_err());
        assert!(broadcast.tracks().is_empty());
    }

    #[test]
    fn one_in_place_of_another_ends_it() {
        let room = Room::new("studio", Limits { broadcasts: 1, ..Limits::default() });
        let (former, next) = (broadcast(1, &publisher(0)), broadcast(2, &publisher(1)));
        assert!(room.announce(Arc::clone(&former)).unwrap().is_none());
        let tracks = ["a", "b"].map(|name| former.track(&room, name).unwrap());
        let replaced = room.announce(Arc::clone(&next)).unwrap().unwrap();
        assert!(Arc::ptr_eq(&replaced, &former) && former.track(&room, "c").is_err());
        let ended = || tracks.iter().filter(|track| track.end().is_some()).count();
        for count in 1..=2 {
            assert!(replaced.close_one());
            assert_eq!(ended(), count, "one at a time");
        }
        assert!(!replaced.close_one());
        assert!(Arc::ptr_eq(&room.find("cam").unwrap(), &next));
        let path = ("other", "other");
        let more = Broadcast::new(3, path, Vec::new(), publisher(2));
        assert_eq!(room.announce(more).unwrap_err(), TooMany);
    }

    #[test]
    fn one_that_was_replaced_is_there_again_when_the_other_is_gone() {
        let room = Room::new("studio", Limits::default());
        let publishers: Vec<_> = (0..3).map(publisher).collect();
        let all: Vec<_> = (0..3).map(|number| broadcast(number, &publishers[number as usize])).collect();
        for broadcast in &all {
            room.announce(Arc::clone(broadcast)).unwrap();
        }
        let woken = Arc::new(AtomicUsize::new(0));
        room.watch(Arc::clone(&woken));
        // One that is not there any more does not come back.
        assert!(room.retract(&all[1], 10).is_none());
        assert_eq!(woken.load(Relaxed), 0);
        assert!(Arc::ptr_eq(&room.retract(&all[2], 11).unwrap(), &all[2]));
        let again = room.find("cam").unwrap();
        assert_eq!((again.number, again.publisher.id, woken.load(Relaxed)), (11, 0, 1));
        assert!(!again.is_closed() && again.track(&room, "video").is_ok());
        assert!(Arc::ptr_eq(&room.retract(&all[0], 12).unwrap(), &again));
        assert!(room.find("cam").is_none() && room.lock().former.is_empty());
        // So many are remembered at most.
        let many: Vec<_> = (0..10).map(|number| broadcast(number, &publisher(number))).collect();
        for broadcast in &many {
            room.announce(Arc::clone(broadcast)).unwrap();
        }
        assert_eq!(room.lock().former["cam"].len(), FORMER);
        for broadcast in many.iter().rev() {
            room.retract(broadcast, 100);
        }
        assert!(room.broadcasts().is_empty() && room.lock().former.is_empty());
        for (limit, share) in [(1, 1), (2, 1), (64, 32)] {
            let limits = Limits { broadcasts: limit, ..Limits::default() };
            assert_eq!(limits.session_broadcasts(), share);
        }
    }

    #[test]
    fn what_is_asked_of_a_session_that_is_over_ends() {
        let room = Room::new("studio", Limits::default());
        let publisher = publisher(0);
        let [first, second] = ["a", "b"].map(|name| Track::new(Arc::clone(&room), "cam", name));
        publisher.ask(&first);
        assert_eq!(first.end(), None);
        assert!(publisher.close_one() && !publisher.close_one());
        assert_eq!(first.end(), Some(End::Failed(stream_code::SESSION_CLOSED)));
        publisher.ask(&second);
        assert_eq!(second.end(), Some(End::Failed(stream_code::SESSION_CLOSED)));
        assert!(publisher.next().is_none());
    }
}
