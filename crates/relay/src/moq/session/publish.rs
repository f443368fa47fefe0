//! What a peer publishes: broadcasts that it announces, tracks that are asked of it, groups that it sends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use expressway_gateway::quic::Turn;

use super::{Incoming, Place, QUEUE, Session};
use crate::moq::room::{Broadcast, TooMany};
use crate::moq::track::{Appended, End, Track};
use crate::moq::wire::{
    Announce, AnnounceOk, Answer, Frames, Group, MAX_HOPS, MAX_PATH, Message, Problem, TrackInfo, Wishes,
    stream_code, write,
};

/// How old a group may be that a publisher still sends, in milliseconds: subscribers have limits of their own, and what
/// is kept has one in octets.
const MAX_AGE: u64 = 30_000;
/// Of what is asked of publishers, all of which is for subscribers with priorities of their own.
const PRIORITY: u8 = 128;

/// Tracks that are asked of a peer at a time.
const UPSTREAMS: usize = 4096;

/// Broadcasts that the peer's have replaced whose tracks are ended one after another.
const REPLACED: usize = 64;

/// What was asked of the peer on a stream of ours.
pub(super) enum Answers {
    /// Its broadcasts; the hop that it is, once it has said that.
    Broadcasts(Option<u64>),
    /// What a track is like, by the number of what is asked of it.
    Info(u64, Arc<Track>),
    /// The groups of a track, by the number of the subscription, and where it ends if that was said.
    Groups(u64, Option<u64>),
}

/// Tracks that are asked of the peer.
#[derive(Default)]
pub(super) struct Upstreams {
    by_id: HashMap<u64, Upstream>,
    /// By the address of the track.
    ids: HashMap<usize, u64>,
    next: u64,
    /// Subscriptions that the peer has ended.
    ended: Vec<(u64, End)>,
}

#[derive(Debug)]
struct Upstream {
    track: Arc<Track>,
    /// The stream of the TRACK request, until it is answered.
    info_stream: Option<u64>,
    /// The stream of the subscription, if there is one.
    stream: Option<u64>,
    /// It has sent a group.
    has_begun: bool,
}

/// What a track needs.
#[derive(Debug)]
enum Step {
    /// Nothing more: this was asked of it.
    Drop(Option<Upstream>),
    /// These requests, under this number.
    Ask { id: u64, info: bool, groups: bool },
    /// There are too many.
    Refuse,
}

impl Upstreams {
    /// What a track needs that somebody has come to or left.
    fn look(&mut self, track: &Arc<Track>) -> Step {
        let address = Arc::as_ptr(track) as usize;
        let known = self.ids.get(&address).copied();
        let (is_wanted, is_known) = (track.is_wanted(), track.info().is_some());
        if track.end().is_some() || !is_wanted && (is_known || track.is_idle()) {
            return Step::Drop(known.and_then(|id| self.remove(id)));
        }
        let id = match known {
            Some(id) => id,
            None if self.by_id.len() >= UPSTREAMS => return Step::Refuse,
            None => {
                let id = self.next;
                self.next += 1;
                self.ids.insert(address, id);
                let track = Arc::clone(track);
                let upstream = Upstream { track, info_stream: None, stream: None, has_begun: false };
                self.by_id.insert(id, upstream);
                id
            }
        };
        let groups = is_wanted && self.by_id.get(&id).is_some_and(|upstream| upstream.stream.is_none());
        Step::Ask { id, info: known.is_none() && !is_known, groups }
    }

    fn remove(&mut self, id: u64) -> Option<Upstream> {
        let upstream = self.by_id.remove(&id)?;
        self.ids.remove(&(Arc::as_ptr(&upstream.track) as usize));
        Some(upstream)
    }

    /// The session is over, and with it what was asked of one track. False: there is none any more.
    pub(super) fn abandon_one(&mut self) -> bool {
        let Some(id) = self.by_id.keys().next().copied() else { return false };
        if let Some(upstream) = self.remove(id) {
            upstream.track.finish(End::Failed(stream_code::SESSION_CLOSED));
        }
        true
    }
}

/// A group that comes in.
pub(super) struct GroupIn {
    track: Arc<Track>,
    sequence: u64,
    frames: Frames,
}

impl GroupIn {
    /// Keeps what has come.
    ///
    /// # Errors
    /// It is not wanted, for this reason, a code of a stream.
    pub(super) fn take(&mut self, octets: &[u8], place: Option<&Place>) -> Result<(), u64> {
        let Some(place) = place else { return Err(stream_code::CANCEL) };
        if octets.is_empty() {
            return Ok(());
        }
        let counters = &place.room.counters;
        let before = self.frames.count;
        if self.frames.follow(octets, place.room.limits.frame).is_err() {
            counters.dropped_malformed.fetch_add(1, Relaxed);
            self.track.end_group(self.sequence, Err(stream_code::MALFORMED));
            return Err(stream_code::MALFORMED);
        }
        counters.objects.fetch_add(self.frames.count - before, Relaxed);
        counters.bytes.fetch_add(octets.len() as u64, Relaxed);
        match self.track.append(self.sequence, Bytes::copy_from_slice(octets)) {
            Appended::Kept => Ok(()),
            Appended::Unwanted(code) => Err(code),
        }
    }

    /// Its stream has ended, or was reset.
    pub(super) fn end(&self, is_reset: bool, place: Option<&Place>) {
        let end = match is_reset {
            true => Err(stream_code::CANCEL),
            false if self.frames.is_whole() => Ok(()),
            false => {
                if let Some(place) = place {
                    place.room.counters.dropped_malformed.fetch_add(1, Relaxed);
                }
                Err(stream_code::MALFORMED)
            }
        };
        self.track.end_group(self.sequence, end);
    }
}

impl Session {
    /// The peer begins a group.
    pub(super) fn begin_group(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        group: Group,
        octets: &[u8],
    ) -> Incoming {
        let unwanted = |turn: &mut Turn<'_>, code: u64| {
            turn.transport().stop_stream(stream, code);
            Incoming::Stopped
        };
        // One that we have unsubscribed from may be on its way still.
        let Some(upstream) = self.upstreams.by_id.get_mut(&group.subscription) else {
            return unwanted(turn, stream_code::CANCEL);
        };
        upstream.has_begun = true;
        let track = Arc::clone(&upstream.track);
        if !track.begin(group.sequence, turn.now()) {
            return unwanted(turn, stream_code::OLD);
        }
        if let Some(place) = &self.place {
            place.room.counters.groups.fetch_add(1, Relaxed);
        }
        let mut begun = GroupIn { track, sequence: group.sequence, frames: Frames::default() };
        match begun.take(octets, self.place.as_ref()) {
            Ok(()) => Incoming::Group(Box::new(begun)),
            Err(code) => unwanted(turn, code),
        }
    }

    /// Ends tracks of broadcasts that the peer's have replaced, and looks at those of its own of which something is wanted, or not any
    /// more. True: there are more.
    pub(super) fn serve_queue(&mut self, turn: &mut Turn<'_>) -> bool {
        while let Some(former) = self.replaced.front() {
            if !former.close_one() {
                self.replaced.pop_front();
            }
            if turn.spend() {
                return true;
            }
        }
        while let Some(track) = self.publisher.next() {
            self.serve(turn, &track);
            if turn.spend() {
                return true;
            }
        }
        false
    }

    fn serve(&mut self, turn: &mut Turn<'_>, track: &Arc<Track>) {
        if self.is_leaving && track.end().is_none() && track.is_wanted() {
            track.finish(End::Failed(stream_code::SESSION_CLOSED));
        }
        match self.upstreams.look(track) {
            Step::Drop(Some(upstream)) => {
                if let Some(stream) = upstream.info_stream {
                    self.writers.reset(turn.transport(), stream, stream_code::CANCEL);
                    self.unask(turn, stream);
                }
                if let Some(stream) = upstream.stream {
                    // The end of our side ends the subscription, if the peer has heard of it.
                    match self.writers.waiting(stream) {
                        0 => self.writers.write(turn.transport(), stream, Vec::new(), true),
                        _ => self.writers.reset(turn.transport(), stream, stream_code::CANCEL),
                    }
                    self.unask(turn, stream);
                }
                if track.end().is_none() {
                    track.clear();
                }
            }
            Step::Drop(None) => {}
            Step::Refuse => track.finish(End::Failed(stream_code::NO_CAPACITY)),
            Step::Ask { id, info, groups } => {
                let info = info.then(|| {
                    let asked = write::track(&track.broadcast, &track.name);
                    self.ask(turn, asked, Answers::Info(id, Arc::clone(track)))
                });
                let groups = groups.then(|| {
                    let wishes = Wishes { priority: PRIORITY, max_age: MAX_AGE, start: None, end: None };
                    let asked = write::subscribe(id, &track.broadcast, &track.name, wishes);
                    self.ask(turn, asked, Answers::Groups(id, None))
                });
                if let Some(upstream) = self.upstreams.by_id.get_mut(&id) {
                    upstream.info_stream = upstream.info_stream.or(info);
                    upstream.stream = upstream.stream.or(groups);
                }
            }
        }
    }

    /// Nothing more is to come on a stream of ours.
    fn unask(&mut self, turn: &mut Turn<'_>, stream: u64) {
        turn.transport().stop_stream(stream, stream_code::CANCEL);
        self.incoming.remove(&stream);
    }

    /// Asks the peer on a new stream, whose end would take back what is asked.
    fn ask(&mut self, turn: &mut Turn<'_>, asked: Vec<u8>, answers: Answers) -> u64 {
        let stream = self.writers.open_bidirectional();
        self.writers.write(turn.transport(), stream, asked, false);
        self.incoming.insert(stream, Incoming::Answers(answers, Vec::new()));
        stream
    }

    /// Takes in answers of the peer; what is incomplete stays in `buffer`.
    pub(super) fn hear(
        &mut self,
        turn: &mut Turn<'_>,
        answers: &mut Answers,
        buffer: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let mut at = 0;
        loop {
            let input = &buffer[at..];
            let heard = match answers {
                Answers::Broadcasts(origin @ None) => AnnounceOk::read(input).map(|(ok, length)| {
                    *origin = Some(ok.origin);
                    length
                }),
                Answers::Broadcasts(Some(origin)) => {
                    let origin = *origin;
                    Announce::read(input).map(|(announce, length)| {
                        self.handle_announce(turn, &announce, origin);
                        length
                    })
                }
                Answers::Info(_, track) => {
                    TrackInfo::read(input).and_then(|(info, length)| match track.set_info(info) {
                        true => Ok(length),
                        false => Err(Problem::Invalid("a second TRACK_INFO")),
                    })
                }
                Answers::Groups(_, end) => Answer::read(input).map(|(answer, length)| {
                    if let Answer::End(group) = answer {
                        *end = Some(group);
                    }
                    length
                }),
            };
            match heard {
                Ok(length) => at += length,
                Err(Problem::Incomplete) => break,
                Err(Problem::Invalid(words)) => return Err(words),
            }
        }
        buffer.drain(..at);
        Ok(())
    }

    /// The peer has ended a stream of ours, or reset it.
    pub(super) fn handle_last_answer(
        &mut self,
        turn: &mut Turn<'_>,
        answers: Answers,
        stream: u64,
        is_reset: bool,
    ) {
        match answers {
            // It has nothing to announce any more: what is there stays until the session ends.
            Answers::Broadcasts(_) => self.writers.write(turn.transport(), stream, Vec::new(), true),
            Answers::Info(id, track) => {
                self.writers.write(turn.transport(), stream, Vec::new(), true);
                if let Some(upstream) = self.upstreams.by_id.get_mut(&id) {
                    upstream.info_stream = None;
                }
                if track.info().is_none() {
                    track.finish(End::Failed(stream_code::NOT_FOUND));
                }
                // It may have been asked for this alone.
                self.publisher.ask(&track);
            }
            Answers::Groups(id, end) => {
                self.writers.write(turn.transport(), stream, Vec::new(), true);
                let Some(upstream) = self.upstreams.by_id.get_mut(&id) else { return };
                upstream.stream = None;
                let end = match end {
                    Some(group) if !is_reset => End::Complete(group),
                    _ if upstream.has_begun => End::Failed(stream_code::CANCEL),
                    _ => End::Failed(stream_code::NOT_FOUND),
                };
                // Groups that it has sent before may not have been read.
                self.upstreams.ended.push((id, end));
            }
        }
    }

    /// All that has come was read: subscriptions that the peer has ended have all of their groups.
    pub(super) fn settle_upstreams(&mut self) {
        for (id, end) in std::mem::take(&mut self.upstreams.ended) {
            if let Some(upstream) = self.upstreams.by_id.get(&id) {
                upstream.track.finish(end);
                // What still comes of its groups comes by their streams.
                self.publisher.ask(&upstream.track);
            }
        }
    }

    fn handle_announce(&mut self, turn: &Turn<'_>, announce: &Announce<'_>, origin: u64) {
        let Some(place) = self.place.clone() else { return };
        let own_path = announce.suffix;
        if !announce.is_active {
            if let Some(broadcast) = self.broadcasts.remove(own_path) {
                // Who has subscribed keeps what there is.
                place.room.retract(&broadcast, self.moq.number());
            }
            return;
        }
        let mut hops = announce.hops.clone();
        hops.extend((origin != 0).then_some(origin));
        // It came from here, or has come too far.
        if hops.contains(&self.moq.hop) || hops.len() >= MAX_HOPS {
            return;
        }
        // Another way to the same: nothing changes.
        if self.broadcasts.contains_key(own_path) {
            return;
        }
        let path = Self::full_path(&place, own_path);
        let counters = &place.room.counters;
        if path.is_empty()
            || path.len() > MAX_PATH
            || self.broadcasts.len() >= place.room.limits.session_broadcasts()
        {
            counters.refused_broadcast.fetch_add(1, Relaxed);
            return;
        }
        let broadcast =
            Broadcast::new(self.moq.number(), (&path, own_path), hops, Arc::clone(&self.publisher));
        match place.room.announce(Arc::clone(&broadcast)) {
            // So many are never replaced at a time, but on purpose.
            Ok(Some(former)) if self.replaced.len() >= REPLACED => former.close(),
            Ok(Some(former)) => {
                self.replaced.push_back(former);
                self.again(QUEUE);
            }
            Ok(None) => {}
            Err(TooMany) => {
                counters.refused_broadcast.fetch_add(1, Relaxed);
                tracing::debug!(remote = %turn.remote(), path, "MoQ: too many broadcasts");
                return;
            }
        }
        counters.broadcasts.fetch_add(1, Relaxed);
        self.broadcasts.insert(own_path.into(), broadcast);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::moq::room::{Limits, Room};

    #[test]
    fn a_track_is_asked_for_as_long_as_somebody_follows_it() {
        let track = Track::new(Room::new("studio", Limits::default()), "cam", "video");
        let mut upstreams = Upstreams::default();
        let waker = || Arc::new(AtomicUsize::new(0));
        assert!(matches!(upstreams.look(&track), Step::Drop(None)), "nobody follows it");
        let asks = track.follow(waker(), false).unwrap();
        assert!(matches!(upstreams.look(&track), Step::Ask { id: 0, info: true, groups: false }));
        let subscribes = track.follow(waker(), true).unwrap();
        assert!(matches!(upstreams.look(&track), Step::Ask { id: 0, info: false, groups: true }));
        upstreams.by_id.get_mut(&0).unwrap().stream = Some(1);
        assert!(matches!(upstreams.look(&track), Step::Ask { id: 0, info: false, groups: false }));
        // The publisher has said nothing of it.
        assert!(track.unfollow(subscribes) && track.unfollow(asks));
        assert!(matches!(upstreams.look(&track), Step::Drop(Some(Upstream { stream: Some(1), .. }))));
        assert!(upstreams.by_id.is_empty() && upstreams.ids.is_empty());
        // What it is like is known: only who subscribes keeps it.
        track.follow(waker(), false).unwrap();
        assert!(matches!(upstreams.look(&track), Step::Ask { id: 1, info: true, groups: false }));
        assert!(track.set_info(TrackInfo { priority: 0, max_age: 0, timescale: 0 }));
        assert!(matches!(upstreams.look(&track), Step::Drop(Some(_))));
    }

    #[test]
    fn so_many_tracks_are_asked_for_at_most() {
        let room = Room::new("studio", Limits::default());
        let mut upstreams = Upstreams::default();
        let track = |name: usize| {
            let track = Track::new(Arc::clone(&room), "cam", &name.to_string());
            track.follow(Arc::new(AtomicUsize::new(0)), true).unwrap();
            track
        };
        let tracks: Vec<_> = (0..UPSTREAMS).map(track).collect();
        assert!(tracks.iter().all(|track| matches!(upstreams.look(track), Step::Ask { .. })));
        let more = track(UPSTREAMS);
        assert!(matches!(upstreams.look(&more), Step::Refuse));
        tracks[0].finish(End::Complete(0));
        assert!(matches!(upstreams.look(&tracks[0]), Step::Drop(Some(_))));
        assert!(matches!(upstreams.look(&more), Step::Ask { .. }));
        assert_eq!(upstreams.by_id.len(), UPSTREAMS);
    }
}
