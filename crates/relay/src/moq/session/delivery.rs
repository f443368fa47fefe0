//! Groups on their way to a peer.
//!
//! Bytes on their way count on the session's account until the peer has acknowledged them. A session that has reached its limit continues
//! when the peer acknowledges some. Until then it is treated like one whose connection accepts no more: its groups become old, and are
//! skipped.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use expressway_gateway::quic::{Transport, Turn};
use expressway_web::memory::Account;

use super::subscribe::{Kind, Owner, Subscription};
use super::writer::{ENOUGH, Sent};
use super::{OWNERS, Session};
use crate::moq::track::{Choice, End, GroupCursor, Next, Track};
use crate::moq::wire::{Answer, Group, Wishes, stream_code, write};

/// Groups of a subscription that are under way at a time.
pub const CONCURRENT: usize = 4;

/// Less room than this, in bytes, is none: each piece costs some beside its bytes.
const LEAST_ROOM: usize = 1024;

/// How often requests are looked at that nothing else happens to.
const SWEEP: Duration = Duration::from_secs(1);

/// How old a group may be in any case: whoever wants none that are old has them in time all the same.
const LEAST_AGE: Duration = Duration::from_millis(100);
/// How old one may be at most, whatever was asked: what is kept has a limit of its own.
const MOST_AGE: Duration = Duration::from_secs(3600);

/// Groups that are under way.
#[derive(Default)]
pub(super) struct Deliveries {
    by_stream: HashMap<u64, Delivery>,
    /// Keys of requests that wait for room on the account, the one that has waited longest first.
    starved: VecDeque<usize>,
}

struct Delivery {
    owner: usize,
    cursor: GroupCursor,
    /// What is left of the head of the stream.
    head: Bytes,
    urgency: u8,
    /// The stream took no more, or the session holds as much as it may.
    is_blocked: bool,
}

impl Deliveries {
    /// A group that was asked for, on the stream of that.
    pub(super) fn fetch(&mut self, stream: u64, owner: usize, cursor: GroupCursor, urgency: u8) {
        let delivery = Delivery { owner, cursor, head: Bytes::new(), urgency, is_blocked: false };
        self.by_stream.insert(stream, delivery);
    }

    /// The key of the request that a stream is for.
    pub(super) fn owner(&self, stream: u64) -> Option<usize> {
        self.by_stream.get(&stream).map(|delivery| delivery.owner)
    }

    pub(super) fn remove(&mut self, stream: u64) {
        self.by_stream.remove(&stream);
    }

    /// Some request waits for room on the account, and there is some.
    pub(super) fn can_go_on(&self, account: &Account) -> bool {
        !self.starved.is_empty() && account.room() >= LEAST_ROOM
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.by_stream.shrink_to_fit();
        self.starved.shrink_to_fit();
    }
}

/// When requests are looked at, and how far that is.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    at: Option<Instant>,
    key: usize,
}

impl Sweep {
    /// After a turn: there may be requests now.
    pub(super) fn watch(&mut self, has_requests: bool, now: Instant) {
        if !has_requests {
            *self = Self::default();
        } else if self.at.is_none() {
            self.at = Some(now + SWEEP);
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.at
    }

    fn is_due(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// The next key below `end`; once there is none, it is not due any more.
    fn next(&mut self, end: usize) -> Option<usize> {
        if self.key >= end {
            *self = Self::default();
            return None;
        }
        self.key += 1;
        Some(self.key - 1)
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

/// How much of a group goes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grant {
    /// So many bytes.
    Bytes(usize),
    /// None: the stream takes no more.
    Blocked,
    /// None: the session holds as much as it may.
    Starved,
    /// Nobody reads them.
    Over,
}

/// How much of so many bytes goes to a stream now.
fn grant(account: &Account, transport: &mut Transport, stream: u64, bytes: usize) -> Grant {
    match transport.capacity(stream) {
        None => Grant::Over,
        Some(0) => Grant::Blocked,
        Some(capacity) => match account.room() {
            room if room < bytes.min(LEAST_ROOM) => Grant::Starved,
            room => Grant::Bytes(bytes.min(capacity).min(room)),
        },
    }
}

impl Session {
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

    /// Goes on with requests that waited for room on the account, each once for the room that there is. True: there is more, for
    /// another turn.
    pub(super) fn feed_starved(&mut self, turn: &mut Turn<'_>) -> bool {
        while self.deliveries.can_go_on(&self.account)
            && let Some(key) = self.deliveries.starved.pop_front()
        {
            let was_starved =
                self.owners.get_mut(key).is_some_and(|owner| std::mem::take(&mut owner.is_starved));
            if was_starved && self.pump(turn, key) {
                self.again(OWNERS + key as u64);
            }
            if turn.spend() {
                return self.deliveries.can_go_on(&self.account) || !self.woken.is_empty();
            }
        }
        false
    }

    /// Looks at streams of requests: the engine names one that was stopped only if it had not named it before. True: there are more,
    /// for another turn.
    pub(super) fn sweep_stopped(&mut self, turn: &mut Turn<'_>) -> bool {
        if !self.sweep.is_due(turn.now()) {
            return false;
        }
        while let Some(key) = self.sweep.next(self.owners.capacity()) {
            let streams = self.owners.get(key).map(|owner| (owner.stream, owner.streams().to_vec()));
            if let Some((stream, groups)) = streams
                && !self.handle_stopped(turn, stream)
            {
                groups.into_iter().for_each(|group| _ = self.handle_stopped(turn, group));
            }
            if turn.spend() {
                return true;
            }
        }
        false
    }

    /// The peer has stopped a stream of ours, or the one of its request, or the engine has let go of it. A stream that is over stays with the engine until
    /// somebody has looked at it. False: it is not stopped.
    pub(super) fn handle_stopped(&mut self, turn: &mut Turn<'_>, stream: u64) -> bool {
        if self.writers.is_fresh(stream) || !turn.transport().is_stopped(stream) {
            return false;
        }
        match (self.deliveries.owner(stream), self.requests.get(&stream).copied()) {
            // Whoever does not want an answer does not want what is asked for.
            (_, Some(key)) => self.give_up(turn, key, stream_code::CANCEL),
            (Some(key), None) => {
                self.deliveries.remove(stream);
                self.retire(key, stream);
                self.again(OWNERS + key as u64);
            }
            (None, None) if self.is_watched(stream) => self.unwatch(turn, stream),
            (None, None) => self.writers.forget(stream),
        }
        true
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
            let deliveries = &self.deliveries.by_stream;
            let is_blocked =
                |stream: &u64| deliveries.get(stream).is_some_and(|delivery| delivery.is_blocked);
            if subscription.streams.len() >= CONCURRENT || subscription.streams.iter().any(is_blocked) {
                return false;
            }
            let Wishes { end, priority, .. } = subscription.wishes;
            let chosen = track.choose(&subscription.progress, subscription.max_age(), now);
            let chosen = chosen.filter(|choice| end.is_none_or(|end| choice.cursor.group.sequence <= end));
            let Some(Choice { cursor, passed, is_lost }) = chosen else {
                self.finish(turn, key, track);
                return false;
            };
            let sequence = cursor.group.sequence;
            let has_begun = std::mem::replace(&mut subscription.has_begun, true);
            let skipped = subscription.progress.next.filter(|next| is_lost && *next < sequence && has_begun);
            let id = subscription.id;
            // Nothing is missed of what was before the first.
            subscription.progress.advance(sequence, is_lost || !has_begun);
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
            let head = self.account.own(write::group(Group { subscription: id, sequence }));
            let delivery = Delivery { owner: key, cursor, head, urgency: !priority, is_blocked: false };
            self.deliveries.by_stream.insert(stream, delivery);
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
        let (next, end) = (subscription.progress.next, subscription.wishes.end);
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

    /// Sends what there is of a group, as far as its stream takes it and the account has room.
    fn deliver(&mut self, turn: &mut Turn<'_>, track: &Arc<Track>, stream: u64) -> Progress {
        let Some(mut delivery) = self.deliveries.by_stream.remove(&stream) else { return Progress::Over };
        let counters = &track.room().counters;
        if !delivery.head.is_empty() {
            // It has none before it is open, which it is from here on if the peer's limit permits.
            self.writers.set_urgency(turn.transport(), stream, delivery.urgency);
            match self.writers.send(turn.transport(), stream, &mut delivery.head, false) {
                Sent::All => {}
                Sent::Blocked => return self.hold_up(turn, track, stream, delivery),
                Sent::Over => return Progress::Over,
            }
        }
        delivery.is_blocked = false;
        let code = loop {
            match track.next(&delivery.cursor) {
                Next::Octets(octets) => {
                    let length = octets.len();
                    let granted = match grant(&self.account, turn.transport(), stream, length) {
                        Grant::Bytes(granted) => granted,
                        // The peer does not want it.
                        Grant::Over => return Progress::Over,
                        Grant::Blocked => return self.hold_up(turn, track, stream, delivery),
                        Grant::Starved => {
                            self.starve(delivery.owner);
                            return self.hold_up(turn, track, stream, delivery);
                        }
                    };
                    let mut piece = self.account.own(octets.slice(..granted));
                    let sent = self.writers.send(turn.transport(), stream, &mut piece, false);
                    let taken = granted - piece.len();
                    delivery.cursor.advance(length, taken);
                    counters.bytes_sent.fetch_add(taken as u64, Relaxed);
                    match sent {
                        Sent::All => {}
                        Sent::Blocked => return self.hold_up(turn, track, stream, delivery),
                        Sent::Over => return Progress::Over,
                    }
                    if turn.spend() {
                        self.deliveries.by_stream.insert(stream, delivery);
                        return Progress::Cut;
                    }
                }
                Next::Wait => {
                    self.deliveries.by_stream.insert(stream, delivery);
                    return Progress::Waits;
                }
                Next::Complete => {
                    match self.writers.send(turn.transport(), stream, &mut Bytes::new(), true) {
                        Sent::Blocked => return self.hold_up(turn, track, stream, delivery),
                        Sent::All | Sent::Over => return Progress::Over,
                    }
                }
                Next::Gone(code) => break code,
            }
        };
        counters.groups_cut.fetch_add(1, Relaxed);
        self.writers.reset(turn.transport(), stream, code);
        Progress::Over
    }

    /// A group cannot go on for now. One that is too old by then ends, and the subscription goes on with the newest.
    fn hold_up(
        &mut self,
        turn: &mut Turn<'_>,
        track: &Track,
        stream: u64,
        mut delivery: Delivery,
    ) -> Progress {
        let max_age = self.max_age(delivery.owner);
        if max_age.is_some_and(|max_age| track.is_old(delivery.cursor.group, max_age, turn.now())) {
            track.room().counters.groups_cut.fetch_add(1, Relaxed);
            if let Some(subscription) = self.subscription(delivery.owner) {
                let progress = &mut subscription.progress;
                progress.floor = progress.floor.max(track.newest());
            }
            self.writers.reset(turn.transport(), stream, stream_code::OLD);
            return Progress::Over;
        }
        delivery.is_blocked = true;
        self.deliveries.by_stream.insert(stream, delivery);
        Progress::Waits
    }

    /// A request waits for room on the account.
    fn starve(&mut self, key: usize) {
        if let Some(owner) = self.owners.get_mut(key)
            && !std::mem::replace(&mut owner.is_starved, true)
        {
            owner.track.room().counters.starved.fetch_add(1, Relaxed);
            self.deliveries.starved.push_back(key);
        }
    }

    /// How old a group of a request may be; a fetch has no limit.
    fn max_age(&self, key: usize) -> Option<Duration> {
        match &self.owners.get(key)?.kind {
            Kind::Subscription(subscription) => Some(subscription.max_age()),
            Kind::Info | Kind::Fetch => None,
        }
    }
}

impl Subscription {
    fn max_age(&self) -> Duration {
        Duration::from_millis(self.wishes.max_age).clamp(LEAST_AGE, MOST_AGE)
    }
}
