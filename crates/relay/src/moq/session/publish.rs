//! What a peer publishes: broadcasts that it announces, tracks that are asked of it, groups that it sends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use expressway_gateway::quic::Turn;

use super::{Incoming, Place, Session};
use crate::moq::room::Broadcast;
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

/// What was asked of the peer on a stream of ours.
pub(super) enum Answers {
    /// Its broadcasts; the hop that it is, once it has said that.
    Broadcasts(Option<u64>),
    /// What a track is like.
    Info(Arc<Track>),
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

struct Upstream {
    track: Arc<Track>,
    /// The stream of the subscription, if there is one.
    stream: Option<u64>,
    /// It has sent a group.
    has_begun: bool,
}

impl Upstreams {
    fn remove(&mut self, id: u64) -> Option<Upstream> {
        let upstream = self.by_id.remove(&id)?;
        self.ids.remove(&(Arc::as_ptr(&upstream.track) as usize));
        Some(upstream)
    }

    /// The session is over, and with it all that was asked.
    pub(super) fn abandon(&mut self) {
        self.ids.clear();
        for (_, upstream) in self.by_id.drain() {
            upstream.track.finish(End::Failed(stream_code::SESSION_CLOSED));
        }
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

    /// Looks at the tracks of which something is wanted, or not any more. True: there are more.
    pub(super) fn serve_queue(&mut self, turn: &mut Turn<'_>) -> bool {
        while let Some(track) = self.publisher.next() {
            self.serve(turn, &track);
            if turn.spend() {
                return true;
            }
        }
        false
    }

    fn serve(&mut self, turn: &mut Turn<'_>, track: &Arc<Track>) {
        let address = Arc::as_ptr(track) as usize;
        let known = self.upstreams.ids.get(&address).copied();
        let (is_wanted, has_ended) = (track.is_wanted(), track.end().is_some());
        if has_ended || !is_wanted && track.info().is_some() {
            if let Some(upstream) = known.and_then(|id| self.upstreams.remove(id)) {
                if let Some(stream) = upstream.stream {
                    // The end of our side ends the subscription.
                    self.writers.write(turn.transport(), stream, Vec::new(), true);
                    turn.transport().stop_stream(stream, stream_code::CANCEL);
                    self.incoming.remove(&stream);
                }
                if !has_ended {
                    track.clear();
                }
            }
            return;
        }
        if self.is_leaving {
            return track.finish(End::Failed(stream_code::SESSION_CLOSED));
        }
        let id = known.unwrap_or_else(|| {
            let id = self.upstreams.next;
            self.upstreams.next += 1;
            self.upstreams.ids.insert(address, id);
            let upstream = Upstream { track: Arc::clone(track), stream: None, has_begun: false };
            self.upstreams.by_id.insert(id, upstream);
            if track.info().is_none() {
                let asked = write::track(&track.broadcast, &track.name);
                self.ask(turn, asked, Answers::Info(Arc::clone(track)));
            }
            id
        });
        let is_subscribed = self.upstreams.by_id.get(&id).is_some_and(|upstream| upstream.stream.is_some());
        if is_wanted && !is_subscribed {
            let wishes = Wishes { priority: PRIORITY, max_age: MAX_AGE, start: None, end: None };
            let asked = write::subscribe(id, &track.broadcast, &track.name, wishes);
            let stream = self.ask(turn, asked, Answers::Groups(id, None));
            if let Some(upstream) = self.upstreams.by_id.get_mut(&id) {
                upstream.stream = Some(stream);
            }
        }
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
                Answers::Info(track) => TrackInfo::read(input).map(|(info, length)| {
                    track.set_info(info);
                    length
                }),
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
            Answers::Info(track) => {
                self.writers.write(turn.transport(), stream, Vec::new(), true);
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
                place.room.retract(&broadcast);
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
        if path.is_empty() || path.len() > MAX_PATH || self.broadcasts.len() >= place.room.limits.broadcasts {
            counters.refused_broadcast.fetch_add(1, Relaxed);
            return;
        }
        let broadcast =
            Broadcast::new(self.moq.number(), (&path, own_path), hops, Arc::clone(&self.publisher));
        if !place.room.announce(Arc::clone(&broadcast)) {
            counters.refused_broadcast.fetch_add(1, Relaxed);
            tracing::debug!(remote = %turn.remote(), path, "MoQ: too many broadcasts");
            return;
        }
        counters.broadcasts.fetch_add(1, Relaxed);
        self.broadcasts.insert(own_path.into(), broadcast);
    }
}
