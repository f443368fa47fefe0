//! What a peer requests: tracks and groups.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use expressway_gateway::quic::Turn;

use super::{Incoming, OWNERS, Session};
use crate::moq::broadcast::{Broadcast, NoTrack};
use crate::moq::track::{Progress, Track};
use crate::moq::wire::{Fetch, Message, Problem, Subscribe, Track as TrackRequest, Wishes, stream_code};

/// A request that something is sent for.
pub(super) struct Owner {
    pub(super) track: Arc<Track>,
    broadcast: Arc<Broadcast>,
    /// Its key among those who follow the track.
    pub(super) follower: usize,
    /// The stream that it came on.
    pub(super) stream: u64,
    pub(super) kind: Kind,
    /// It waits for room on the session's account.
    pub(super) is_starved: bool,
}

pub(super) enum Kind {
    /// What the track is like.
    Info,
    /// One group, on the stream of the request.
    Fetch,
    /// All groups.
    Subscription(Subscription),
}

pub(super) struct Subscription {
    pub(super) id: u64,
    pub(super) wishes: Wishes,
    pub(super) progress: Progress,
    pub(super) has_begun: bool,
    /// Streams of groups that are under way, the oldest first.
    pub(super) streams: Vec<u64>,
}

impl Session {
    /// The track that a peer asks for; the request is answered by a reset where there is none.
    fn find(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        (broadcast, name): (&str, &str),
    ) -> Option<(Arc<Broadcast>, Arc<Track>)> {
        let access = self.access.clone()?;
        let room = &access.room;
        let broadcast =
            access.rights.subscribe.then(|| room.find(&Self::full_path(&access, broadcast))).flatten();
        // One that ends meanwhile gets no tracks.
        let broadcast = broadcast.filter(|broadcast| !broadcast.is_closed());
        let Some(broadcast) = broadcast else {
            room.counters.refused_not_found.fetch_add(1, Relaxed);
            self.refuse(turn, stream, stream_code::NOT_FOUND);
            return None;
        };
        let has_room = self.owners.len() < room.limits.subscriptions;
        let track = if has_room { broadcast.track(room, name) } else { Err(NoTrack::TooMany) };
        let track = match track {
            Ok(track) => track,
            Err(NoTrack::NotFound) => {
                room.counters.refused_not_found.fetch_add(1, Relaxed);
                self.refuse(turn, stream, stream_code::NOT_FOUND);
                return None;
            }
            Err(NoTrack::TooMany) => {
                room.counters.refused_limit.fetch_add(1, Relaxed);
                self.refuse(turn, stream, stream_code::NO_CAPACITY);
                return None;
            }
        };
        Some((broadcast, track))
    }

    /// Adds a request; the key, if the track takes one more that follows it.
    fn add(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        (broadcast, track): (Arc<Broadcast>, Arc<Track>),
        kind: Kind,
    ) -> Option<usize> {
        let key = self.owners.vacant_key();
        let waker = turn.waker(OWNERS + key as u64);
        let subscribes = matches!(kind, Kind::Subscription(_));
        let Some(follower) = track.follow(waker, subscribes) else {
            track.room().counters.refused_limit.fetch_add(1, Relaxed);
            self.refuse(turn, stream, stream_code::NO_CAPACITY);
            return None;
        };
        if subscribes {
            track.room().counters.subscriptions.fetch_add(1, Relaxed);
            track.room().gauges.subscriptions.fetch_add(1, Relaxed);
        }
        let owner = Owner { track, broadcast, follower, stream, kind, is_starved: false };
        let key = self.owners.insert(owner);
        self.requests.insert(stream, key);
        self.again(OWNERS + key as u64);
        Some(key)
    }

    /// The peer wants to know what a track is like.
    pub(super) fn tell(&mut self, turn: &mut Turn<'_>, stream: u64, asked: TrackRequest<'_>) -> Incoming {
        let Some((broadcast, track)) = self.find(turn, stream, (asked.broadcast, asked.track)) else {
            return Incoming::Stopped;
        };
        let publisher = Arc::clone(&broadcast.publisher);
        let Some(key) = self.add(turn, stream, (broadcast, Arc::clone(&track)), Kind::Info) else {
            return Incoming::Stopped;
        };
        // A track that nobody follows is not asked for.
        if track.info().is_none() {
            publisher.ask(&track);
        }
        Incoming::End(key)
    }

    /// The peer wants one group.
    pub(super) fn fetch(&mut self, turn: &mut Turn<'_>, stream: u64, asked: Fetch<'_>) -> Incoming {
        let Some(found) = self.find(turn, stream, (asked.broadcast, asked.track)) else {
            return Incoming::Stopped;
        };
        let room = Arc::clone(found.1.room());
        let Some(cursor) = found.1.find(asked.group) else {
            room.counters.fetches_missed.fetch_add(1, Relaxed);
            self.refuse(turn, stream, stream_code::NOT_FOUND);
            return Incoming::Stopped;
        };
        let Some(key) = self.add(turn, stream, found, Kind::Fetch) else { return Incoming::Stopped };
        room.counters.fetches.fetch_add(1, Relaxed);
        self.deliveries.fetch(stream, key, cursor, !asked.priority);
        turn.transport().set_urgency(stream, !asked.priority);
        Incoming::End(key)
    }

    /// The peer subscribes to a track.
    pub(super) fn subscribe(&mut self, turn: &mut Turn<'_>, stream: u64, asked: Subscribe<'_>) -> Incoming {
        let Some((broadcast, track)) = self.find(turn, stream, (asked.broadcast, asked.track)) else {
            return Incoming::Stopped;
        };
        let kind = Kind::Subscription(Subscription {
            id: asked.id,
            wishes: asked.wishes,
            // Where there is none yet, it is from the first on that comes.
            progress: Progress::from(asked.wishes.start.or(track.newest().is_none().then_some(0))),
            has_begun: false,
            streams: Vec::new(),
        });
        let publisher = Arc::clone(&broadcast.publisher);
        let Some(key) = self.add(turn, stream, (broadcast, Arc::clone(&track)), kind) else {
            return Incoming::Stopped;
        };
        publisher.ask(&track);
        Incoming::Updates(key)
    }

    /// Takes in changes that have come behind a request to subscribe, and what became of that.
    pub(super) fn begin_updates(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        (incoming, updates): (Incoming, &[u8]),
    ) -> Result<Incoming, Problem> {
        if let Incoming::Updates(key) = incoming {
            self.read_messages(turn, stream, updates, |session, _, octets| session.update(key, octets))
                .map_err(Problem::Invalid)?;
        }
        Ok(incoming)
    }

    /// Takes in changes of a subscription, as far as they are whole: so many octets.
    pub(super) fn update(&mut self, key: usize, octets: &[u8]) -> Result<usize, &'static str> {
        let mut at = 0;
        loop {
            match Wishes::read(&octets[at..]) {
                Ok((wishes, length)) => {
                    at += length;
                    if let Some(Owner { kind: Kind::Subscription(subscription), .. }) =
                        self.owners.get_mut(key)
                    {
                        // What was begun is not begun again.
                        let progress = &mut subscription.progress;
                        progress.next = progress.next.max(wishes.start);
                        subscription.wishes = wishes;
                    }
                }
                Err(Problem::Incomplete) => break,
                Err(Problem::Invalid(words)) => return Err(words),
            }
        }
        self.again(OWNERS + key as u64);
        Ok(at)
    }

    /// The peer does not want a track any more.
    pub(super) fn unsubscribe(&mut self, turn: &mut Turn<'_>, key: usize, is_reset: bool) {
        let Some(owner) = self.owners.get(key) else { return };
        let (stream, streams) = (owner.stream, owner.streams().to_vec());
        for group in streams {
            self.deliveries.remove(group);
            self.writers.reset(turn.transport(), group, stream_code::CANCEL);
        }
        match is_reset {
            true => self.writers.reset(turn.transport(), stream, stream_code::CANCEL),
            false => self.writers.write(turn.transport(), stream, Vec::new(), true),
        }
        self.forget(key);
    }

    /// Ends a request by a code.
    pub(super) fn give_up(&mut self, turn: &mut Turn<'_>, key: usize, code: u64) {
        let Some(owner) = self.owners.get(key) else { return };
        let (stream, streams) = (owner.stream, owner.streams().to_vec());
        for group in streams {
            self.deliveries.remove(group);
            self.writers.reset(turn.transport(), group, code);
        }
        self.writers.reset(turn.transport(), stream, code);
        self.forget(key);
    }

    /// Takes a request away, whose streams were seen to.
    pub(super) fn forget(&mut self, key: usize) {
        let Some(owner) = self.owners.try_remove(key) else { return };
        self.requests.remove(&owner.stream);
        // What else it says of it is nothing to the next with that key.
        if let Some(incoming) = self.incoming.get_mut(&owner.stream) {
            *incoming = Incoming::Ignored;
            self.incomplete.forget(owner.stream);
        }
        self.deliveries.remove(owner.stream);
        for stream in owner.streams() {
            self.deliveries.remove(*stream);
        }
        if matches!(owner.kind, Kind::Subscription(_)) {
            owner.track.room().gauges.subscriptions.fetch_sub(1, Relaxed);
        }
        if owner.track.unfollow(owner.follower) {
            owner.broadcast.publisher.ask(&owner.track);
        }
    }
}

impl Owner {
    /// Streams of its own that it sends on.
    pub(super) fn streams(&self) -> &[u64] {
        match &self.kind {
            Kind::Subscription(subscription) => &subscription.streams,
            Kind::Info | Kind::Fetch => &[],
        }
    }
}
