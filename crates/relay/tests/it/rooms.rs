//! Rooms over the simulated network, and over packet I/O that refuses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_netio::slice::{Slice, SliceLimit};
use expressway_netio::worker::WorkerOptions;
use expressway_netio::{Worker, mailbox};
use expressway_relay::rtp::header::Header;
use expressway_relay::rtp::{Progress, Room};
use expressway_relay::service::{Relay, status};
use expressway_relay::{Config, config};
use expressway_settings::SourceFile;

use crate::listed::Listed;

fn config(text: &str) -> Config {
    Config::parse(&SourceFile { file: "relay.toml".into(), text: text.into() }).unwrap()
}

fn room(more: &str) -> config::Room {
    let text = format!(
        "[[room]]\nname = \"a\"\nrtp_in = \"192.0.2.1:5004\"\nhistory = 16\nmax_packet = 1400\n{more}\n"
    );
    config(&text).rooms.remove(0)
}

const OUT: [&str; 3] = ["192.0.2.9:6000", "192.0.2.9:7000", "192.0.2.9:8000"];

fn outs(count: usize) -> String {
    format!("rtp_out = {:?}", &OUT[..count])
}

fn publisher() -> SocketAddr {
    "192.0.2.8:5000".parse().unwrap()
}

fn rtp(sequence: u16, length: usize) -> Vec<u8> {
    let mut packet = vec![0; 12.max(length)];
    packet[0] = 0x80;
    Header { payload_type: 96, sequence, timestamp: sequence.into(), ssrc: 1 }.write(&mut packet);
    packet
}

fn publish(room: &mut Room, numbers: std::ops::Range<u16>, now: Instant) {
    let input = room.config().input.unwrap();
    numbers.for_each(|number| room.handle_datagram(&rtp(number, 100), publisher(), input, now));
}

/// Sequence numbers that went to a receiver.
fn numbers(io: &Listed, to: &str) -> Vec<u16> {
    let to: SocketAddr = to.parse().unwrap();
    let mine = io.sent.iter().filter(|(flow, _)| flow.remote == to);
    mine.filter_map(|(_, packet)| Header::parse(packet)).map(|header| header.sequence).collect()
}

fn slice(pieces: u32) -> Slice {
    Slice::alone(SliceLimit::Pieces(pieces))
}

#[test]
fn each_receiver_gets_all_however_little_room_there_is() {
    let now = Instant::now();
    let (mut room, mut io) = (Room::new(room(&outs(3)), now), Listed::new(0));
    publish(&mut room, 0..16, now);
    assert_eq!(room.transmit(&mut io, &mut slice(100), now).unwrap(), Progress::Blocked);
    let mut turns = 0;
    loop {
        io.room = 5;
        turns += 1;
        if room.transmit(&mut io, &mut slice(100), now).unwrap() == Progress::Done {
            break;
        }
        assert!(turns < 100, "it goes on");
    }
    for receiver in OUT {
        assert_eq!(numbers(&io, receiver), (0..16).collect::<Vec<u16>>(), "{receiver}");
    }
    assert!(!room.has_news());
}

#[test]
fn a_slice_of_one_piece_loses_nothing() {
    let now = Instant::now();
    let (mut room, mut io) = (Room::new(room(&outs(3)), now), Listed::new(usize::MAX));
    publish(&mut room, 0..10, now);
    let mut turns = 1;
    while room.transmit(&mut io, &mut slice(1), now).unwrap() == Progress::More {
        turns += 1;
        assert!(turns < 100, "it comes to an end");
    }
    assert!(turns > 2, "{turns} turns");
    OUT.iter().for_each(|receiver| assert_eq!(numbers(&io, receiver).len(), 10));
}

#[test]
fn a_receiver_that_is_far_behind_skips() {
    let now = Instant::now();
    let (mut room, mut io) = (Room::new(room(&outs(1)), now), Listed::new(0));
    publish(&mut room, 0..10, now);
    assert_eq!(room.transmit(&mut io, &mut slice(9), now).unwrap(), Progress::Blocked);
    publish(&mut room, 10..30, now);
    io.room = usize::MAX;
    assert_eq!(room.transmit(&mut io, &mut slice(9), now).unwrap(), Progress::Done);
    assert_eq!(numbers(&io, OUT[0]), (14..30).collect::<Vec<u16>>(), "what is kept");
    assert_eq!(room.receivers()[0].counters.skipped, 14);
}

#[test]
fn packets_that_do_not_fit_are_skipped_and_counted() {
    let now = Instant::now();
    let (mut room, mut io) = (Room::new(room(&outs(1)), now), Listed::new(usize::MAX));
    io.longest = 50;
    publish(&mut room, 0..4, now);
    assert_eq!(room.transmit(&mut io, &mut slice(9), now).unwrap(), Progress::Done);
    assert_eq!(room.receivers()[0].counters.dropped_too_long, 4);
    io.longest = 1472;
    publish(&mut room, 4..6, now);
    assert_eq!(room.transmit(&mut io, &mut slice(9), now).unwrap(), Progress::Done);
    assert_eq!(numbers(&io, OUT[0]), [4, 5]);
}

#[test]
fn receivers_that_stay_go_on_where_they_were() {
    let now = Instant::now();
    let (mut room, mut io) = (Room::new(room(&outs(2)), now), Listed::new(0));
    publish(&mut room, 0..4, now);
    let outputs = [2, 1].map(|index| config::Output {
        address: OUT[index].parse().unwrap(),
        rtcp: config::Rtcp::NextPort,
        ssrc: None,
        payload_types: Vec::new(),
        srtp: None,
    });
    assert_eq!(room.set_outputs(outputs.into()), [None, Some(1)]);
    publish(&mut room, 4..6, now);
    io.room = usize::MAX;
    assert_eq!(room.transmit(&mut io, &mut slice(9), now).unwrap(), Progress::Done);
    assert_eq!(numbers(&io, OUT[0]), [0u16; 0]);
    assert_eq!(numbers(&io, OUT[1]), [0, 1, 2, 3, 4, 5]);
    assert_eq!(numbers(&io, OUT[2]), [4, 5]);
}

#[test]
fn a_silent_publisher_is_none_any_more() {
    let start = Instant::now();
    let mut room = Room::new(room(&outs(1)), start);
    assert_eq!(room.deadline(start), None, "nobody publishes");
    publish(&mut room, 0..1, start);
    let later = start + Duration::from_secs(5);
    assert!(room.deadline(start).is_some_and(|deadline| deadline <= later));
    assert_eq!(room.gauges(start).publishing, 1);
    room.handle_timeout(later);
    assert_eq!(room.gauges(later).publishing, 0);
    assert_eq!(room.deadline(later), None);
}

/// Two workers, of which only one runs: the other's room cannot be reached.
#[test]
fn what_another_worker_has_no_room_for_is_counted() {
    let now = Instant::now();
    let room = |name: &str, port: u16| {
        format!(
            "[[room]]\nname = \"{name}\"\nrtp_in = \"192.0.2.1:{port}\"\npayload = \"any\"\nrtp_out = [\"192.0.2.9:{port}\"]\n"
        )
    };
    let config = config(&format!("workers = 2\n{}{}", room("a", 5000), room("b", 5010)));
    let (first, inbox) = mailbox(1).unwrap();
    let (second, _silent) = mailbox(1).unwrap();
    let relay = Relay::new(&config, 0, 2, status(&config), now);
    let refused = relay.refused();
    let options = WorkerOptions { slice: SliceLimit::Pieces(100), ..WorkerOptions::default() };
    let mut worker =
        Worker::new(options, now, relay, Listed::new(usize::MAX), inbox, Arc::from([first, second]));
    for number in 0..4u8 {
        for local in ["192.0.2.1:5000", "192.0.2.1:5010"] {
            worker.io_mut().arriving.push((vec![number + 1], publisher(), local.parse().unwrap()));
        }
    }
    worker.turn(now).unwrap();
    let sent: Vec<u8> = worker.io().sent.iter().map(|(_, payload)| payload[0]).collect();
    assert_eq!(sent, [1, 2, 3, 4], "its own room's");
    expressway_netio::Service::publish(worker.service_mut());
    let dropped_handover = refused[1].load().dropped_handover;
    assert_eq!(dropped_handover, 3, "the mailbox has room for one");
    assert_eq!(refused[0].load().dropped_handover, 0);
}
