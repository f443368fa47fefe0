//! What a peer asks for: broadcasts, tracks, groups; and what it is sent.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use expressway_gateway::quic::Turn;

use super::writer::{ENOUGH, Sent};
use super::{BROADCASTS, Incoming, OWNERS, Session, WATCHES};
use crate::moq::room::Broadcast;
use crate::moq::track::{End, Next, Place, Track};
use crate::moq::wire::{
    Announce, AnnounceRequest, Answer, Fetch, Group, Message, Problem, Subscribe, Track as TrackRequest,
    Wishes, stream_code, write,
};

/// Groups of a subscription that are under way at a time.
pub const CONCURRENT: usize = 4;

/// How old a group may be in any case: whoever wants none that are old has them in time all the same.
const LEAST_AGE: Duration = Duration::from_millis(100);
/// How old one may be at most, whatever was asked: what is kept has a limit of its own.
const MOST_AGE: Duration = Duration::from_secs(3600);

/// A request that something is sent for.
pub(super) struct Owner {
    track: Arc<Track>,
    broadcast: Arc<Broadcast>,
    /// Its key among those who follow the track.
    follower: usize,
    /// The stream that it came on.
    stream: u64,
    kind: Kind,
}

enum Kind {
    /// What the track is like.
    Info,
    /// One group, on the stream of the request.
    Fetch,
    /// All groups.
    Subscription(Subscription),
}

struct Subscription {
    id: u64,
    wishes: Wishes,
    /// The first group that was not begun; `None`: the newest.
    next: Option<u64>,
    /// Groups below are not begun any more: the connection has not taken one that became too old.
    floor: Option<u64>,
    has_begun: bool,
    /// Streams of groups that are under way, the oldest first.
    streams: Vec<u64>,
}

/// Groups that are under way, by stream.
#[derive(Default)]
pub(super) struct Deliveries(HashMap<u64, Delivery>);

struct Delivery {
    owner: usize,
    place: Place,
    /// What is left of the head of the stream.
    head: Bytes,
    urgency: u8,
    /// The stream took no more.
    is_blocked: bool,
}

impl Deliveries {
    /// The key of the request that a stream is for.
    pub(super) fn owner(&self, stream: u64) -> Option<usize> {
        self.0.get(&stream).map(|delivery| delivery.owner)
    }
}

/// What became of a group that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// There is more, for another turn.
    Cut,
    /// It waits: for the publisher, or for room.
    Waits,
    /// It is over.
    Over,
}

/// A stream on which the peer hears of broadcasts.
pub(super) struct Watch {
    stream: u64,
    /// Its key in the room.
    pub(super) key: usize,
    /// Within the room, whole segments.
    prefix: String,
    exclude_hop: u64,
    /// Broadcasts that it has heard of, each with its number.
    known: BTreeMap<Box<str>, u64>,
    has_begun: bool,
    /// It has a right to hear of some.
    hears: bool,
}

impl Watch {
    /// The path of a broadcast behind the prefix.
    fn suffix<'a>(&self, path: &'a str) -> Option<&'a str> {
        if self.prefix.is_empty() {
            return Some(path);
        }
        let rest = path.strip_prefix(self.prefix.as_str())?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
    }
}

impl Session {
    /// The peer wants to hear of broadcasts.
    pub(super) fn watch(&mut self, turn: &mut Turn<'_>, stream: u64, asked: AnnounceRequest<'_>) -> Incoming {
        let Some(place) = self.place.clone().filter(|_| self.watches.len() < WATCHES) else {
            self.refuse(turn, stream, stream_code::NO_CAPACITY);
            return Incoming::Stopped;
        };
        let key = place.room.watch(turn.waker(BROADCASTS));
        self.watches.push(Watch {
            stream,
            key,
            prefix: Self::full_path(&place, asked.prefix),
            exclude_hop: asked.exclude_hop,
            known: BTreeMap::new(),
            has_begun: false,
            // Who may not hear of any is told of none: a refusal would end the session of some clients.
            hears: place.rights.subscribe,
        });
        self.again(BROADCASTS);
        Incoming::Watch
    }

    /// The peer does not want to hear of them any more.
    pub(super) fn unwatch(&mut self, turn: &mut Turn<'_>, stream: u64) {
        let Some(at) = self.watches.iter().position(|watch| watch.stream == stream) else { return };
        let watch = self.watches.swap_remove(at);
        if let Some(place) = &self.place {
            place.room.unwatch(watch.key);
        }
        self.writers.write(turn.transport(), stream, Vec::new(), true);
    }

    /// Somebody hears of broadcasts on that stream.
    pub(super) fn is_watched(&self, stream: u64) -> bool {
        self.watches.iter().any(|watch| watch.stream == stream)
    }

    /// Tells of broadcasts that have come and gone, where what was told before is sent.
    pub(super) fn follow_broadcasts(&mut self, turn: &mut Turn<'_>) {
        let Some(place) = self.place.clone() else { return };
        let Self { watches, writers, publisher, moq, .. } = self;
        for watch in watches {
            // It hears of the rest when it has taken that.
            if writers.waiting(watch.stream) > 0 {
                continue;
            }
            place.room.look(watch.key);
            let all = place.room.broadcasts();
            let is_for_peer = |broadcast: &&Arc<Broadcast>| {
                watch.hears
                    && broadcast.publisher.id != publisher.id
                    && (watch.exclude_hop == 0 || !broadcast.hops.contains(&watch.exclude_hop))
                    && watch.suffix(&broadcast.path).is_some()
            };
            let now: HashMap<&str, &Arc<Broadcast>> =
                all.iter().filter(is_for_peer).map(|broadcast| (&*broadcast.path, broadcast)).collect();
            let mut out = Vec::new();
            // One in the place of another is told as such: subscriptions to the other are over.
            let is_same =
                |path: &str, number: u64| now.get(path).is_some_and(|broadcast| broadcast.number == number);
            let gone = watch.known.iter().filter(|(path, number)| !is_same(path, **number));
            let gone: Vec<_> = gone.map(|(path, _)| path.clone()).collect();
            for path in &gone {
                watch.known.remove(path);
            }
            let come: Vec<_> = now.iter().filter(|(path, _)| !watch.known.contains_key(**path)).collect();
            if !std::mem::replace(&mut watch.has_begun, true) {
                write::announce_ok(moq.hop, come.len() as u64, &mut out);
            }
            for path in gone {
                let suffix = watch.suffix(&path).unwrap_or_default();
                write::announce(&Announce { is_active: false, suffix, hops: Vec::new() }, &mut out);
            }
            for (path, broadcast) in come {
                let suffix = watch.suffix(path).unwrap_or_default();
                write::announce(
                    &Announce { is_active: true, suffix, hops: broadcast.hops.clone() },
                    &mut out,
                );
                watch.known.insert((*path).into(), broadcast.number);
            }
            if !out.is_empty() {
                writers.write(turn.transport(), watch.stream, out, false);
            }
        }
    }

    /// The track that a peer asks for; the request is answered by a reset where there is none.
    fn find(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        (broadcast, name): (&str, &str),
    ) -> Option<(Arc<Broadcast>, Arc<Track>)> {
        let place = self.place.clone()?;
        let room = &place.room;
        let broadcast =
            place.rights.subscribe.then(|| room.find(&Self::full_path(&place, broadcast))).flatten();
        // One that ends meanwhile gets no tracks.
        let broadcast = broadcast.filter(|broadcast| !broadcast.is_closed());
        let Some(broadcast) = broadcast else {
            room.counters.refused_not_found.fetch_add(1, Relaxed);
            self.refuse(turn, stream, stream_code::NOT_FOUND);
            return None;
        };
        let track =
            (self.owners.len() < room.limits.subscriptions).then(|| broadcast.track(room, name)).flatten();
        let Some(track) = track else {
            room.counters.refused_limit.fetch_add(1, Relaxed);
            self.refuse(turn, stream, stream_code::NO_CAPACITY);
            return None;
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
        let key = self.owners.insert(Owner { track, broadcast, follower, stream, kind });
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
        if !found.1.has(asked.group) {
            room.counters.fetches_missed.fetch_add(1, Relaxed);
            self.refuse(turn, stream, stream_code::NOT_FOUND);
            return Incoming::Stopped;
        }
        let Some(key) = self.add(turn, stream, found, Kind::Fetch) else { return Incoming::Stopped };
        room.counters.fetches.fetch_add(1, Relaxed);
        let place = Place::new(asked.group);
        self.deliveries.0.insert(
            stream,
            Delivery { owner: key, place, head: Bytes::new(), urgency: !asked.priority, is_blocked: false },
        );
        turn.transport().set_urgency(stream, !asked.priority);
        Incoming::End(key)
    }

    /// The peer subscribes to a track; `updates` have come behind that.
    pub(super) fn subscribe(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        asked: Subscribe<'_>,
        updates: &[u8],
    ) -> Incoming {
        let Some((broadcast, track)) = self.find(turn, stream, (asked.broadcast, asked.track)) else {
            return Incoming::Stopped;
        };
        let kind = Kind::Subscription(Subscription {
            id: asked.id,
            wishes: asked.wishes,
            // Where there is none yet, it is from the first on that comes.
            next: asked.wishes.start.or(track.newest().is_none().then_some(0)),
            floor: None,
            has_begun: false,
            streams: Vec::new(),
        });
        let publisher = Arc::clone(&broadcast.publisher);
        let Some(key) = self.add(turn, stream, (broadcast, Arc::clone(&track)), kind) else {
            return Incoming::Stopped;
        };
        publisher.ask(&track);
        Incoming::Updates(key, updates.to_vec())
    }

    /// Takes in changes of a subscription; what is incomplete stays in `buffer`.
    pub(super) fn update(&mut self, key: usize, buffer: &mut Vec<u8>) -> Result<(), &'static str> {
        let mut at = 0;
        loop {
            match Wishes::read(&buffer[at..]) {
                Ok((wishes, length)) => {
                    at += length;
                    if let Some(Owner { kind: Kind::Subscription(subscription), .. }) =
                        self.owners.get_mut(key)
                    {
                        // What was begun is not begun again.
                        subscription.next = subscription.next.max(wishes.start);
                        subscription.wishes = wishes;
                    }
                }
                Err(Problem::Incomplete) => break,
                Err(Problem::Invalid(words)) => return Err(words),
            }
        }
        buffer.drain(..at);
        self.again(OWNERS + key as u64);
        Ok(())
    }

    /// The peer does not want a track any more.
    pub(super) fn unsubscribe(&mut self, turn: &mut Turn<'_>, key: usize, is_reset: bool) {
        let Some(owner) = self.owners.get(key) else { return };
        let (stream, streams) = (owner.stream, owner.streams().to_vec());
        for group in streams {
            self.deliveries.0.remove(&group);
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
            self.deliveries.0.remove(&group);
            self.writers.reset(turn.transport(), group, code);
        }
        self.writers.reset(turn.transport(), stream, code);
        self.forget(key);
    }

    /// Takes a request away, whose streams were seen to.
    pub(super) fn forget(&mut self, key: usize) {
        let Some(owner) = self.owners.try_remove(key) else { return };
        // What else it says of it is nothing to the next with that key.
        if let Some(incoming) = self.incoming.get_mut(&owner.stream) {
            *incoming = Incoming::Ignored;
        }
        self.deliveries.0.remove(&owner.stream);
        for stream in owner.streams() {
            self.deliveries.0.remove(stream);
        }
        if matches!(owner.kind, Kind::Subscription(_)) {
            owner.track.room().gauges.subscriptions.fetch_sub(1, Relaxed);
        }
        if owner.track.unfollow(owner.follower) {
            owner.broadcast.publisher.ask(&owner.track);
        }
    }

    /// Goes on with a request. True: there is more, for another turn.
    pub(super) fn pump(&mut self, turn: &mut Turn<'_>, key: usize) -> bool {
        let Some(owner) = self.owners.get(key) else { return false };
        owner.track.look(owner.follower);
        let track = Arc::clone(&owner.track);
        let stream = owner.stream;
        match &owner.kind {
            Kind::Info => {
                match (track.info(), track.end()) {
                    (Some(info), _) => {
                        self.writers.write(turn.transport(), stream, write::track_info(info), true);
                        self.forget(key);
                    }
                    (None, Some(End::Failed(code))) => self.give_up(turn, key, code),
                    (None, Some(End::Complete(_))) => self.give_up(turn, key, stream_code::NOT_FOUND),
                    (None, None) => {}
                }
                false
            }
            Kind::Fetch => match self.deliver(turn, &track, stream) {
                Progress::Cut => true,
                Progress::Waits => false,
                Progress::Over => {
                    self.forget(key);
                    false
                }
            },
            Kind::Subscription(subscription) => {
                for group in subscription.streams.clone() {
                    match self.deliver(turn, &track, group) {
                        Progress::Cut => return true,
                        Progress::Waits => {}
                        Progress::Over => self.retire(key, group),
                    }
                }
                self.begin_groups(turn, key, &track)
            }
        }
    }

    fn subscription(&mut self, key: usize) -> Option<&mut Subscription> {
        match self.owners.get_mut(key) {
            Some(Owner { kind: Kind::Subscription(subscription), .. }) => Some(subscription),
            _ => None,
        }
    }

    /// A group of a subscription is over.
    fn retire(&mut self, key: usize, stream: u64) {
        if let Some(subscription) = self.subscription(key) {
            subscription.streams.retain(|group| *group != stream);
        }
    }

    /// Begins groups that a subscription is to have. True: there is more, for another turn.
    fn begin_groups(&mut self, turn: &mut Turn<'_>, key: usize, track: &Arc<Track>) -> bool {
        loop {
            let now = turn.now();
            let Some(owner) = self.owners.get_mut(key) else { return false };
            let answers = owner.stream;
            let Kind::Subscription(subscription) = &mut owner.kind else { return false };
            // Who does not take what there is gets nothing more on top of it.
            let is_blocked =
                |stream: &u64| self.deliveries.0.get(stream).is_some_and(|delivery| delivery.is_blocked);
            if subscription.streams.len() >= CONCURRENT || subscription.streams.iter().any(is_blocked) {
                return false;
            }
            let Wishes { end, priority, .. } = subscription.wishes;
            let chosen = track.choose((subscription.next, subscription.floor), subscription.max_age(), now);
            let chosen = chosen.filter(|(sequence, _)| end.is_none_or(|end| *sequence <= end));
            let Some((sequence, passed)) = chosen else {
                self.finish(turn, key, track);
                return false;
            };
            let skipped = subscription.next.filter(|next| *next < sequence && subscription.has_begun);
            let id = subscription.id;
            let has_begun = std::mem::replace(&mut subscription.has_begun, true);
            subscription.next = Some(sequence + 1);
            let stream = self.writers.open_unidirectional();
            subscription.streams.push(stream);
            let mut out = Vec::new();
            if !has_begun {
                Answer::Start(sequence).write(&mut out);
            }
            if let Some(first) = skipped
                && self.writers.waiting(answers) < ENOUGH
            {
                Answer::Drop { first, last: sequence - 1, code: stream_code::OLD }.write(&mut out);
            }
            track.room().counters.groups_skipped.fetch_add(passed, Relaxed);
            if !out.is_empty() {
                self.writers.write(turn.transport(), answers, out, false);
            }
            let head = write::group(Group { subscription: id, sequence }).into();
            self.deliveries.0.insert(
                stream,
                Delivery {
                    owner: key,
                    place: Place::new(sequence),
                    head,
                    urgency: !priority,
                    is_blocked: false,
                },
            );
            track.room().counters.groups_sent.fetch_add(1, Relaxed);
            match self.deliver(turn, track, stream) {
                Progress::Cut => return true,
                Progress::Waits => {}
                Progress::Over => self.retire(key, stream),
            }
            if turn.spend() {
                return true;
            }
        }
    }

    /// Ends a subscription that gets nothing more.
    fn finish(&mut self, turn: &mut Turn<'_>, key: usize, track: &Track) {
        let Some(subscription) = self.subscription(key) else { return };
        if !subscription.streams.is_empty() {
            return;
        }
        let (next, end) = (subscription.next, subscription.wishes.end);
        let boundary = match (track.end(), end) {
            (_, Some(end)) if next.is_some_and(|next| next > end) || track.newest() > Some(end) => {
                end.saturating_add(1)
            }
            (Some(End::Complete(boundary)), _) => boundary,
            (Some(End::Failed(code)), _) => return self.give_up(turn, key, code),
            (None, _) => return,
        };
        let mut out = Vec::new();
        Answer::End(boundary).write(&mut out);
        if let Some(owner) = self.owners.get(key) {
            let stream = owner.stream;
            self.writers.write(turn.transport(), stream, out, true);
        }
        self.forget(key);
    }

    /// Sends what there is of a group, as far as its stream takes it.
    fn deliver(&mut self, turn: &mut Turn<'_>, track: &Arc<Track>, stream: u64) -> Progress {
        let Some(mut delivery) = self.deliveries.0.remove(&stream) else { return Progress::Over };
        let counters = &track.room().counters;
        let mut sent = Sent::All;
        if !delivery.head.is_empty() {
            // It has none before it is open, which it is from here on if the peer's limit permits.
            turn.transport().set_urgency(stream, delivery.urgency);
            sent = self.writers.send(turn.transport(), stream, &mut delivery.head, false);
        }
        let code = loop {
            match sent {
                Sent::All => {}
                // The peer does not want it.
                Sent::Over => break None,
                Sent::Blocked => {
                    let is_old = self
                        .max_age(delivery.owner)
                        .is_some_and(|max_age| track.is_old(delivery.place.sequence, max_age, turn.now()));
                    if is_old {
                        counters.groups_cut.fetch_add(1, Relaxed);
                        if let Some(subscription) = self.subscription(delivery.owner) {
                            subscription.floor = subscription.floor.max(track.newest());
                        }
                        break Some(stream_code::OLD);
                    }
                    delivery.is_blocked = true;
                    self.deliveries.0.insert(stream, delivery);
                    return Progress::Waits;
                }
            }
            delivery.is_blocked = false;
            match track.next(&delivery.place) {
                Next::Octets(mut octets) => {
                    let length = octets.len();
                    sent = self.writers.send(turn.transport(), stream, &mut octets, false);
                    let taken = length - octets.len();
                    delivery.place.advance(length, taken);
                    counters.bytes_sent.fetch_add(taken as u64, Relaxed);
                    if sent == Sent::All && turn.spend() {
                        self.deliveries.0.insert(stream, delivery);
                        return Progress::Cut;
                    }
                }
                Next::Wait => {
                    self.deliveries.0.insert(stream, delivery);
                    return Progress::Waits;
                }
                Next::Complete => {
                    let end = self.writers.send(turn.transport(), stream, &mut Bytes::new(), true);
                    if end == Sent::Blocked {
                        sent = end;
                        continue;
                    }
                    return Progress::Over;
                }
                Next::Gone(code) => {
                    counters.groups_cut.fetch_add(1, Relaxed);
                    break Some(code);
                }
            }
        };
        if let Some(code) = code {
            self.writers.reset(turn.transport(), stream, code);
        }
        Progress::Over
    }

    /// How old a group of a request may be; a fetch has no limit.
    fn max_age(&self, key: usize) -> Option<Duration> {
        match &self.owners.get(key)?.kind {
            Kind::Subscription(subscription) => Some(subscription.max_age()),
            Kind::Info | Kind::Fetch => None,
        }
    }
}

impl Owner {
    /// Streams of its own that it sends on.
    fn streams(&self) -> &[u64] {
        match &self.kind {
            Kind::Subscription(subscription) => &subscription.streams,
            Kind::Info | Kind::Fetch => &[],
        }
    }
}

impl Subscription {
    fn max_age(&self) -> Duration {
        Duration::from_millis(self.wishes.max_age).clamp(LEAST_AGE, MOST_AGE)
    }
}
