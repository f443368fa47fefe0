//! What a peer learns about broadcasts: those that exist, and those that come and go, in pieces.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use expressway_gateway::quic::Turn;

use super::{BROADCASTS, Incoming, RoomAccess, Session};
use crate::moq::broadcast::Broadcast;
use crate::moq::wire::{Announce, AnnounceRequest, stream_code, write};

/// Streams on which a session hears of broadcasts.
const WATCHES: usize = 4;

/// Broadcasts that are looked at in a piece of work.
const PIECE: usize = 64;

/// A stream on which the peer hears of broadcasts.
pub(super) struct Watch {
    pub(super) stream: u64,
    /// Its key in the room.
    pub(super) key: usize,
    /// Within the room, whole segments.
    prefix: String,
    exclude_hop: u64,
    /// Broadcasts that it has heard of, each with its number.
    known: BTreeMap<Box<str>, u64>,
    /// Those that there were at first, in as many messages as it was told; `None`: it was told nothing.
    first: Option<VecDeque<Arc<Broadcast>>>,
    /// How far it has been looked what has changed.
    sweep: Sweep,
    /// Some have come or gone since that began.
    is_stale: bool,
    /// It has a right to hear of some.
    hears: bool,
}

/// How far broadcasts have been compared with what a peer has heard.
#[derive(Debug, PartialEq, Eq)]
enum Sweep {
    /// All of them.
    Done,
    /// Those up to this path.
    After(Box<str>),
    /// None.
    Begins,
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

    /// The peer, which publishes as `own`, is to hear of a broadcast.
    fn wants(&self, broadcast: &Broadcast, own: u64) -> bool {
        self.hears
            && broadcast.publisher.id != own
            && (self.exclude_hop == 0 || !broadcast.hops.contains(&self.exclude_hop))
            && self.suffix(&broadcast.path).is_some()
    }

    /// Appends that a broadcast is there.
    fn tell(&mut self, broadcast: &Broadcast, out: &mut Vec<u8>) {
        let suffix = self.suffix(&broadcast.path).unwrap_or_default();
        let hops = broadcast.hops.clone();
        write::announce(&Announce { is_active: true, suffix, hops }, out);
        self.known.insert(broadcast.path.clone(), broadcast.number);
    }

    /// Appends that one is not there any more.
    fn tell_gone(&mut self, path: &str, out: &mut Vec<u8>) {
        self.known.remove(path);
        let suffix = self.suffix(path).unwrap_or_default();
        write::announce(&Announce { is_active: false, suffix, hops: Vec::new() }, out);
    }

    /// Appends a piece of what is to be told.
    fn go_on(&mut self, access: &RoomAccess, (own, hop): (u64, u64), out: &mut Vec<u8>) {
        let Some(first) = &mut self.first else {
            // What comes from now on is looked for afterwards.
            access.room.look(self.key);
            let mut all = access.room.broadcasts();
            all.retain(|broadcast| self.wants(broadcast, own));
            write::announce_ok(hop, all.len() as u64, out);
            self.first = Some(all.into());
            return;
        };
        if !first.is_empty() {
            let piece: Vec<_> = first.drain(..first.len().min(PIECE)).collect();
            piece.iter().for_each(|broadcast| self.tell(broadcast, out));
            return;
        }
        self.compare(access, own, out);
    }

    /// Compares the next broadcasts with what the peer has heard, and appends what is new.
    fn compare(&mut self, access: &RoomAccess, own: u64, out: &mut Vec<u8>) {
        let after = match std::mem::replace(&mut self.sweep, Sweep::Done) {
            Sweep::Done => return,
            Sweep::Begins => None,
            Sweep::After(path) => Some(path),
        };
        let now = access.room.broadcasts_after(after.as_deref(), PIECE);
        let end = (now.len() == PIECE).then(|| now[PIECE - 1].path.clone());
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Included);
        // One in the place of another is told as such: subscriptions to the other are over.
        let is_same = |path: &str, number: u64| {
            let found = now.binary_search_by(|broadcast| (*broadcast.path).cmp(path));
            found.is_ok_and(|at| now[at].number == number)
        };
        let mut gone =
            self.known.range::<str, _>((from, to)).filter(|(path, number)| !is_same(path, **number));
        let piece: Vec<_> = gone.by_ref().take(PIECE).map(|(path, _)| path.clone()).collect();
        let is_left = gone.next().is_some();
        piece.iter().for_each(|path| self.tell_gone(path, out));
        if is_left {
            // More are gone between two that are there than are told at once.
            self.sweep = after.map_or(Sweep::Begins, Sweep::After);
            return;
        }
        for broadcast in &now {
            if self.wants(broadcast, own) && !self.known.contains_key(&broadcast.path) {
                self.tell(broadcast, out);
            }
        }
        self.sweep = match end {
            Some(path) => Sweep::After(path),
            None if std::mem::take(&mut self.is_stale) => Sweep::Begins,
            None => Sweep::Done,
        };
    }

    /// Some have come or gone.
    fn hear(&mut self) {
        match self.sweep {
            Sweep::Done => self.sweep = Sweep::Begins,
            // It has passed some already.
            Sweep::Begins | Sweep::After(_) => self.is_stale = true,
        }
    }

    /// There is more to be told, or looked at.
    fn is_busy(&self) -> bool {
        self.first.as_ref().is_none_or(|first| !first.is_empty()) || self.sweep != Sweep::Done
    }
}

impl Session {
    /// The peer wants to hear of broadcasts.
    pub(super) fn begin_watch(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        asked: AnnounceRequest<'_>,
    ) -> Incoming {
        let Some(access) = self.access.clone().filter(|_| self.watches.len() < WATCHES) else {
            self.refuse(turn, stream, stream_code::NO_CAPACITY);
            return Incoming::Stopped;
        };
        let key = access.room.watch(turn.waker(BROADCASTS));
        self.watches.push(Watch {
            stream,
            key,
            prefix: Self::full_path(&access, asked.prefix),
            exclude_hop: asked.exclude_hop,
            known: BTreeMap::new(),
            first: None,
            sweep: Sweep::Done,
            is_stale: false,
            // Who may not hear of any is told of none: a refusal would end the session of some clients.
            hears: access.rights.subscribe,
        });
        self.again(BROADCASTS);
        Incoming::Watch
    }

    /// The peer does not want to hear of them any more.
    pub(super) fn unwatch(&mut self, turn: &mut Turn<'_>, stream: u64) {
        let Some(at) = self.watches.iter().position(|watch| watch.stream == stream) else { return };
        let watch = self.watches.swap_remove(at);
        if let Some(access) = &self.access {
            access.room.unwatch(watch.key);
        }
        self.writers.write(turn.transport(), stream, Vec::new(), true);
    }

    /// Somebody hears of broadcasts on that stream.
    pub(super) fn is_watched(&self, stream: u64) -> bool {
        self.watches.iter().any(|watch| watch.stream == stream)
    }

    /// Broadcasts have come or gone.
    pub(super) fn hear_of_broadcasts(&mut self) {
        for watch in self.watches.iter_mut() {
            if let Some(access) = &self.access
                && watch.first.is_some()
            {
                access.room.look(watch.key);
                watch.hear();
            }
        }
        self.again(BROADCASTS);
    }

    /// Tells of broadcasts that have come and gone, where what was told before is sent. True: there is more, for another turn.
    pub(super) fn follow_broadcasts(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(access) = self.access.clone() else { return false };
        let Self { watches, writers, publisher, moq, .. } = self;
        for watch in watches {
            // It hears of the rest when it has taken that.
            while watch.is_busy() && writers.waiting(watch.stream) == 0 {
                let mut out = Vec::new();
                watch.go_on(&access, (publisher.id, moq.hop), &mut out);
                if !out.is_empty() {
                    writers.write(turn.transport(), watch.stream, out, false);
                }
                if turn.spend() {
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::moq::application::Rights;
    use crate::moq::broadcast::Publisher;
    use crate::moq::room::{Limits, Room};
    use crate::moq::wire::{AnnounceOk, Message};

    /// What was told, by path; whether it is there.
    fn told(mut out: &[u8]) -> Vec<(String, bool)> {
        let mut all = Vec::new();
        while !out.is_empty() {
            let (announce, length) = Announce::read(out).unwrap();
            all.push((announce.suffix.to_owned(), announce.is_active));
            out = &out[length..];
        }
        all
    }

    #[test]
    fn thousands_of_broadcasts_are_told_and_compared_in_pieces() {
        let limits = Limits { broadcasts: 4096, ..Limits::default() };
        let room = Room::new("studio", limits);
        let publisher = Publisher::new(7, Arc::new(AtomicUsize::new(0)));
        let announce = |number: u64, path: &str| {
            let broadcast = Broadcast::new(number, (path, path), Vec::new(), Arc::clone(&publisher));
            room.announce(Arc::clone(&broadcast)).unwrap();
            broadcast
        };
        let all: Vec<_> = (0..1000).map(|number| announce(number, &format!("cam/{number:04}"))).collect();
        announce(5000, "other");
        let access = RoomAccess {
            room: Arc::clone(&room),
            prefix: "".into(),
            rights: Rights { publish: false, subscribe: true },
        };
        let mut watch = Watch {
            stream: 0,
            key: room.watch(Arc::new(AtomicUsize::new(0))),
            prefix: "cam".into(),
            exclude_hop: 0,
            known: BTreeMap::new(),
            first: None,
            sweep: Sweep::Done,
            is_stale: false,
            hears: true,
        };
        let mut out = Vec::new();
        watch.go_on(&access, (1, 2), &mut out);
        assert_eq!(AnnounceOk::read(&out).unwrap().0, AnnounceOk { origin: 2, active: 1000 });
        // One goes while the first are told: as many messages come as were promised, and then that it is gone.
        room.retract(&all[900], 6000);
        let mut heard = Vec::new();
        let mut follow = |watch: &mut Watch| {
            heard.clear();
            while watch.is_busy() {
                let mut out = Vec::new();
                watch.go_on(&access, (1, 2), &mut out);
                let piece = told(&out);
                assert!(piece.len() <= 128, "{}", piece.len());
                heard.extend(piece);
            }
            heard.clone()
        };
        assert_eq!(follow(&mut watch).len(), 1000);
        watch.hear();
        assert_eq!(follow(&mut watch), [("0900".to_owned(), false)]);
        // Many go, one comes in the place of another, and a new one comes.
        all[..500].iter().for_each(|broadcast| drop(room.retract(broadcast, 7000)));
        announce(8000, "cam/0600");
        announce(8001, "cam/zzzz");
        watch.hear();
        let changes = follow(&mut watch);
        assert_eq!(changes.iter().filter(|(_, active)| !active).count(), 501);
        assert_eq!(changes[501..], [("0600".to_owned(), true), ("zzzz".to_owned(), true)]);
        watch.hear();
        assert!(follow(&mut watch).is_empty());
    }
}
