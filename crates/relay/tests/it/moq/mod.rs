//! Sessions of Media over QUIC on a simulated network.

mod beginnings;
mod peer;
mod webtransport;
mod world;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use expressway_netio::sim::Link;
use expressway_relay::moq::Sessions;
use expressway_relay::moq::room::Limits;
use expressway_relay::moq::wire::{Answer, Fetch, Message, stream_code, write};
use peer::group;
use world::World;

/// Sends groups one after another, the next when the one that reads has the one before.
fn feed(
    world: &mut World,
    (publisher, reader): (usize, usize),
    id: u64,
    numbers: std::ops::Range<u64>,
    size: usize,
) {
    let object = vec![0x5a; size];
    for number in numbers {
        world.peers[publisher].group(id, number, &object);
        world.until("a group", |world| world.peers[reader].groups().last() == Some(&number));
    }
}

#[test]
fn who_acknowledges_nothing_holds_no_more_than_a_session_may_and_goes_on_with_the_newest() {
    const MOST: usize = 128 << 10;
    let sessions = Sessions { memory: MOST, ..Sessions::default() };
    let mut world = World::new(Limits::default(), sessions, 64 << 20);
    let publisher = world.publisher();
    let (reader, id) = world.subscriber(publisher);
    let (slow, _) = world.subscriber(publisher);
    // Both read at first, so that their congestion windows permit much more.
    feed(&mut world, (publisher, reader), id, 0..20, 200_000);
    world.until("the same", |world| world.peers[slow].groups().len() == 20);
    world.peers[slow].deaf = true;
    feed(&mut world, (publisher, reader), id, 20..40, 200_000);
    // What the other was sent is acknowledged in a moment.
    world.until("what one session may hold", |world| world.held() <= MOST);
    world.for_a_while(Duration::from_millis(100));
    let (held, counted) = (world.held(), world.memory.total());
    assert!(held > MOST / 2, "it is counted: {held}");
    assert!(held <= MOST && counted <= 2 * MOST, "{held}, {counted} with what it takes beside");
    assert!(world.room.counters.starved.load(Relaxed) > 0);
    assert_eq!(world.peers[reader].groups(), (0..40).collect::<Vec<_>>(), "nobody else notices");
    world.peers[slow].deaf = false;
    feed(&mut world, (publisher, slow), id, 40..41, 1000);
    world.until("nothing is on its way", |world| world.held() == 0 && world.memory.total() < 4096);
}

#[test]
fn sessions_that_acknowledge_nothing_share_what_all_may_hold() {
    const MOST: usize = 1 << 20;
    let mut world = World::new(Limits::default(), Sessions::default(), MOST);
    let publisher = world.publisher();
    let (reader, id) = world.subscriber(publisher);
    let slow: Vec<_> = (0..12).map(|_| world.subscriber(publisher).0).collect();
    feed(&mut world, (publisher, reader), id, 0..20, 100_000);
    slow.iter().for_each(|peer| world.peers[*peer].deaf = true);
    feed(&mut world, (publisher, reader), id, 20..40, 100_000);
    let counted = world.memory.total();
    assert!((MOST / 4..=MOST + (64 << 10)).contains(&counted), "{counted}");
    assert_eq!(world.peers[reader].groups(), (0..40).collect::<Vec<_>>(), "nobody else notices");
}

/// A request for a group of `cam`.
fn fetch(group: u64) -> Vec<u8> {
    let mut body = b"\x03cam\x05video\x00".to_vec();
    expressway_h3::varint::write(group, &mut body);
    assert_eq!(
        Fetch::read(&[&[body.len() as u8], body.as_slice()].concat()).unwrap().0,
        Fetch { broadcast: "cam", track: "video", priority: 0, group }
    );
    [&[3, body.len() as u8], body.as_slice()].concat()
}

#[test]
fn thousands_of_requests_that_are_stopped_or_reset_at_once_come_back() {
    let mut world = World::usual();
    let publisher = world.publisher();
    let (reader, id) = world.subscriber(publisher);
    world.peers[publisher].group(id, 0, &[1; 60_000]);
    world.until("a group", |world| world.peers[reader].groups() == [0]);
    let limit = world.peers[reader].quic.peer_streams_left_bidi();
    let rude = world.enter();
    for number in 0..3000_u64 {
        world.until("room for another", |world| world.peers[rude].quic.peer_streams_left_bidi() > 0);
        let peer = &mut world.peers[rude];
        let stream = peer.open(true);
        // A group, a subscription, a question: each is stopped, and reset or ended, before it can have been answered.
        let asked = match number % 3 {
            0 => fetch(0),
            1 => write::track("cam", "video"),
            _ => fetch(77),
        };
        peer.quic.stream_send(stream, &asked, number % 2 == 0).unwrap();
        if number % 2 == 1 {
            peer.quic.stream_shutdown(stream, quiche::Shutdown::Write, 1).unwrap();
        }
        peer.quic.stream_shutdown(stream, quiche::Shutdown::Read, 1).unwrap();
    }
    // QUIC tells of room in portions.
    world.until("all of them", |world| world.peers[rude].quic.peer_streams_left_bidi() > limit / 4);
    // Nor does it stay asked for: there is room for as many as ever.
    world.until("an answer to another", |world| {
        let stream = world.peers[rude].open(true);
        world.peers[rude].send(stream, fetch(0), true);
        world.until("what becomes of it", |world| {
            world.peers[rude].ended.contains(&stream) || world.peers[rude].resets.contains_key(&stream)
        });
        world.peers[rude].ended.contains(&stream)
    });
    world.until("nothing is left", |world| world.held() == 0);
}

#[test]
fn groups_that_are_stopped_make_room_for_others() {
    let mut world = World::usual();
    let publisher = world.publisher();
    let (rude, id) = world.subscriber(publisher);
    world.peers[rude].stops = true;
    // None of them ends, so that only four are under way at a time.
    for number in 0..12 {
        let stream = world.peers[publisher].open(false);
        world.peers[publisher].send(stream, group(id, number, &[7; 300]), false);
    }
    world.until("all were stopped", |world| world.peers[rude].stopped == 12);
    world.until("nothing is left", |world| world.held() == 0);
}

#[test]
fn a_group_that_comes_after_the_end_of_its_subscription_reaches_who_subscribed() {
    let mut world = World::usual();
    let publisher = world.publisher();
    let (reader, id) = world.subscriber(publisher);
    let (_, stream) = world.peers[publisher].subscription().unwrap();
    world.peers[publisher].group(id, 0, b"first");
    world.peers[publisher].answer(stream, &[Answer::Start(0), Answer::End(2)], true);
    world.until("the first", |world| world.peers[reader].groups() == [0]);
    world.for_a_while(Duration::from_millis(50));
    assert!(!world.peers[reader].answers(0).contains(&Answer::End(2)), "one is to come");
    world.peers[publisher].group(id, 1, b"late");
    world.until("the end", |world| world.peers[reader].answers(0).contains(&Answer::End(2)));
    world.until("the late one", |world| world.peers[reader].groups() == [0, 1]);
}

#[test]
fn turns_that_end_anywhere_leave_nothing_behind() {
    for pieces in 1..=12 {
        let mut world = World::in_pieces(pieces);
        let publisher = world.publisher();
        let (reader, id) = world.subscriber(publisher);
        let (other, _) = world.subscriber(publisher);
        let (_, stream) = world.peers[publisher].subscription().unwrap();
        world.until("both", |world| world.room.gauges.subscriptions.load(Relaxed) == 2);
        for number in 0..4 {
            world.peers[publisher].group(id, number, &vec![number as u8; 5000]);
        }
        world.until("all groups", |world| world.peers[reader].groups() == [0, 1, 2, 3]);
        // The end comes by itself: nothing follows that would wake the session again.
        world.for_a_while(Duration::from_millis(20));
        world.peers[publisher].answer(stream, &[Answer::Start(0), Answer::End(4)], true);
        world.until("the end", |world| {
            [reader, other].iter().all(|peer| world.peers[*peer].ended.contains(&0))
        });
        assert_eq!(world.peers[other].groups(), [0, 1, 2, 3], "{pieces}");
        world.until("nothing is left", |world| world.room.gauges.subscriptions.load(Relaxed) == 0);
    }
}

#[test]
fn half_an_answer_ends_its_subscription_though_nothing_else_comes() {
    let mut world = World::usual();
    let publisher = world.publisher();
    let (reader, _) = world.subscriber(publisher);
    let (_, stream) = world.peers[publisher].subscription().unwrap();
    world.peers[publisher].send(stream, vec![0x40], false);
    world.until("the end", |world| world.peers[reader].resets.contains_key(&0));
    assert_eq!(world.room.counters.ended_incomplete.load(Relaxed), 1);
}

#[test]
fn a_publisher_that_vanishes_makes_room_for_the_one_before() {
    let sessions = Sessions { publisher_timeout: Duration::from_secs(1), ..Sessions::default() };
    let mut world = World::new(Limits::default(), sessions, 64 << 20);
    let first = world.publisher();
    world.until("the first", |world| world.room.find("cam").is_some());
    let second = world.publisher();
    world.until("the second in its place", |world| world.room.counters.replaced.load(Relaxed) == 1);
    let (former, later) = (world.room.find("cam").unwrap(), world.enter());
    world.peers[second].deaf = true;
    world.until("the first again", |world| {
        world.room.find("cam").is_some_and(|cam| cam.publisher.id != former.publisher.id)
    });
    assert_eq!(world.room.counters.ended_vanished.load(Relaxed), 1);
    world.peers[later].subscribe(0, "video", 100);
    world.until("a subscription", |world| world.peers[first].asked().is_some());
    // One that says nothing but answers stays.
    world.for_a_while(Duration::from_millis(2500));
    assert_eq!(world.room.counters.ended_vanished.load(Relaxed), 1);
    assert!(world.room.find("cam").is_some());
}

#[test]
fn all_subscriptions_to_a_track_hear_of_a_group() {
    let limits = Limits { subscriptions: 2048, ..Limits::default() };
    let sessions = Sessions { requests: 2048, ..Sessions::default() };
    let mut world = World::new(limits, sessions, 64 << 20);
    let publisher = world.publisher();
    let (many, id) = world.subscriber(publisher);
    (1..1000).for_each(|id| _ = world.peers[many].subscribe(id, "video", 30_000));
    world.until("all subscriptions", |world| world.room.gauges.subscriptions.load(Relaxed) == 1000);
    for number in 0..3 {
        world.peers[publisher].group(id, number, b"object");
        let count = 1000 * (number as usize + 1);
        world.until("a group for each", |world| world.peers[many].groups().len() == count);
    }
}

#[test]
fn numbers_of_groups_that_are_absurd_harm_nobody() {
    let mut world = World::usual();
    let publisher = world.publisher();
    let (reader, id) = world.subscriber(publisher);
    let last = (1 << 62) - 1;
    for number in [5, last, 0, last - 1, 1 << 61] {
        world.peers[publisher].group(id, number, b"object");
    }
    world.until("the last", |world| world.peers[reader].groups().contains(&last));
    let (_, stream) = world.peers[publisher].subscription().unwrap();
    let dropped = Answer::Drop { first: 0, last, code: stream_code::OLD };
    world.peers[publisher].answer(stream, &[Answer::Start(last), dropped, Answer::End(last)], true);
    world.until("the end", |world| world.peers[reader].ended.contains(&0));
    assert!(world.peers[reader].quic.peer_error().is_none());
}

#[test]
fn windows_are_small_until_they_are_used_up() {
    let mut world = World::usual();
    let publisher = world.publisher();
    let told = world.peers[publisher].quic.peer_transport_params().unwrap().clone();
    assert_eq!((told.initial_max_data, told.initial_max_stream_data_uni), (512 << 10, 128 << 10));
    // Much more than they permit at first gets through.
    let (reader, id) = world.subscriber(publisher);
    world.peers[publisher].group(id, 0, &vec![3; 4 << 20]);
    world.until("a large group", |world| world.peers[reader].groups() == [0]);
}

#[test]
fn groups_come_whole_over_a_path_that_loses_and_reorders() {
    let link = Link {
        delay: Duration::from_millis(2),
        jitter: Duration::from_millis(3),
        reorder: 0.05,
        loss: 0.05,
        ..Link::default()
    };
    let mut world = World::over(link, Limits::default(), Sessions::default(), 64 << 20);
    let publisher = world.publisher();
    let (reader, id) = world.subscriber(publisher);
    let (_, stream) = world.peers[publisher].subscription().unwrap();
    let object = |number: u64| (0..20_000).map(|at| (at * 7 + number) as u8).collect::<Vec<_>>();
    for number in 0..50 {
        world.peers[publisher].group(id, number, &object(number));
        world.for_a_while(Duration::from_millis(5));
    }
    // The end overtakes groups that are sent again.
    world.peers[publisher].answer(stream, &[Answer::Start(0), Answer::End(50)], true);
    world.until("the end", |world| world.peers[reader].ended.contains(&0));
    world.until("all groups", |world| world.peers[reader].groups().len() == 50);
    for number in 0..50 {
        let stream = world.peers[reader].stream_of(number).unwrap();
        assert!(world.peers[reader].came(stream).ends_with(&object(number)), "{number}");
    }
    assert_eq!(world.peers[reader].answers(0).last(), Some(&Answer::End(50)));
}
