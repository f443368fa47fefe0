//! Which layer of a publisher's simulcast a session sees (RFC 8853): the most that its path carries, and no more than it asks for.
//!
//! Layers are ordinary streams of the room. Each session chooses for itself.

use std::time::{Duration, Instant};

use crate::config::Kind;
use crate::rtp::Room;

/// Silence after which a layer counts as paused: its publisher has stopped it.
const PAUSED: Duration = Duration::from_secs(1);
/// How long a session stays with a layer before it sees a higher one: an estimate that swings would have it change all the time, at
/// the price of a key frame each.
const STAY: Duration = Duration::from_secs(2);
/// What a higher layer needs of the estimate, in percent of its rate: its rate swings too.
const UP: u64 = 120;

/// A layer that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layer<'a> {
    /// Its stream in the room.
    pub(crate) number: u8,
    /// Its RID.
    pub(crate) rid: &'a str,
    /// Bits per second.
    pub(crate) rate: u64,
}

/// What a session may see.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wish<'a> {
    /// Bits per second that its path carries; `None`: unknown.
    pub(super) budget: Option<u64>,
    /// The RID of the highest layer that it asks for.
    pub(super) highest: Option<&'a str>,
}

/// The layers that are not paused, the one with the lowest rate first. RIDs say nothing of an order, and publishers keep none in offers.
pub(crate) fn layers<'a>(room: &'a Room, kind: Kind, now: Instant) -> Vec<Layer<'a>> {
    let there = room.streams().iter().enumerate().filter_map(|(number, stream)| {
        let rid = stream.layer.as_deref()?;
        let codec = room.config().codecs[usize::from(stream.payload_type)]?;
        let is_there = codec.kind() == kind && now.saturating_duration_since(stream.last) < PAUSED;
        is_there.then(|| Layer { number: number as u8, rid, rate: stream.rate.bits_per_second(now) })
    });
    let mut layers: Vec<_> = there.collect();
    layers.sort_by_key(|layer| layer.rate);
    layers
}

/// The layers up to the one that is asked for, if that is there.
pub(super) fn up_to<'a, 'b>(layers: &'b [Layer<'a>], highest: Option<&str>) -> &'b [Layer<'a>] {
    let last = highest.and_then(|rid| layers.iter().position(|layer| layer.rid == rid));
    last.map_or(layers, |last| &layers[..=last])
}

/// The one to see, by its stream: of `layers`, the highest that fits, or else the lowest. A session sees `current` since `since`.
pub(super) fn choose(
    layers: &[Layer<'_>],
    current: Option<(u8, Instant)>,
    wish: Wish<'_>,
    now: Instant,
) -> Option<u8> {
    let layers = up_to(layers, wish.highest);
    let place = current.and_then(|(number, _)| layers.iter().position(|layer| layer.number == number));
    let stays = current.is_some_and(|(_, since)| now.saturating_duration_since(since) < STAY);
    let fits = |(index, layer): &(usize, &Layer<'_>)| {
        let is_higher = place.is_some_and(|place| *index > place);
        let percent = if is_higher { UP } else { 100 };
        // What is asked for by name is no swing of an estimate.
        !(is_higher && stays && wish.budget.is_some())
            && wish.budget.is_none_or(|budget| layer.rate * percent / 100 <= budget)
    };
    let best = layers.iter().enumerate().rfind(fits);
    best.map(|(_, layer)| layer).or(layers.first()).map(|layer| layer.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: [Layer<'static>; 3] = [
        Layer { number: 2, rid: "l", rate: 100_000 },
        Layer { number: 0, rid: "m", rate: 400_000 },
        Layer { number: 1, rid: "h", rate: 1_000_000 },
    ];

    fn chosen(current: Option<u8>, budget: Option<u64>, highest: Option<&str>) -> Option<u8> {
        let now = Instant::now();
        let since = now.checked_sub(STAY).unwrap();
        choose(&LAYERS, current.map(|number| (number, since)), Wish { budget, highest }, now)
    }

    #[test]
    fn the_highest_that_fits_is_seen() {
        for (budget, number) in [
            (None, 1),
            (Some(5_000_000), 1),
            (Some(1_000_000), 1),
            (Some(999_999), 0),
            (Some(400_000), 0),
            (Some(399_999), 2),
            (Some(0), 2),
        ] {
            assert_eq!(chosen(None, budget, None), Some(number), "{budget:?}");
        }
        assert_eq!(choose(&[], None, Wish::default(), Instant::now()), None);
    }

    #[test]
    fn up_takes_more_than_staying() {
        assert_eq!(chosen(Some(0), Some(1_100_000), None), Some(0));
        assert_eq!(chosen(Some(0), Some(1_200_000), None), Some(1));
        assert_eq!(chosen(Some(1), Some(1_000_000), None), Some(1));
        let now = Instant::now();
        let wish = Wish { budget: Some(5_000_000), highest: None };
        assert_eq!(choose(&LAYERS, Some((0, now)), wish, now), Some(0), "it has only just come");
        let low = Wish { budget: Some(0), highest: None };
        assert_eq!(choose(&LAYERS, Some((1, now)), low, now), Some(2), "down at once");
    }

    #[test]
    fn no_more_than_is_asked_for() {
        assert_eq!(chosen(Some(1), None, Some("m")), Some(0));
        assert_eq!(chosen(Some(1), Some(5_000_000), Some("l")), Some(2));
        assert_eq!(chosen(None, Some(200_000), Some("m")), Some(2), "what does not fit is not sent");
        assert_eq!(chosen(None, None, Some("other")), Some(1), "there is none of that name");
    }
}
