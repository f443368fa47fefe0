//! A track: the groups of it that are kept, and its subscribers.
//!
//! ```text
//!  publisher's session ─▶ append ─▶ group: chunks, as they came ─┬▶ GroupCursor of a subscriber ─▶ its stream
//!                                    (one copy for all)          └▶ …
//! ```
//!
//! A group is kept as the bytes of its frames, in the order in which they arrived. Nothing is reassembled for a subscriber: its QUIC packets
//! take the bytes from the same buffers. What is kept is bounded in bytes, of the track and of the room, and in groups. The oldest group is
//! evicted first: of the track itself, or if the room is full, of the track that [`Cache`](super::cache::Cache) names. A single group that
//! exceeds the limit ends there. A track that has ended keeps its groups for its remaining subscribers. Sessions are on several workers, so
//! a track has a lock, which is held for one chunk at a time.

mod group;

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::cache::{CHUNK, Gone, Kept};
use super::room::{Rest, Room, Wake};
use super::wakers::Wakers;
use super::wire::{TrackInfo, stream_code};
use group::Group;

pub use group::{Appended, GroupCursor, GroupId, Next};

/// Groups that are kept of a track at most.
pub const GROUPS: usize = 256;
/// Sessions and fetches that follow one track at most.
pub const FOLLOWERS: usize = 4096;

/// A track of a broadcast.
#[derive(Debug)]
pub struct Track {
    /// The path of the broadcast as its publisher knows it.
    pub broadcast: Box<str>,
    /// Its name.
    pub name: Box<str>,
    room: Arc<Room>,
    /// Tells it from others of the room.
    number: u64,
    this: Weak<Track>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    info: Option<TrackInfo>,
    /// It will get nothing more.
    end: Option<End>,
    /// By ascending number.
    groups: VecDeque<Group>,
    /// Groups that were ever begun.
    begun: u64,
    /// What they take.
    bytes: usize,
    /// The same as the room knows it.
    kept: Kept,
    /// The highest number that was ever seen.
    newest: Option<u64>,
    followers: Wakers,
    /// Keys of those of them who want what is to come.
    subscribers: HashSet<usize>,
    /// The publisher's session has it in its queue.
    is_queued: bool,
}

/// Numbers that a subscriber remembers as missing.
const MISSING: usize = 64;

/// How far a subscriber has got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Behind the highest number of a group that it has begun; `None`: it has none.
    pub next: Option<u64>,
    /// Groups below are not begun any more: the connection has not taken one that became too old.
    pub floor: Option<u64>,
    /// Numbers below `next` of groups that had not come when a later one had, ascending.
    missing: Vec<u64>,
}

impl Progress {
    /// A subscriber that is to have all groups from one on, or from the newest on.
    pub fn from(next: Option<u64>) -> Self {
        Self { next, ..Self::default() }
    }

    /// A group was begun. Those between are `lost`, or missing.
    pub fn advance(&mut self, sequence: u64, is_lost: bool) {
        if let Ok(at) = self.missing.binary_search(&sequence) {
            self.missing.remove(at);
            return;
        }
        if let Some(next) = self.next
            && !is_lost
        {
            self.missing.extend(next.max(sequence.saturating_sub(MISSING as u64))..sequence);
            let too_many = self.missing.len().saturating_sub(MISSING);
            self.missing.drain(..too_many);
        }
        self.next = self.next.max(sequence.checked_add(1));
    }
}

/// A group for a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Where it begins.
    pub cursor: GroupCursor,
    /// Groups that are kept, and passed over for it.
    pub passed: u64,
    /// The group at `next` does not come any more.
    pub is_lost: bool,
}

/// Why a track gets nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its publisher says that there is no group from this one on.
    Complete(u64),
    /// For this reason, a code of a stream.
    Failed(u64),
}

impl Track {
    /// A track of a broadcast in `room`, of which nothing is known.
    pub fn new(room: Arc<Room>, broadcast: &str, name: &str) -> Arc<Self> {
        room.gauges.tracks.fetch_add(1, Relaxed);
        Arc::new_cyclic(|this| Self {
            broadcast: broadcast.into(),
            name: name.into(),
            number: room.track_number(),
            room,
            this: Weak::clone(this),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its room.
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Adds somebody who is woken by what is new; one that `subscribes` has the publisher send. `None`: there are too many, or the track
    /// has ended.
    pub fn follow(&self, waker: impl Wake + 'static, subscribes: bool) -> Option<usize> {
        let mut state = self.lock();
        if state.followers.len() >= FOLLOWERS || state.end.is_some() {
            return None;
        }
        let key = state.followers.add(waker);
        if subscribes {
            state.subscribers.insert(key);
        }
        Some(key)
    }

    /// Takes it away. True: nobody wants the publisher to send any more, or nobody is left at all.
    pub fn unfollow(&self, key: usize) -> bool {
        let mut state = self.lock();
        if !state.followers.remove(key) {
            return false;
        }
        let subscribed = state.subscribers.remove(&key);
        self.clear_ended(&mut state);
        subscribed && state.subscribers.is_empty() || state.followers.is_empty()
    }

    /// Somebody wants the publisher to send.
    pub fn is_wanted(&self) -> bool {
        !self.lock().subscribers.is_empty()
    }

    /// Nobody follows it.
    pub fn is_idle(&self) -> bool {
        self.lock().followers.is_empty()
    }

    /// Takes the place in the publisher's queue. False: it has it already.
    pub fn enqueue(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_queued, true)
    }

    /// It has left the publisher's queue.
    pub fn dequeue(&self) {
        self.lock().is_queued = false;
    }

    /// What it is like, once that is known.
    pub fn info(&self) -> Option<TrackInfo> {
        self.lock().info
    }

    /// Says what it is like. False: that is known already, and stays.
    pub fn set_info(&self, info: TrackInfo) -> bool {
        let mut state = self.lock();
        if state.info.is_some() {
            return false;
        }
        state.info = Some(info);
        self.stir(&mut state);
        true
    }

    /// Whether it has ended.
    pub fn end(&self) -> Option<End> {
        self.lock().end
    }

    /// Ends it. Groups that are under way end by themselves, or with their session.
    pub fn finish(&self, end: End) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.end = Some(end);
            if let End::Failed(code) = end {
                for group in state.groups.iter_mut().filter(|group| group.end.is_none()) {
                    group.end = Some(Err(code));
                }
            }
            self.stir(&mut state);
            self.clear_ended(&mut state);
        }
    }

    /// Forgets what is kept: nobody follows it and its publisher has stopped.
    pub fn clear(&self) {
        let mut state = self.lock();
        self.forget(&mut state);
        state.newest = None;
    }

    /// Nobody new finds a track that has ended: what it keeps is for those who follow it.
    fn clear_ended(&self, state: &mut State) {
        if state.end.is_some() && state.followers.is_empty() {
            self.forget(state);
        }
    }

    fn forget(&self, state: &mut State) {
        state.bytes = 0;
        self.room.discard(state.groups.drain(..).map(|group| group.chunks).collect());
        self.account(state);
    }

    /// Has the room know what may be evicted.
    fn account(&self, state: &mut State) {
        let newest = state.groups.back().map_or(0, |group| group.bytes);
        let kept = Kept { old: state.bytes - newest, newest };
        let former = std::mem::replace(&mut state.kept, kept);
        self.room.cache.account((self.number, &self.this), former, kept);
    }

    /// Wakes those who follow it; where they are many, a session of the room goes on with them.
    fn stir(&self, state: &mut State) {
        if state.followers.stir() {
            self.room.leave(Rest::Followers(Weak::clone(&self.this)));
        }
    }

    /// Wakes some more of those who follow it. True: there are more.
    pub(super) fn wake_some(&self) -> bool {
        self.lock().followers.go_on()
    }

    /// Begins a group. `None`: it is known already, or older than all that is kept of many.
    pub fn begin(&self, sequence: u64, now: Instant) -> Option<GroupId> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let at = state.groups.partition_point(|group| group.id.sequence < sequence);
        let is_known = state.groups.get(at).is_some_and(|group| group.id.sequence == sequence);
        if is_known || state.end.is_some() || at == 0 && state.groups.len() >= GROUPS {
            return None;
        }
        for group in state.groups.range_mut(..at) {
            group.old_since.get_or_insert(now);
        }
        let old_since = state.newest.is_some_and(|newest| newest > sequence).then_some(now);
        let id = GroupId { sequence, tag: state.begun };
        state.begun += 1;
        state.groups.insert(at, Group { id, chunks: Vec::new(), bytes: 0, end: None, old_since });
        state.newest = state.newest.max(Some(sequence));
        if state.groups.len() > GROUPS {
            let gone = self.evict(state);
            self.room.discard(gone.into_iter().collect());
        }
        self.account(state);
        self.stir(state);
        Some(id)
    }

    /// Keeps octets of a group, where the room is full in place of what others keep.
    pub fn append(&self, group: GroupId, octets: Bytes) -> Appended {
        let cost = octets.len() + CHUNK;
        let mut guard = self.lock();
        let length = match guard.open(group) {
            Ok(at) => guard.groups[at].bytes + cost,
            Err(code) => return Appended::Unwanted(code),
        };
        let cache = &self.room.cache;
        let mut has_room = cache.reserve(cost);
        if !has_room {
            // No lock is held while others are looked at: what was true of the group may not be any more.
            drop(guard);
            has_room = cache.make_room(cost, length);
            guard = self.lock();
        }
        let state = &mut *guard;
        let limit = self.room.limits.track_cache;
        if has_room {
            self.evict_down_to(state, limit.saturating_sub(cost));
        }
        let appended = match state.open(group) {
            Ok(at) if has_room && state.bytes + cost <= limit => {
                let group = &mut state.groups[at];
                group.chunks.push(octets);
                group.bytes += cost;
                state.bytes += cost;
                Ok(())
            }
            Ok(at) => {
                self.cut(state, at);
                Err(stream_code::GROUP_TOO_LARGE)
            }
            Err(code) => Err(code),
        };
        if has_room && appended.is_err() {
            cache.release(cost);
        }
        self.account(state);
        self.stir(state);
        appended.map_or_else(Appended::Unwanted, |()| Appended::Kept)
    }

    /// Nobody follows it: only its newest group is kept. What a local publisher has is not asked for, and comes all the same.
    pub(super) fn give_up_unwanted(&self) {
        let mut state = self.lock();
        if !state.followers.is_empty() || state.groups.len() < 2 {
            return;
        }
        self.evict_down_to(&mut state, 0);
        self.account(&mut state);
        drop(state);
        // There may be no session to do that.
        self.room.cache.drop_some();
    }

    /// Gives up its oldest groups, but not its newest, until so many bytes are free.
    pub(super) fn give_up_old(&self, bytes: usize) {
        let mut state = self.lock();
        let enough = state.bytes.saturating_sub(bytes);
        self.evict_down_to(&mut state, enough);
        self.account(&mut state);
        self.stir(&mut state);
    }

    /// Gives up its newest group, which is the longest of all in its room.
    pub(super) fn give_up_newest(&self) {
        let mut state = self.lock();
        if let Some(at) = state.groups.len().checked_sub(1) {
            self.cut(&mut state, at);
        }
        self.account(&mut state);
        self.stir(&mut state);
    }

    /// Nothing is kept of a group any more, because there is no room for it.
    fn cut(&self, state: &mut State, at: usize) {
        let group = &mut state.groups[at];
        let freed = std::mem::take(&mut group.bytes);
        let chunks = std::mem::take(&mut group.chunks);
        group.end = Some(Err(stream_code::GROUP_TOO_LARGE));
        state.bytes -= freed;
        self.room.discard(Gone::from([chunks]));
        self.room.counters.dropped_group_too_large.fetch_add(1, Relaxed);
    }

    /// Ends a group: whole, or for a reason, a code of a stream.
    pub fn end_group(&self, group: GroupId, end: Result<(), u64>) {
        let mut state = self.lock();
        if let Some(at) = state.position(group)
            && state.groups[at].end.is_none()
        {
            state.groups[at].end = Some(end);
            self.stir(&mut state);
        }
    }

    /// Oldest groups leave what is kept, but not the newest, until that is no more than so many bytes.
    fn evict_down_to(&self, state: &mut State, bytes: usize) {
        let mut gone = Gone::new();
        while state.bytes > bytes && state.groups.len() > 1 {
            gone.extend(self.evict(state));
        }
        self.room.discard(gone);
    }

    /// The oldest group leaves what is kept: its chunks.
    fn evict(&self, state: &mut State) -> Option<Vec<Bytes>> {
        let group = state.groups.pop_front()?;
        state.bytes -= group.bytes;
        self.room.counters.groups_evicted.fetch_add(1, Relaxed);
        Some(group.chunks)
    }

    /// A follower has been woken, or looks by itself: what comes from now on wakes it again.
    pub fn look(&self, follower: usize) {
        self.lock().followers.look(follower);
    }

    /// The group that a subscriber is to have next, which is not below its floor and not older than `max_age`: one that was missing, or
    /// the first from `next` on; the newest at first.
    pub fn choose(&self, progress: &Progress, max_age: Duration, now: Instant) -> Option<Choice> {
        let state = self.lock();
        let newest = state.groups.back()?.id;
        let only = |group| Choice { cursor: GroupCursor::new(group), passed: 0, is_lost: false };
        let Some(next) = progress.next else { return Some(only(newest)) };
        let missing = progress.missing.iter().filter(|missing| Some(**missing) >= progress.floor);
        let mut come = missing.filter_map(|missing| state.find(*missing)).map(|at| &state.groups[at]);
        if let Some(late) = come.find(|group| !group.is_old(max_age, now)) {
            return Some(only(late.id));
        }
        let position = |from: u64| state.groups.partition_point(|group| group.id.sequence < from);
        let first = position(next);
        let from = position(progress.floor.map_or(next, |floor| floor.max(next)));
        let passed = state.groups.range(from..).position(|group| !group.is_old(max_age, now))?;
        let (chosen, passed) = (from + passed, (from + passed - first) as u64);
        // Where the oldest that is kept comes after `next`, that one was given up.
        let is_lost = passed > 0 || first == 0;
        Some(Choice { cursor: GroupCursor::new(state.groups[chosen].id), passed, is_lost })
    }

    /// Whether a group is older than that: there has been a newer one for so long.
    pub fn is_old(&self, group: GroupId, max_age: Duration, now: Instant) -> bool {
        let state = self.lock();
        state.position(group).is_none_or(|at| state.groups[at].is_old(max_age, now))
    }

    /// The beginning of a group that is kept, or coming in.
    pub fn find(&self, sequence: u64) -> Option<GroupCursor> {
        let state = self.lock();
        state.find(sequence).map(|at| GroupCursor::new(state.groups[at].id))
    }

    /// The highest number of a group that there was.
    pub fn newest(&self) -> Option<u64> {
        self.lock().newest
    }

    /// What is next at a cursor.
    pub fn next(&self, cursor: &GroupCursor) -> Next {
        let state = self.lock();
        let Some(at) = state.position(cursor.group) else { return Next::Gone(stream_code::EVICTED) };
        let group = &state.groups[at];
        match (group.chunks.get(cursor.chunk), group.end) {
            (_, Some(Err(code))) => Next::Gone(code),
            (Some(chunk), _) => Next::Octets(chunk.slice(cursor.offset..)),
            (None, Some(Ok(()))) => Next::Complete,
            (None, None) => Next::Wait,
        }
    }
}

impl Drop for Track {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let kept = state.kept;
        let groups = std::mem::take(&mut state.groups);
        self.room.discard(groups.into_iter().map(|group| group.chunks).collect());
        self.room.cache.account((self.number, &self.this), kept, Kept::default());
        self.room.gauges.tracks.fetch_sub(1, Relaxed);
    }
}

impl State {
    fn find(&self, sequence: u64) -> Option<usize> {
        self.groups.binary_search_by_key(&sequence, |group| group.id.sequence).ok()
    }

    fn position(&self, group: GroupId) -> Option<usize> {
        self.find(group.sequence).filter(|at| self.groups[*at].id == group)
    }

    /// The position of a group that takes more.
    ///
    /// # Errors
    /// It has ended or is not kept, a code of a stream.
    fn open(&self, group: GroupId) -> Result<usize, u64> {
        let at = self.position(group).ok_or(stream_code::EVICTED)?;
        self.groups[at].end.map_or(Ok(at), |end| Err(end.err().unwrap_or(stream_code::CANCEL)))
    }
}

#[cfg(test)]
mod tests;
