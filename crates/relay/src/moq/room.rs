//! A room: its broadcasts, by path, and the limits of what it keeps.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use expressway_gateway::quic::Waker;
use slab::Slab;

use super::track::{End, Track};
use super::wire::stream_code;
use crate::status::{MoqCounters, MoqGauges};

/// Broadcasts of a path that were replaced and are remembered.
const FORMER: usize = 4;

/// Tracks that lose groups for one chunk at most.
const VICTIMS: usize = 64;

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
    cached: AtomicUsize,
    track_numbers: AtomicU64,
    /// Tracks with something to evict, by the bytes of that and their number. A track's lock is taken before this one, never within.
    evictable: Mutex<BTreeMap<(usize, u64), Weak<Track>>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    broadcasts: BTreeMap<Box<str>, Arc<Broadcast>>,
    /// What they have replaced and whose publishers still announce it, by path, the latest last.
    former: HashMap<Box<str>, Vec<Arc<Broadcast>>>,
    watchers: Slab<Watcher>,
}

#[derive(Debug)]
struct Watcher {
    waker: Box<dyn Wake>,
    is_woken: bool,
}

/// A room has as many broadcasts as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// A broadcast that is announced.
#[derive(Debug)]
pub struct Broadcast {
    /// Tells it from others that had or will have its path.
    pub number: u64,
    /// Its path within the room.
    pub path: Box<str>,
    /// Its path as its publisher knows it.
    pub own_path: Box<str>,
    /// Relays that it has passed.
    pub hops: Vec<u64>,
    /// The session that publishes it.
    pub publisher: Arc<Publisher>,
    tracks: Mutex<Tracks>,
}

#[derive(Debug, Default)]
struct Tracks {
    by_name: HashMap<Box<str>, Arc<Track>>,
    /// The broadcast is over: it gets no more tracks.
    is_closed: bool,
}

/// A session that publishes, as those see it who want something of it.
#[derive(Debug)]
pub struct Publisher {
    /// Tells sessions apart.
    pub id: u64,
    waker: Box<dyn Wake>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Tracks of which something is wanted or not any more, each once.
    tracks: VecDeque<Arc<Track>>,
    /// The session is over: nobody looks at them.
    is_closed: bool,
}

impl Publisher {
    /// A session that `waker` wakes.
    pub fn new(id: u64, waker: impl Wake + 'static) -> Arc<Self> {
        Arc::new(Self { id, waker: Box::new(waker), queue: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the session look at a track; ends the track if the session is over.
    pub fn ask(&self, track: &Arc<Track>) {
        let mut queue = self.lock();
        if queue.is_closed {
            drop(queue);
            track.finish(End::Failed(stream_code::SESSION_CLOSED));
        } else if track.enqueue() {
            queue.tracks.push_back(Arc::clone(track));
            drop(queue);
            self.waker.wake();
        }
    }

    /// The next track to look at.
    pub fn next(&self) -> Option<Arc<Track>> {
        let track = self.lock().tracks.pop_front();
        track.inspect(|track| track.dequeue())
    }

    /// The session is over: ends one of the tracks that wait for it. False: there is none any more.
    pub fn close_one(&self) -> bool {
        self.lock().is_closed = true;
        let Some(track) = self.next() else { return false };
        track.finish(End::Failed(stream_code::SESSION_CLOSED));
        true
    }
}

impl Room {
    /// An empty one.
    pub fn new(name: &str, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            limits,
            counters: MoqCounters::default(),
            gauges: MoqGauges::default(),
            cached: AtomicUsize::new(0),
            track_numbers: AtomicU64::new(0),
            evictable: Mutex::default(),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are kept.
    pub fn cached(&self) -> usize {
        self.cached.load(Relaxed)
    }

    /// Takes so many bytes of what may be kept. False: so many are not left.
    pub(super) fn reserve(&self, bytes: usize) -> bool {
        let most = self.limits.room_cache;
        let taken = self.cached.fetch_update(Relaxed, Relaxed, |cached| {
            cached.checked_add(bytes).filter(|cached| *cached <= most)
        });
        taken.is_ok()
    }

    pub(super) fn release(&self, bytes: usize) {
        self.cached.fetch_sub(bytes, Relaxed);
    }

    /// The same, in place of old groups of those tracks that keep the most of these. False: there are not enough old groups.
    pub(super) fn make_room(&self, bytes: usize) -> bool {
        for _ in 0..VICTIMS {
            if self.reserve(bytes) {
                return true;
            }
            let mut evictable = self.evictable.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((_, track)) = evictable.last_key_value() else { break };
            let track = track.upgrade();
            if track.is_none() {
                // It is being dropped.
                evictable.pop_last();
            }
            drop(evictable);
            if let Some(track) = track {
                track.make_room(bytes);
            }
        }
        self.reserve(bytes)
    }

    pub(super) fn track_number(&self) -> u64 {
        self.track_numbers.fetch_add(1, Relaxed)
    }

    /// A track has so many bytes that may be evicted, and had `former`.
    pub(super) fn account(&self, (number, track): (u64, &Weak<Track>), former: usize, bytes: usize) {
        if former == bytes {
            return;
        }
        let mut evictable = self.evictable.lock().unwrap_or_else(PoisonError::into_inner);
        evictable.remove(&(former, number));
        if bytes > 0 {
            evictable.insert((bytes, number), Weak::clone(track));
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
        state.wake();
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
            former.lock().is_closed = true;
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
            state.wake();
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

    /// Has `waker` woken when broadcasts come or go.
    pub fn watch(&self, waker: impl Wake + 'static) -> usize {
        self.lock().watchers.insert(Watcher { waker: Box::new(waker), is_woken: false })
    }

    /// A watcher has been woken: what changes from now on wakes it again.
    pub fn look(&self, watcher: usize) {
        if let Some(watcher) = self.lock().watchers.get_mut(watcher) {
            watcher.is_woken = false;
        }
    }

    /// It is not to be woken any more.
    pub fn unwatch(&self, watcher: usize) {
        self.lock().watchers.try_remove(watcher);
    }
}

impl State {
    fn wake(&mut self) {
        for (_, watcher) in &mut self.watchers {
            if !std::mem::replace(&mut watcher.is_woken, true) {
                watcher.waker.wake();
            }
        }
    }
}

impl Broadcast {
    /// A broadcast of a session.
    pub fn new(
        number: u64,
        (path, own_path): (&str, &str),
        hops: Vec<u64>,
        publisher: Arc<Publisher>,
    ) -> Arc<Self> {
        let (path, own_path) = (path.into(), own_path.into());
        Arc::new(Self { number, path, own_path, hops, publisher, tracks: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Tracks> {
        self.tracks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The track of that name, as long as it has not ended, or a new one. `None`: there are too many that somebody follows,
    /// or the broadcast is over.
    pub fn track(&self, room: &Arc<Room>, name: &str) -> Option<Arc<Track>> {
        let mut guard = self.lock();
        if guard.is_closed {
            return None;
        }
        let tracks = &mut guard.by_name;
        if let Some(track) = tracks.get(name).filter(|track| track.end().is_none()) {
            return Some(Arc::clone(track));
        }
        if tracks.len() >= room.limits.tracks && !tracks.contains_key(name) {
            tracks.retain(|_, track| !track.is_idle());
            if tracks.len() >= room.limits.tracks {
                return None;
            }
        }
        let track = Track::new(Arc::clone(room), &self.own_path, name);
        tracks.insert(name.into(), Arc::clone(&track));
        Some(track)
    }

    /// It is over.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Its tracks that something is or was asked of.
    pub fn tracks(&self) -> Vec<Arc<Track>> {
        self.lock().by_name.values().cloned().collect()
    }

    /// It is over: so are its tracks.
    pub fn close(&self) {
        while self.close_one() {}
    }

    /// Ends one of its tracks. False: there is none any more.
    pub fn close_one(&self) -> bool {
        let mut tracks = self.lock();
        tracks.is_closed = true;
        let Some(name) = tracks.by_name.keys().next().cloned() else { return false };
        let track = tracks.by_name.remove(&name);
        drop(tracks);
        if let Some(track) = track {
            track.finish(End::Failed(stream_code::SESSION_CLOSED));
            self.publisher.ask(&track);
        }
        true
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
        broadcast.close();
        assert_eq!(track.end(), Some(End::Failed(stream_code::SESSION_CLOSED)));
        assert!(broadcast.is_closed() && broadcast.track(&room, "audio").is_none());
        assert!(broadcast.tracks().is_empty());
    }

    #[test]
    fn one_in_place_of_another_ends_it() {
        let room = Room::new("studio", Limits { broadcasts: 1, ..Limits::default() });
        let (former, next) = (broadcast(1, &publisher(0)), broadcast(2, &publisher(1)));
        assert!(room.announce(Arc::clone(&former)).unwrap().is_none());
        let tracks = ["a", "b"].map(|name| former.track(&room, name).unwrap());
        let replaced = room.announce(Arc::clone(&next)).unwrap().unwrap();
        assert!(Arc::ptr_eq(&replaced, &former) && former.track(&room, "c").is_none());
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
        assert!(!again.is_closed() && again.track(&room, "video").is_some());
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
