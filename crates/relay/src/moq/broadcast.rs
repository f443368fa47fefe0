//! A broadcast and its tracks, and how others see the session, or the bridge, that publishes it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::room::{Room, Wake};
use super::track::{End, Track};
use super::wire::{TrackInfo, stream_code};

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
    /// It has all tracks that it will have but those that its publisher adds: nothing else is asked of that.
    is_fixed: bool,
    /// The broadcast is over: it gets no more tracks.
    is_closed: bool,
}

/// There is no such track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTrack {
    /// There are too many that somebody follows.
    TooMany,
    /// Its publisher has none of that name, or the broadcast is over.
    NotFound,
}

/// A session that publishes, as those see it who want something of it.
#[derive(Debug)]
pub struct Publisher {
    /// Tells sessions apart.
    pub id: u64,
    /// `None`: it is no session, and publishes without being asked.
    waker: Option<Box<dyn Wake>>,
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
        Arc::new(Self { id, waker: Some(Box::new(waker)), queue: Mutex::default() })
    }

    /// One that is no session.
    pub(super) fn local(id: u64) -> Arc<Self> {
        Arc::new(Self { id, waker: None, queue: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the session look at a track; ends the track if the session is over.
    pub fn ask(&self, track: &Arc<Track>) {
        let Some(waker) = &self.waker else { return };
        let mut queue = self.lock();
        if queue.is_closed {
            drop(queue);
            track.finish(End::Failed(stream_code::SESSION_CLOSED));
        } else if track.enqueue() {
            queue.tracks.push_back(Arc::clone(track));
            drop(queue);
            waker.wake();
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

    /// The track of that name, as long as it has not ended, or a new one.
    ///
    /// # Errors
    /// There is none, and there will be none.
    pub fn track(&self, room: &Arc<Room>, name: &str) -> Result<Arc<Track>, NoTrack> {
        let mut guard = self.lock();
        let (is_closed, is_fixed) = (guard.is_closed, guard.is_fixed);
        let tracks = &mut guard.by_name;
        if let Some(track) = tracks.get(name).filter(|track| track.end().is_none() && !is_closed) {
            return Ok(Arc::clone(track));
        }
        if is_closed || is_fixed {
            return Err(NoTrack::NotFound);
        }
        if tracks.len() >= room.limits.tracks && !tracks.contains_key(name) {
            tracks.retain(|_, track| !track.is_idle());
            if tracks.len() >= room.limits.tracks {
                return Err(NoTrack::TooMany);
            }
        }
        let track = Track::new(Arc::clone(room), &self.own_path, name);
        tracks.insert(name.into(), Arc::clone(&track));
        Ok(track)
    }

    /// Adds a track that its publisher has whether somebody asks for it or not; `None`: the broadcast is over.
    pub(super) fn add(&self, room: &Arc<Room>, name: &str, info: TrackInfo) -> Option<Arc<Track>> {
        let mut tracks = self.lock();
        if tracks.is_closed {
            return None;
        }
        let new = || Track::new(Arc::clone(room), &self.own_path, name);
        let track = Arc::clone(tracks.by_name.entry(name.into()).or_insert_with(new));
        drop(tracks);
        track.set_info(info);
        Some(track)
    }

    /// It has all tracks that it will have but those that are [added](Self::add). Others that were asked for are not there.
    pub(super) fn fix(&self) {
        let mut tracks = self.lock();
        tracks.is_fixed = true;
        let (own, others): (HashMap<_, _>, HashMap<_, _>) =
            tracks.by_name.drain().partition(|(_, track)| track.info().is_some());
        tracks.by_name = own;
        drop(tracks);
        others.into_values().for_each(|track| track.finish(End::Failed(stream_code::NOT_FOUND)));
    }

    /// It gets no more tracks; those that there are go on.
    pub(super) fn end(&self) {
        self.lock().is_closed = true;
    }

    /// It is over.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Its tracks that something is or was asked of.
    pub fn tracks(&self) -> Vec<Arc<Track>> {
        self.lock().by_name.values().cloned().collect()
    }

    /// It is over: ends one of its tracks. False: there is none any more.
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
