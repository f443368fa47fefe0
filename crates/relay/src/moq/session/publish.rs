//! What a peer publishes: broadcasts that it announces, groups that it sends, and its answers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use expressway_gateway::quic::Turn;

use super::{Incoming, QUEUE, RoomAccess, Session};
use crate::moq::broadcast::Broadcast;
use crate::moq::room::TooMany;
use crate::moq::track::{Appended, End, GroupId, Track};
use crate::moq::wire::{
    Announce, AnnounceOk, Answer, Frames, Group, MAX_HOPS, MAX_PATH, Message, Problem, TrackInfo, stream_code,
};

/// Broadcasts that the peer's have replaced whose tracks are ended one after another: as many as a room may have. It announces no more
/// meanwhile.
const REPLACED: usize = 4096;

/// What was asked of the peer on a stream of ours.
pub(super) enum Answers {
    /// Its broadcasts; the hop that it is, once it has said that.
    Broadcasts(Option<u64>),
    /// What a track is like, by the number of what is asked of it.
    Info(u64, Arc<Track>),
    /// The groups of a track, by the number of the subscription, and where it ends if that was said.
    Groups(u64, Option<u64>),
}

/// A group that comes in.
pub(super) struct GroupIn {
    track: Arc<Track>,
    group: GroupId,
    frames: Frames,
}

impl GroupIn {
    /// Keeps what has come.
    ///
    /// # Errors
    /// It is not wanted, for this reason, a code of a stream.
    pub(super) fn take(&mut self, octets: &[u8], access: Option<&RoomAccess>) -> Result<(), u64> {
        let Some(access) = access else { return Err(stream_code::CANCEL) };
        if octets.is_empty() {
            return Ok(());
        }
        let counters = &access.room.counters;
        let before = self.frames.count;
        if self.frames.follow(octets, access.room.limits.frame).is_err() {
            counters.dropped_malformed.fetch_add(1, Relaxed);
            self.track.end_group(self.group, Err(stream_code::MALFORMED));
            return Err(stream_code::MALFORMED);
        }
        counters.objects.fetch_add(self.frames.count - before, Relaxed);
        counters.bytes.fetch_add(octets.len() as u64, Relaxed);
        match self.track.append(self.group, Bytes::copy_from_slice(octets)) {
            Appended::Kept => Ok(()),
            Appended::Unwanted(code) => Err(code),
        }
    }

    /// Its stream has ended, or was reset.
    pub(super) fn end(&self, is_reset: bool, access: Option<&RoomAccess>) {
        let end = match is_reset {
            true => Err(stream_code::CANCEL),
            false if self.frames.is_whole() => Ok(()),
            false => {
                if let Some(access) = access {
                    access.room.counters.dropped_malformed.fetch_add(1, Relaxed);
                }
                Err(stream_code::MALFORMED)
            }
        };
        self.track.end_group(self.group, end);
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
        let Some(upstream) = self.upstreams.by_id.get(&group.subscription) else {
            return unwanted(turn, stream_code::CANCEL);
        };
        let track = Arc::clone(&upstream.track);
        let is_in_time = self.upstreams.count(group);
        let Some(begun) = is_in_time.then(|| track.begin(group.sequence, turn.now())).flatten() else {
            return unwanted(turn, stream_code::OLD);
        };
        if let Some(access) = &self.access {
            access.room.counters.groups.fetch_add(1, Relaxed);
        }
        let mut begun = GroupIn { track, group: begun, frames: Frames::default() };
        match begun.take(octets, self.access.as_ref()) {
            Ok(()) => Incoming::Group(Box::new(begun)),
            Err(code) => unwanted(turn, code),
        }
    }

    /// Takes in answers of the peer, as far as they are whole: so many octets.
    pub(super) fn hear(
        &mut self,
        turn: &mut Turn<'_>,
        answers: &mut Answers,
        octets: &[u8],
    ) -> Result<usize, &'static str> {
        let mut at = 0;
        loop {
            let input = &octets[at..];
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
                Answers::Groups(id, end) => Answer::read(input).map(|(answer, length)| {
                    match answer {
                        Answer::End(group) => *end = Some(group),
                        other => self.upstreams.hear(*id, other),
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
        Ok(at)
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
                self.upstreams.end(id, end.filter(|_| !is_reset), turn.now());
            }
        }
    }

    fn handle_announce(&mut self, turn: &Turn<'_>, announce: &Announce<'_>, origin: u64) {
        let Some(access) = self.access.clone() else { return };
        let own_path = announce.suffix;
        if !announce.is_active {
            if let Some(broadcast) = self.broadcasts.remove(own_path) {
                // Who has subscribed keeps what there is.
                access.room.retract(&broadcast, self.moq.number());
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
        let path = Self::full_path(&access, own_path);
        let counters = &access.room.counters;
        if path.is_empty()
            || path.len() > MAX_PATH
            || self.broadcasts.len() >= access.room.limits.session_broadcasts()
            || self.replaced.len() >= REPLACED
        {
            counters.refused_broadcast.fetch_add(1, Relaxed);
            return;
        }
        let broadcast =
            Broadcast::new(self.moq.number(), (&path, own_path), hops, Arc::clone(&self.publisher));
        match access.room.announce(Arc::clone(&broadcast)) {
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
        self.silence.expect(self.moq.sessions.publisher_timeout, turn.now());
    }
}
