//! Target of Media over QUIC: messages, and the frames of a group. Whole sessions are a target of [`crate::quic`].

use expressway_relay::moq::wire::{
    Announce, AnnounceOk, AnnounceRequest, Answer, Fetch, Frames, Goaway, Group, Message, Problem, Setup,
    Subscribe, Track, TrackInfo, Wishes, stream_type,
};

use crate::cost::Bound;

/// What reading costs: the text of each field is looked at once, and hops are kept.
pub const MESSAGE: Bound =
    Bound { steps: (60, 2000), allocations: (1, 10), bytes: (40, 1000), peak: (10, 1000) };

/// The longest frame of a group.
const LONGEST: u64 = 4096;

/// A byte that says which message it is, and then messages until one cannot be read; or the size of pieces, and frames.
pub fn message(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    match kind {
        0 => messages(rest, |input| Setup::read(input).map(|(_, length)| length)),
        1 => messages(rest, |input| AnnounceRequest::read(input).map(|(_, length)| length)),
        2 => messages(rest, |input| AnnounceOk::read(input).map(|(_, length)| length)),
        3 => messages(rest, |input| Announce::read(input).map(|(_, length)| length)),
        4 => messages(rest, |input| Subscribe::read(input).map(|(_, length)| length)),
        5 => messages(rest, |input| Wishes::read(input).map(|(_, length)| length)),
        6 => messages(rest, |input| Track::read(input).map(|(_, length)| length)),
        7 => messages(rest, |input| TrackInfo::read(input).map(|(_, length)| length)),
        8 => messages(rest, |input| Fetch::read(input).map(|(_, length)| length)),
        9 => messages(rest, |input| Goaway::read(input).map(|(_, length)| length)),
        10 => messages(rest, |input| Group::read(input).map(|(_, length)| length)),
        11 => messages(rest, |input| Answer::read(input).map(|(_, length)| length)),
        12 => messages(rest, |input| stream_type(input).map(|(_, length)| length).ok_or(Problem::Incomplete)),
        size => frames(rest, size.into()),
    }
}

/// Reads until there is nothing whole: no part of a message is one.
fn messages(mut input: &[u8], read: impl Fn(&[u8]) -> Result<usize, Problem>) {
    while let Ok(length) = read(input) {
        assert!((1..=input.len()).contains(&length), "{length} of {} bytes", input.len());
        assert_eq!(read(&input[..length - 1]), Err(Problem::Incomplete));
        assert_eq!(read(&input[..length]), Ok(length));
        input = &input[length..];
    }
}

/// Frames are the same in whatever pieces they come.
fn frames(input: &[u8], size: usize) {
    let (mut whole, mut parts) = (Frames::default(), Frames::default());
    let all = whole.follow(input, LONGEST);
    let each = input.chunks(size).try_for_each(|piece| parts.follow(piece, LONGEST));
    assert_eq!(all, each);
    assert_eq!((whole.count, whole.is_whole()), (parts.count, parts.is_whole()));
}
