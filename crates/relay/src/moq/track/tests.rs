use std::sync::atomic::AtomicUsize;

use super::*;
use crate::moq::cache::DROPPED;
use crate::moq::room::Limits;
use crate::moq::wakers::PIECE;

fn track(track_cache: usize, room_cache: usize) -> Arc<Track> {
    let limits = Limits { track_cache, room_cache, ..Limits::default() };
    Track::new(Room::new("studio", limits), "cam", "video")
}

fn has(track: &Track, sequence: u64) -> bool {
    track.find(sequence).is_some()
}

fn read(track: &Track, cursor: &mut GroupCursor) -> Vec<u8> {
    let mut out = Vec::new();
    while let Next::Octets(octets) = track.next(cursor) {
        out.extend_from_slice(&octets);
        cursor.advance(octets.len(), octets.len());
    }
    out
}

#[test]
fn a_group_is_read_while_it_comes_in_and_to_its_end() {
    let (track, now) = (track(1 << 20, 1 << 20), Instant::now());
    let seven = track.begin(7, now).unwrap();
    assert_eq!(track.begin(7, now), None, "twice");
    assert_eq!(track.append(seven, Bytes::from_static(b"abc")), Appended::Kept);
    let mut cursor = GroupCursor::new(seven);
    assert_eq!(track.next(&cursor), Next::Octets(Bytes::from_static(b"abc")));
    cursor.advance(3, 1);
    assert_eq!(track.next(&cursor), Next::Octets(Bytes::from_static(b"bc")));
    cursor.advance(2, 2);
    assert_eq!(track.next(&cursor), Next::Wait);
    assert_eq!(track.append(seven, Bytes::from_static(b"d")), Appended::Kept);
    track.end_group(seven, Ok(()));
    assert_eq!(track.append(seven, Bytes::from_static(b"e")), Appended::Unwanted(stream_code::CANCEL));
    assert_eq!(read(&track, &mut cursor), b"d");
    assert_eq!(track.next(&cursor), Next::Complete);
    // Another reader has the same buffers from the start.
    assert_eq!(read(&track, &mut track.find(7).unwrap()), b"abcd");
    assert_eq!(track.find(8), None);
}

#[test]
fn what_a_track_is_like_is_said_once() {
    let track = track(1 << 20, 1 << 20);
    let woken = Arc::new(AtomicUsize::new(0));
    let key = track.follow(Arc::clone(&woken), false).unwrap();
    let info = |priority| TrackInfo { priority, max_age: 0, timescale: 0 };
    assert!(track.set_info(info(1)));
    track.look(key);
    assert!(!track.set_info(info(2)));
    assert_eq!((track.info(), woken.load(Relaxed)), (Some(info(1)), 1));
}

#[test]
fn the_newest_comes_first_and_old_ones_are_skipped() {
    let (track, now) = (track(1 << 20, 1 << 20), Instant::now());
    let age = Duration::from_millis(500);
    let progress = |next, floor| Progress { next, floor, ..Progress::default() };
    assert_eq!(track.choose(&progress(None, None), age, now), None);
    let [_, five, four] = [3, 5, 4].map(|sequence| track.begin(sequence, now).unwrap());
    let choose = |(next, floor), now| {
        let chosen = track.choose(&progress(next, floor), age, now);
        chosen.map(|chosen| (chosen.cursor.group.sequence, chosen.passed))
    };
    assert_eq!(choose((None, None), now), Some((5, 0)), "the newest at first");
    assert_eq!(choose((Some(4), None), now), Some((4, 0)));
    assert_eq!(choose((Some(3), Some(5)), now), Some((5, 2)), "what is below was given up");
    let later = now + Duration::from_secs(1);
    assert_eq!(choose((Some(3), None), later), Some((5, 2)), "3 and 4 are old");
    assert!(track.is_old(four, age, later) && !track.is_old(five, age, later));
    assert_eq!(choose((Some(6), None), later), None);
    track.clear();
    assert!(track.is_old(four, age, now), "it is not there");
}

#[test]
fn a_group_that_comes_after_a_later_one_is_begun_once() {
    let (track, now) = (track(1 << 20, 1 << 20), Instant::now());
    let mut progress = Progress::from(Some(0));
    let mut begun = |sequences: &[u64]| {
        for sequence in sequences {
            track.begin(*sequence, now).unwrap();
        }
        let mut all = Vec::new();
        while let Some(chosen) = track.choose(&progress, Duration::from_secs(1), now) {
            progress.advance(chosen.cursor.group.sequence, chosen.is_lost);
            all.push(chosen.cursor.group.sequence);
        }
        all
    };
    assert_eq!(begun(&[0, 3]), [0, 3]);
    assert_eq!(begun(&[2, 5]), [2, 5]);
    assert_eq!(begun(&[4, 1]), [1, 4]);
    assert_eq!(begun(&[6]), [6]);
    // Few are remembered, whatever the numbers.
    assert_eq!(begun(&[1 << 61]), [1 << 61]);
    assert_eq!(begun(&[7, (1 << 61) - 1, (1 << 62) - 1]), [(1 << 61) - 1, (1 << 62) - 1]);
    assert!(progress.missing.len() <= MISSING);
}

#[test]
fn what_is_kept_is_bounded() {
    let now = Instant::now();
    let chunk = || Bytes::from(vec![0; 1000 - CHUNK]);
    let both = track(3000, 1 << 20);
    let all = [0, 1, 2, 3, 4].map(|sequence| both.begin(sequence, now).unwrap());
    for group in all {
        assert_eq!(both.append(group, chunk()), Appended::Kept);
    }
    assert_eq!(both.room().cached(), 3000);
    assert!(!has(&both, 1) && has(&both, 2));
    // A group that alone is too large ends, and the next begins anew.
    for _ in 0..2 {
        assert_eq!(both.append(all[4], chunk()), Appended::Kept);
    }
    assert_eq!(both.append(all[4], chunk()), Appended::Unwanted(stream_code::GROUP_TOO_LARGE));
    assert_eq!(both.next(&GroupCursor::new(all[4])), Next::Gone(stream_code::GROUP_TOO_LARGE));
    assert_eq!(both.room().cached(), 0);
    let five = both.begin(5, now).unwrap();
    assert_eq!(both.append(five, chunk()), Appended::Kept);
    let two = track(3000, 1 << 20);
    for sequence in 0..=GROUPS as u64 {
        assert!(two.begin(sequence, now).is_some());
    }
    assert!(!has(&two, 0) && has(&two, 1), "so many groups at most");
    assert_eq!(two.begin(0, now), None, "older than all that is kept");
}

#[test]
fn where_the_room_is_full_the_largest_track_loses_old_groups() {
    let now = Instant::now();
    let limits = Limits { track_cache: 16 << 10, room_cache: 64 << 10, ..Limits::default() };
    let room = Room::new("studio", limits);
    let chunk = || Bytes::from(vec![0; 1024 - CHUNK]);
    let new = |name: &str| Track::new(Arc::clone(&room), "cam", name);
    let fill = |track: &Track, groups: std::ops::Range<u64>| {
        for sequence in groups {
            let group = track.begin(sequence, now).unwrap();
            for _ in 0..2 {
                assert_eq!(track.append(group, chunk()), Appended::Kept, "{sequence}");
            }
            track.end_group(group, Ok(()));
        }
    };
    // Four tracks take all that there is: a fifth has its groups all the same.
    let four = ["a", "b", "c", "d"].map(new);
    four.iter().for_each(|track| fill(track, 0..20));
    assert_eq!(room.cached(), 64 << 10);
    let fifth = new("e");
    fill(&fifth, 0..40);
    assert!(room.cached() <= 64 << 10);
    let kept = |track: &Track| (0..40).filter(|sequence| has(track, *sequence)).count();
    assert!(kept(&fifth) >= 5, "{}", kept(&fifth));
    for track in &four {
        assert!(kept(track) >= 5 && has(track, 19), "{}", kept(track));
    }
    drop(four);
    assert_eq!(room.cached(), 2048 * kept(&fifth));
    // Newest groups are not evicted while there are others: of what does not fit beside them, the longest ends.
    let large = ["f", "g", "h", "i"].map(new);
    let groups = large.each_ref().map(|track| track.begin(0, now).unwrap());
    let append = |at: usize| large[at].append(groups[at], chunk());
    for _ in 0..15 {
        (0..4).for_each(|at| assert_eq!(append(at), Appended::Kept));
    }
    assert_eq!(kept(&fifth), 2);
    let last = fifth.find(39).unwrap().group;
    assert_eq!(fifth.append(last, chunk()), Appended::Unwanted(stream_code::CANCEL), "it had ended");
    assert_eq!([append(0), append(1)], [Appended::Kept; 2]);
    assert_eq!(append(2), Appended::Unwanted(stream_code::GROUP_TOO_LARGE));
    assert!(has(&large[0], 0) && has(&fifth, 39));
}

#[test]
fn newest_groups_of_some_leave_others_their_share_of_a_room() {
    let now = Instant::now();
    let limits = Limits { track_cache: 16 << 10, room_cache: 64 << 10, ..Limits::default() };
    let room = Room::new("studio", limits);
    let chunk = || Bytes::from(vec![0; 1024 - CHUNK]);
    let new = |name: usize| Track::new(Arc::clone(&room), "cam", &name.to_string());
    // Four tracks take all that there is with groups that never end, and never send again.
    let greedy: Vec<_> = (0..4).map(new).collect();
    for track in &greedy {
        let group = track.begin(0, now).unwrap();
        (0..16).for_each(|_| assert_eq!(track.append(group, chunk()), Appended::Kept));
    }
    assert_eq!(room.cached(), 64 << 10);
    // Twelve more get a sixteenth each.
    let modest: Vec<_> = (4..16).map(new).collect();
    let groups: Vec<_> = modest.iter().map(|track| track.begin(0, now).unwrap()).collect();
    for _ in 0..4 {
        for (track, group) in modest.iter().zip(&groups) {
            assert_eq!(track.append(*group, chunk()), Appended::Kept, "{}", track.name);
        }
    }
    for (track, group) in modest.iter().zip(&groups) {
        assert!(matches!(track.next(&GroupCursor::new(*group)), Next::Octets(_)), "{}", track.name);
        assert!(room.cached() <= 64 << 10);
    }
    let cut = room.counters.dropped_group_too_large.load(Relaxed);
    assert!((1..=4).contains(&cut), "{cut}: those that had more, and no more than it took");
}

#[test]
fn what_comes_of_a_former_stream_does_not_reach_a_group_of_the_same_number() {
    let (track, now) = (track(1 << 20, 1 << 20), Instant::now());
    let former = track.begin(7, now).unwrap();
    assert_eq!(track.append(former, Bytes::from_static(b"old")), Appended::Kept);
    let mut behind = GroupCursor::new(former);
    behind.advance(3, 3);
    // Nobody subscribes any more, then somebody does: the publisher sends the group from its start.
    track.clear();
    let group = track.begin(7, now).unwrap();
    assert_eq!(track.append(group, Bytes::from_static(b"new")), Appended::Kept);
    assert_eq!(track.append(former, Bytes::from_static(b"old")), Appended::Unwanted(stream_code::EVICTED));
    track.end_group(former, Err(stream_code::MALFORMED));
    assert_eq!(track.append(group, Bytes::from_static(b"er")), Appended::Kept);
    track.end_group(group, Ok(()));
    assert_eq!(read(&track, &mut track.find(7).unwrap()), b"newer");
    // Nor does who was in the midst of the former go on with the other.
    assert_eq!(track.next(&behind), Next::Gone(stream_code::EVICTED));
}

#[test]
fn thousands_who_follow_a_track_are_woken_in_pieces() {
    let (track, now) = (track(1 << 20, 1 << 20), Instant::now());
    let woken = Arc::new(AtomicUsize::new(0));
    (0..FOLLOWERS).for_each(|_| assert!(track.follow(Arc::clone(&woken), true).is_some()));
    assert_eq!(track.follow(Arc::clone(&woken), true), None);
    let room = Arc::clone(track.room());
    assert!(!room.take_rest());
    let group = track.begin(0, now).unwrap();
    assert_eq!(woken.load(Relaxed), PIECE, "no more in the turn that brings it");
    assert!(room.take_rest() && !room.take_rest(), "one does the rest");
    let mut pieces = 1;
    while room.do_some() {
        pieces += 1;
        assert_eq!(woken.load(Relaxed), PIECE * pieces.min(FOLLOWERS / PIECE));
    }
    assert_eq!(woken.load(Relaxed), FOLLOWERS);
    assert!(!room.take_rest());
    assert_eq!(track.append(group, Bytes::from_static(b"abc")), Appended::Kept);
    assert!(room.take_rest());
    while room.do_some() {}
    assert_eq!(woken.load(Relaxed), FOLLOWERS, "nobody has looked");
}

/// Begins groups of as many chunks of an octet.
fn fill(track: &Track, groups: std::ops::Range<u64>, chunks: usize) {
    for sequence in groups {
        let group = track.begin(sequence, Instant::now()).unwrap();
        for _ in 0..chunks {
            assert_eq!(track.append(group, Bytes::from_static(b"x")), Appended::Kept);
        }
    }
}

#[test]
fn many_chunks_are_dropped_in_pieces_and_count_until_they_are() {
    const CHUNKS: usize = 4 * DROPPED;
    // One group of many, many of a few, and as many as fit in a piece at most.
    for (groups, chunks) in [(1, CHUNKS), (256, CHUNKS / 256), (4, DROPPED)] {
        for by_drop in [false, true] {
            let track = track(1 << 20, 1 << 20);
            fill(&track, 0..groups, chunks);
            let room = Arc::clone(track.room());
            match by_drop {
                true => drop(track),
                false => track.clear(),
            }
            assert_eq!(room.cached(), CHUNKS * (1 + CHUNK), "nothing is dropped at once");
            assert!(room.take_rest() && !room.take_rest());
            for piece in 1..=4 {
                assert_eq!(room.do_some(), piece < 4, "{groups} {piece}");
                assert_eq!(room.cached(), (CHUNKS - piece * DROPPED) * (1 + CHUNK));
            }
            assert!(!room.take_rest());
        }
    }
    let track = track(1 << 20, 1 << 20);
    fill(&track, 0..4, DROPPED / 4);
    track.clear();
    assert_eq!(track.room().cached(), 0, "few are");
    assert!(!track.room().take_rest());
}

#[test]
fn who_needs_room_drops_what_is_not_kept_any_more_before_others_lose_something() {
    const CHUNKS: usize = 16 * DROPPED;
    let limit = CHUNKS * (1 + CHUNK);
    let limits = Limits { track_cache: limit, room_cache: 2 * limit, ..Limits::default() };
    let room = Room::new("studio", limits);
    let [gone, kept, next] = ["a", "b", "c"].map(|name| Track::new(Arc::clone(&room), "cam", name));
    fill(&gone, 0..16, DROPPED);
    fill(&kept, 0..16, DROPPED);
    drop(gone);
    assert_eq!(room.cached(), 2 * limit);
    let group = next.begin(0, Instant::now()).unwrap();
    let chunk = || Bytes::from(vec![0; (64 << 10) - CHUNK]);
    let mut count = 0;
    while (count + 1) << 16 <= limit {
        assert_eq!(next.append(group, chunk()), Appended::Kept);
        assert!(room.cached() <= 2 * limit);
        count += 1;
    }
    assert!((0..16).all(|sequence| has(&kept, sequence)), "nobody else lost anything");
    assert_eq!(room.counters.groups_evicted.load(Relaxed), 0);
}

#[test]
fn a_track_that_has_ended_keeps_nothing_once_nobody_follows_it() {
    let (track, now) = (track(1 << 20, 1 << 20), Instant::now());
    let group = track.begin(0, now).unwrap();
    assert_eq!(track.append(group, Bytes::from_static(b"abc")), Appended::Kept);
    assert_eq!(track.room().cached(), 3 + CHUNK);
    track.finish(End::Complete(1));
    assert_eq!((track.room().cached(), has(&track, 0)), (0, false), "nobody follows it");
    assert_eq!(track.append(group, Bytes::from_static(b"d")), Appended::Unwanted(stream_code::EVICTED));
    assert_eq!(track.begin(1, now), None);
    assert_eq!(track.room().cached(), 0);
}

#[test]
fn who_follows_a_track_that_has_ended_reads_it_to_its_end() {
    let (track, now) = (track(1 << 20, 1 << 20), Instant::now());
    let woken = Arc::new(AtomicUsize::new(0));
    let keys = [true, false].map(|subscribes| track.follow(Arc::clone(&woken), subscribes).unwrap());
    let group = track.begin(0, now).unwrap();
    assert_eq!(track.append(group, Bytes::from_static(b"abc")), Appended::Kept);
    assert_eq!(woken.load(Relaxed), 2, "once until they look");
    track.end_group(group, Ok(()));
    track.finish(End::Complete(1));
    assert!(track.unfollow(keys[0]), "no subscriber is left");
    let mut cursor = GroupCursor::new(group);
    assert_eq!(read(&track, &mut cursor), b"abc");
    assert_eq!(track.next(&cursor), Next::Complete);
    assert!(track.unfollow(keys[1]), "nobody is left");
    assert_eq!((track.room().cached(), has(&track, 0)), (0, false));
    assert_eq!(track.follow(woken, true), None);
}
