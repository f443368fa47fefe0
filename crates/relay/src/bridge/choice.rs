//! Which of several streams of a kind is bridged: the first, until it falls silent, and of the layers of a simulcast the one with the
//! highest rate.

use std::time::{Duration, Instant};

use rtp_types::RtpPacket;

use super::lane::Arrived;
use super::{Bridge, catalog, info, place, priority};
use crate::config::{Codec, Kind};
use crate::moq::local::Standing;
use crate::rtp::Room;
use crate::webrtc::{begins_keyframe, layers};

/// Silence after which another stream takes the place of a lane's.
const SILENT: Duration = Duration::from_secs(1);
/// What a layer needs of the rate of the present one to take its place, in percent: rates swing.
const BETTER: u64 = 120;

impl Bridge {
    /// A packet of a stream beside that of its lane. False: that is silent and of another codec, so that all begins anew.
    pub(super) fn take_other(
        &mut self,
        room: &mut Room,
        arrived: Arrived,
        codec: Codec,
        now: Instant,
    ) -> bool {
        let Some(lane) = &mut self.lanes[place(codec.kind())] else { return false };
        let former = lane.stream;
        let before = room.streams().get(usize::from(former));
        let is_silent = before.is_none_or(|before| now.saturating_duration_since(before.last) >= SILENT);
        if lane.codec() != codec && is_silent {
            self.end(room);
            return false;
        }
        let kept = room.history().at(arrived.position);
        let begins = self.candidate == Some(arrived.stream)
            && kept
                .and_then(|kept| RtpPacket::parse(kept.bytes).ok())
                .is_some_and(|packet| begins_keyframe(codec, packet.payload()));
        if lane.codec() != codec || !(is_silent || begins) {
            self.counters.other_streams += 1;
            return true;
        }
        lane.change(arrived, &mut self.counters, now);
        if codec.kind() == Kind::Video {
            self.candidate = None;
        }
        room.watch([former].into_iter(), [arrived.stream].into_iter());
        true
    }

    /// Now and then: another may publish the same broadcast, and a better layer may be there.
    pub(super) fn look_around(&mut self, room: &mut Room, now: Instant) {
        self.follow_standing(now);
        let layers = layers(room, Kind::Video, now);
        let lane = self.lanes[place(Kind::Video)].as_ref();
        let present = lane.and_then(|lane| layers.iter().find(|layer| layer.number == lane.stream));
        let least = present.map_or(0, |present| present.rate * BETTER / 100);
        let best = layers.last().filter(|best| best.rate >= least).map(|best| best.number);
        self.candidate = match (lane, best) {
            (Some(lane), Some(best)) if best != lane.stream => {
                let codec = room.streams().get(usize::from(best)).map(|stream| stream.payload_type);
                let codec = codec.and_then(|number| room.config().codecs[usize::from(number)]);
                (codec == Some(lane.codec())).then_some(best)
            }
            _ => None,
        };
        if let Some(candidate) = self.candidate {
            self.counters.keyframes_wanted += 1;
            room.want_session_keyframe(candidate);
        }
    }

    fn follow_standing(&mut self, now: Instant) {
        let Some(one) = self.broadcast.as_mut().filter(|one| one.is_announced) else { return };
        let standing = one.broadcast.standing();
        if standing == Standing::Same {
            return;
        }
        one.is_taken = standing == Standing::Taken;
        one.catalog = None;
        for lane in self.lanes.iter_mut().flatten() {
            lane.detach();
            if standing == Standing::Gone {
                // Its next key frame goes into a catalog, and that into another broadcast.
                lane.decoding = None;
            }
            if standing == Standing::Again && lane.decoding.is_some() {
                lane.track = one.broadcast.track(catalog::track(lane.kind()), info(priority(lane.kind())));
            }
        }
        match standing {
            Standing::Again => {
                self.write_catalog(now);
                if let Some(one) = &self.broadcast {
                    one.broadcast.fix();
                }
            }
            Standing::Gone => self.broadcast = None,
            Standing::Same | Standing::Taken => {}
        }
    }
}
