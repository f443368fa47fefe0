//! Tracks that are requested from a peer.
//!
//! On the stream of a subscription, a publisher says where its groups begin, which of them will not come, and where they end. The groups
//! arrive on streams of their own, possibly later. A track ends when all announced groups have begun, or when the rest has not begun for
//! [`LATE`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_gateway::quic::Turn;

use super::publish::Answers;
use super::{Incoming, Session};
use crate::moq::track::{End, Track};
use crate::moq::wire::{Answer, Group, Wishes, stream_code, write};

/// How old a group may be that a publisher still sends, in milliseconds: subscribers have limits of their own, and what
/// is kept has one in octets.
const MAX_AGE: u64 = 30_000;
/// Of what is asked of publishers, all of which is for subscribers with priorities of their own.
const PRIORITY: u8 = 128;

/// Tracks that are asked of a peer at a time.
const UPSTREAMS: usize = 4096;

/// How long groups are waited for when a publisher has said that there are no more: for as long as QUIC sends lost packets again on most paths.
const LATE: Duration = Duration::from_secs(2);

/// Tracks that are asked of the peer.
#[derive(Default)]
pub(super) struct Upstreams {
    pub(super) by_id: HashMap<u64, Upstream>,
    /// By the address of the track.
    ids: HashMap<usize, u64>,
    next: u64,
    /// Subscriptions that the peer has ended.
    ended: Vec<u64>,
    /// Those of them with groups that have not come, and how long these are waited for.
    late: VecDeque<(Instant, u64)>,
}

#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) track: Arc<Track>,
    /// The stream of the TRACK request, until it is answered.
    pub(super) info_stream: Option<u64>,
    /// The stream of the subscription, if there is one.
    stream: Option<u64>,
    /// The first group that is to come, once that was said.
    first: Option<u64>,
    /// Groups that have begun, and those that were said not to come.
    seen: u64,
    end: Option<End>,
    /// It is among those that have ended.
    is_settled: bool,
}

impl Upstream {
    fn new(track: Arc<Track>) -> Self {
        let (first, end) = (None, None);
        Self { track, info_stream: None, stream: None, first, seen: 0, end, is_settled: false }
    }

    /// All groups have begun that there are to be.
    fn is_all_there(&self) -> bool {
        match self.end {
            Some(End::Complete(boundary)) => {
                boundary.saturating_sub(self.first.unwrap_or_default()) <= self.seen
            }
            Some(End::Failed(_)) => true,
            None => false,
        }
    }
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
                self.by_id.insert(id, Upstream::new(track));
                id
            }
        };
        // One that has ended is not asked for again: its last groups are on their way.
        let is_open = |upstream: &Upstream| upstream.stream.is_none() && upstream.end.is_none();
        let groups = is_wanted && self.by_id.get(&id).is_some_and(is_open);
        Step::Ask { id, info: known.is_none() && !is_known, groups }
    }

    fn remove(&mut self, id: u64) -> Option<Upstream> {
        let upstream = self.by_id.remove(&id)?;
        self.ids.remove(&(Arc::as_ptr(&upstream.track) as usize));
        Some(upstream)
    }

    /// The peer has begun a group. False: it had said that there would be no such group.
    pub(super) fn count(&mut self, group: Group) -> bool {
        let Some(upstream) = self.by_id.get_mut(&group.subscription) else { return false };
        if let Some(End::Complete(boundary)) = upstream.end
            && group.sequence >= boundary
        {
            return false;
        }
        if upstream.first.is_none_or(|first| group.sequence >= first) {
            upstream.seen = upstream.seen.saturating_add(1);
        }
        if upstream.is_all_there() && !std::mem::replace(&mut upstream.is_settled, true) {
            self.ended.push(group.subscription);
        }
        true
    }

    /// The peer says which group is the first, or that some do not come.
    pub(super) fn hear(&mut self, id: u64, answer: Answer) {
        let Some(upstream) = self.by_id.get_mut(&id) else { return };
        match answer {
            Answer::Start(group) => _ = upstream.first.get_or_insert(group),
            Answer::Drop { first, last, .. } => {
                let count = last.checked_sub(first).map_or(0, |between| between.saturating_add(1));
                upstream.seen = upstream.seen.saturating_add(count);
            }
            Answer::End(_) => {}
        }
    }

    /// The peer has ended a subscription, at this group if it said so.
    pub(super) fn end(&mut self, id: u64, boundary: Option<u64>, now: Instant) {
        let Some(upstream) = self.by_id.get_mut(&id) else { return };
        upstream.stream = None;
        let has_begun = upstream.seen > 0;
        upstream.end = Some(match boundary {
            Some(group) => End::Complete(group),
            None if has_begun => End::Failed(stream_code::CANCEL),
            None => End::Failed(stream_code::NOT_FOUND),
        });
        // Groups that it has sent before may not have been read, or not have come.
        upstream.is_settled = upstream.is_all_there();
        match upstream.is_settled {
            true => self.ended.push(id),
            false => self.late.push_back((now + LATE, id)),
        }
    }

    /// The next that the peer has ended and all of whose groups have begun.
    fn next_settled(&mut self) -> Option<u64> {
        self.ended.pop()
    }

    /// There is such a subscription.
    pub(super) fn has_settled(&self) -> bool {
        !self.ended.is_empty()
    }

    /// The next whose groups were waited for long enough.
    fn next_late(&mut self, now: Instant) -> Option<u64> {
        let is_due = self.late.front().is_some_and(|(at, _)| *at <= now);
        is_due.then(|| self.late.pop_front()).flatten().map(|(_, id)| id)
    }

    /// When groups have been waited for long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.late.front().map(|(at, _)| *at)
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

impl Session {
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
        self.incomplete.forget(stream);
    }

    /// Asks the peer on a new stream, whose end would take back what is asked.
    fn ask(&mut self, turn: &mut Turn<'_>, asked: Vec<u8>, answers: Answers) -> u64 {
        let stream = self.writers.open_bidirectional();
        self.writers.write(turn.transport(), stream, asked, false);
        self.incoming.insert(stream, Incoming::Answers(answers));
        stream
    }

    /// All that has come was read: subscriptions that the peer has ended, and whose groups have begun, are over. True: there are more,
    /// for another turn.
    pub(super) fn settle_upstreams(&mut self, turn: &mut Turn<'_>) -> bool {
        while let Some(id) = self.upstreams.next_settled() {
            self.settle(id);
            if turn.spend() {
                return true;
            }
        }
        false
    }

    /// So are those whose groups have been waited for long enough. True: there are more, for another turn.
    pub(super) fn settle_late(&mut self, turn: &mut Turn<'_>) -> bool {
        while let Some(id) = self.upstreams.next_late(turn.now()) {
            self.settle(id);
            if turn.spend() {
                return true;
            }
        }
        false
    }

    fn settle(&self, id: u64) {
        // It may be over for another reason by now.
        let Some(Upstream { track, end: Some(end), .. }) = self.upstreams.by_id.get(&id) else { return };
        track.finish(*end);
        // What still comes of its groups comes by their streams.
        self.publisher.ask(track);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::moq::room::{Limits, Room};
    use crate::moq::wire::TrackInfo;

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

    /// A track that is asked for, as number 0, of which there are groups from 3 on.
    fn asked() -> (Upstreams, Arc<Track>) {
        let track = Track::new(Room::new("studio", Limits::default()), "cam", "video");
        let mut upstreams = Upstreams::default();
        track.follow(Arc::new(AtomicUsize::new(0)), true).unwrap();
        assert!(matches!(upstreams.look(&track), Step::Ask { id: 0, groups: true, .. }));
        upstreams.by_id.get_mut(&0).unwrap().stream = Some(1);
        upstreams.hear(0, Answer::Start(3));
        (upstreams, track)
    }

    fn group(sequence: u64) -> Group {
        Group { subscription: 0, sequence }
    }

    #[test]
    fn groups_that_come_after_the_end_of_their_subscription_are_waited_for() {
        let (mut upstreams, track) = asked();
        let now = Instant::now();
        assert!(upstreams.count(group(3)));
        // Group 4 does not come, and 5 comes later than the end.
        upstreams.hear(0, Answer::Drop { first: 4, last: 4, code: 0 });
        upstreams.end(0, Some(6), now);
        assert_eq!((upstreams.next_settled(), upstreams.next_late(now)), (None, None));
        assert_eq!(upstreams.deadline(), Some(now + LATE));
        assert!(
            matches!(upstreams.look(&track), Step::Ask { id: 0, info: false, groups: false }),
            "it is not asked for again meanwhile"
        );
        assert!(!upstreams.count(group(6)), "there was to be no such group");
        assert_eq!(upstreams.next_settled(), None);
        assert!(upstreams.count(group(5)));
        assert_eq!((upstreams.next_settled(), upstreams.next_settled()), (Some(0), None));
        assert_eq!(upstreams.by_id[&0].end, Some(End::Complete(6)));
    }

    #[test]
    fn groups_that_never_come_are_not_waited_for_long() {
        let (mut upstreams, _track) = asked();
        let now = Instant::now();
        upstreams.end(0, Some(u64::MAX >> 2), now);
        assert_eq!(upstreams.next_settled(), None);
        assert_eq!(upstreams.next_late(now + LATE / 2), None);
        assert_eq!(upstreams.next_late(now + LATE), Some(0));
        assert_eq!(upstreams.deadline(), None);
        // Numbers that cannot be add up to nothing that overflows.
        upstreams.hear(0, Answer::Drop { first: 0, last: u64::MAX, code: 0 });
        upstreams.hear(0, Answer::Drop { first: 9, last: 3, code: 0 });
        upstreams.hear(0, Answer::Drop { first: 0, last: u64::MAX, code: 0 });
        assert!(upstreams.count(group(3)));
    }

    #[test]
    fn a_subscription_that_is_reset_is_over_at_once() {
        let (mut upstreams, _track) = asked();
        upstreams.end(0, None, Instant::now());
        assert_eq!((upstreams.next_settled(), upstreams.deadline()), (Some(0), None));
        assert_eq!(upstreams.by_id[&0].end, Some(End::Failed(stream_code::NOT_FOUND)));
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
