//! Broadcasts that no session publishes, but the relay itself.
//!
//! Their tracks are there without being asked for, and take what is written to them at once. While nobody follows one, it keeps its newest
//! group, so that who comes has something to begin with.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;
use expressway_h3::varint;

use super::broadcast::{Broadcast, Publisher};
use super::room::{Room, TooMany};
use super::track::{Appended, End, GroupId, Track};
use super::wire::TrackInfo;

/// Octets that [`LocalTrack::write`] needs free in front of an object, besides what the caller writes there: its time and its length.
const OWN_HEAD: usize = 2 * varint::MAX_LEN;
/// Octets that are free in front of a frame: its time once more, in front of the object's.
pub const HEAD: usize = OWN_HEAD + varint::MAX_LEN;

/// Tracks of another's broadcast that are ended at once.
const FORMER_TRACKS: usize = 64;

/// How a broadcast stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It goes on.
    Same,
    /// A session's has taken its place.
    Taken,
    /// It is there again after that, without tracks.
    Again,
    /// It is not there any more, and no other: too many had taken its place for it to be remembered.
    Gone,
}

/// A broadcast.
#[derive(Debug)]
pub struct LocalBroadcast {
    room: Arc<Room>,
    publisher: Arc<Publisher>,
    broadcast: Arc<Broadcast>,
    /// One that it has taken the place of, with tracks that are to be ended.
    former: Option<Arc<Broadcast>>,
}

impl LocalBroadcast {
    /// Nobody hears of it yet.
    pub fn new(room: &Arc<Room>, path: &str) -> Self {
        let publisher = Publisher::local(room.local_number());
        let broadcast = Broadcast::new(room.local_number(), (path, path), Vec::new(), Arc::clone(&publisher));
        broadcast.fix();
        Self { room: Arc::clone(room), publisher, broadcast, former: None }
    }

    /// It is there for all.
    ///
    /// # Errors
    /// The room has as many as it may have.
    pub fn announce(&mut self) -> Result<(), TooMany> {
        match self.room.announce(Arc::clone(&self.broadcast)) {
            Ok(former) => {
                self.former = former;
                self.room.counters.broadcasts.fetch_add(1, Relaxed);
                Ok(())
            }
            Err(TooMany) => {
                self.room.counters.refused_broadcast.fetch_add(1, Relaxed);
                Err(TooMany)
            }
        }
    }

    /// Ends some tracks of one that it has taken the place of, if there is one.
    pub fn end_former(&mut self) {
        for _ in 0..FORMER_TRACKS {
            match &self.former {
                Some(former) if former.close_one() => {}
                _ => return self.former = None,
            }
        }
    }

    /// A track, which is there from now on; `None`: the broadcast is over.
    pub fn track(&self, name: &str, info: TrackInfo) -> Option<LocalTrack> {
        let track = self.broadcast.add(&self.room, name, info)?;
        Some(LocalTrack { track, next: 0, group: None, time: 0 })
    }

    /// How it stands.
    pub fn standing(&mut self) -> Standing {
        if !self.broadcast.is_closed() {
            return Standing::Same;
        }
        match self.room.find(&self.broadcast.path) {
            Some(again) if again.publisher.id == self.publisher.id => {
                self.broadcast = again;
                Standing::Again
            }
            Some(_) => Standing::Taken,
            None => Standing::Gone,
        }
    }

    /// What it has had added is all there is of it. Needed where it is there [again](Standing::Again).
    pub fn fix(&self) {
        self.broadcast.fix();
    }
}

impl Drop for LocalBroadcast {
    fn drop(&mut self) {
        let again = self.room.retract(&self.broadcast, self.room.local_number());
        // They have a few tracks, but one that is there again may have been asked for more.
        while self.broadcast.close_one() {}
        while again.as_ref().is_some_and(|again| again.close_one()) {}
        while self.former.as_ref().is_some_and(|former| former.close_one()) {}
    }
}

/// A track, and the group that is written.
#[derive(Debug)]
pub struct LocalTrack {
    track: Arc<Track>,
    /// The number of the next group.
    next: u64,
    group: Option<GroupId>,
    /// Of the last object of the group.
    time: u64,
}

impl LocalTrack {
    /// Begins a group; the one before is complete. False: the track is over.
    pub fn begin(&mut self, now: Instant) -> bool {
        self.end_group();
        self.group = self.track.begin(self.next, now);
        self.next += 1;
        self.time = 0;
        if self.group.is_none() {
            return false;
        }
        self.track.room().counters.groups.fetch_add(1, Relaxed);
        self.track.give_up_unwanted();
        true
    }

    /// Writes an object that stands in `octets` from `begin` on, at least 16 octets behind their front. False: the group takes no more.
    pub fn write(&mut self, time: u64, mut octets: Vec<u8>, begin: usize) -> bool {
        let Some(group) = self.group else { return false };
        let difference = time as i64 - self.time as i64;
        self.time = time;
        let length = octets.len() - begin;
        let mut head = Vec::with_capacity(OWN_HEAD);
        // Zigzag: the sign is the lowest bit (draft-lcurley-moq-lite, FRAME).
        varint::write((difference << 1 ^ difference >> 63) as u64, &mut head);
        varint::write(length as u64, &mut head);
        let start = begin - head.len();
        octets[start..begin].copy_from_slice(&head);
        // What it has grown by in advance would not be counted.
        octets.shrink_to_fit();
        let object = Bytes::from(octets).slice(start..);
        let written = object.len() as u64;
        match self.track.append(group, object) {
            Appended::Kept => {
                let counters = &self.track.room().counters;
                counters.objects.fetch_add(1, Relaxed);
                counters.bytes.fetch_add(written, Relaxed);
                true
            }
            Appended::Unwanted(_) => {
                self.group = None;
                false
            }
        }
    }

    /// Writes a frame that stands in `octets` behind [`HEAD`], with its time in front as players want it (hang's container `legacy`).
    pub fn write_frame(&mut self, time: u64, mut octets: Vec<u8>) -> bool {
        let mut head = Vec::with_capacity(varint::MAX_LEN);
        varint::write(time, &mut head);
        let begin = HEAD - head.len();
        octets[begin..HEAD].copy_from_slice(&head);
        self.write(time, octets, begin)
    }

    /// The group is complete.
    pub fn end_group(&mut self) {
        if let Some(group) = self.group.take() {
            self.track.end_group(group, Ok(()));
        }
    }
}

impl Drop for LocalTrack {
    fn drop(&mut self) {
        self.end_group();
        if self.track.end().is_none() {
            self.track.finish(End::Complete(self.next));
        }
    }
}
