use super::*;

fn remote(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

fn all() -> Options {
    Options { filter: Filter::default(), sample: 1 }
}

#[test]
fn nothing_is_recorded_until_somebody_asks_and_after_the_end() {
    let tracers = Tracers::new(2);
    let tracer = tracers.tracer(1);
    tracer.record(7, Hop::Opened);
    assert!(!tracer.is_on() && tracer.now() == 0 && !tracer.selects(remote(1), std::iter::empty()));
    let mut recording = tracers.start(&all()).unwrap();
    assert!(tracer.is_on() && recording.take(10).is_none());
    tracer.record(7, Hop::Opened);
    tracer.record(8, Hop::Opened);
    let batch = recording.take(10).unwrap();
    assert_eq!((batch.worker, batch.events.len()), (1, 2));
    assert!(batch.events[0].time <= batch.events[1].time && batch.events[0].connection == 7);
    drop(recording);
    tracer.record(9, Hop::Opened);
    assert!(!tracer.is_on() && tracers.start(&all()).unwrap().take(10).is_none());
}

#[test]
fn one_at_a_time() {
    let tracers = Tracers::new(1);
    let first = tracers.start(&all()).unwrap();
    assert_eq!(tracers.start(&all()).unwrap_err(), StartError::Busy);
    let epoch = tracers.tracer(0).epoch();
    drop(first);
    let _second = tracers.start(&all()).unwrap();
    assert_ne!(tracers.tracer(0).epoch(), epoch, "connections are looked at anew");
}

#[test]
fn what_finds_no_room_is_counted() {
    let tracers = Tracers::new(1);
    let mut recording = tracers.start(&all()).unwrap();
    let tracer = tracers.tracer(0);
    for _ in 0..40_000 {
        tracer.record(1, Hop::Opened);
    }
    let mut taken = 0;
    while let Some(batch) = recording.take(1000) {
        taken += batch.events.len() as u64;
    }
    assert_eq!((taken, recording.lost()), (1 << 15, 40_000 - (1 << 15)));
}

#[test]
fn a_filter_selects_by_address_port_and_id() {
    let ids = || [&[1, 2, 3][..], &[9, 9]].into_iter();
    let by = |client: Option<(&str, Option<u16>)>, connection: &[u8]| Filter {
        client: client.map(|(address, port)| (address.parse().unwrap(), port)),
        connection: connection.to_vec(),
    };
    let mapped: SocketAddr = "[::ffff:192.0.2.1]:5".parse().unwrap();
    for (filter, from, selected) in [
        (by(None, &[]), remote(5), true),
        (by(Some(("192.0.2.1", None)), &[]), remote(5), true),
        (by(Some(("192.0.2.1", None)), &[]), mapped, true),
        (by(Some(("192.0.2.1", Some(6))), &[]), remote(5), false),
        (by(Some(("192.0.2.2", None)), &[]), remote(5), false),
        (by(None, &[1, 2]), remote(5), true),
        (by(None, &[9, 9, 9]), remote(5), false),
        (by(Some(("192.0.2.2", None)), &[1, 2]), remote(5), false),
    ] {
        assert_eq!(filter.selects(from, ids()), selected, "{filter:?} {from}");
    }
}

#[test]
fn one_in_n_is_sampled() {
    let tracers = Tracers::new(1);
    let _recording = tracers.start(&Options { sample: 10, ..all() }).unwrap();
    let tracer = tracers.tracer(0);
    assert_eq!((0..1000).filter(|_| tracer.samples()).count(), 100);
    assert!(!tracer.follows_all());
}

#[test]
fn a_burst_has_its_mark_and_its_way() {
    let tracers = Tracers::new(1);
    let mut recording = tracers.start(&all()).unwrap();
    let tracer = tracers.tracer(0);
    assert_eq!(tracer.open_burst(), None);
    let burst = tracer.begin_burst();
    assert_eq!(tracer.open_burst(), Some(1));
    tracer.leaves_by_xsk(3);
    tracer.end_burst(burst, 5, 2, 2400);
    let empty = tracer.begin_burst();
    tracer.end_burst(empty, 5, 0, 0);
    assert_eq!(tracer.open_burst(), None);
    let events = recording.take(10).unwrap().events;
    assert_eq!(events.len(), 1, "nothing was built the second time");
    let Hop::Burst { mark, began, way, packets, bytes } = events[0].hop else { panic!("{events:?}") };
    assert_eq!((mark, way, packets, bytes), (1, Channel::Xsk(3), 2, 2400));
    assert!(began <= events[0].time);
}

#[test]
fn stamps_of_other_clocks_are_related_or_refused() {
    let clock = Clock::new();
    let begin = clock.nanoseconds(Instant::now());
    let (taken, ahead) = (begin + 1_000_000, clock.realtime_ahead());
    assert_eq!(clock.of_realtime(taken - 5000 + ahead, taken), Some(taken - 5000));
    assert_eq!(
        clock.of_realtime(taken + 1000 + ahead, taken),
        Some(taken),
        "clocks are read one after the other"
    );
    assert_eq!(clock.of_realtime(taken + 1_000_000_000 + ahead, taken), None, "the clock was set");
    assert_eq!(clock.of_realtime(begin - 1_000_000 + ahead, taken), None, "left from before");
    assert_eq!(clock.of_realtime(7, taken), None);
}

#[test]
fn events_pass_through_json() {
    let datagram = Arrival { arrived: Some(5), taken: 6, opened: 7, way: Some(Channel::Xsk(1)) };
    for hop in [
        Hop::Opened,
        Hop::Connection { remote: remote(1), id: "00ff".into() },
        Hop::Taken { way: Channel::Kernel, remote: remote(2), bytes: 1200, arrived: None },
        Hop::Request { stream: 4, request: "GET /a".into(), datagram },
        Hop::Answered { stream: 4, status: 200, source: "here".into() },
        Hop::Written { stream: 4, bytes: u64::MAX, complete: true },
    ] {
        let event = Event { time: 1 << 60, connection: 3, hop };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event, "{text}");
    }
}

#[test]
fn a_request_is_printable_and_cut_between_characters() {
    assert_eq!(&*escaped("GET https://a/b?c=%20~"), "GET https://a/b?c=%20~");
    assert_eq!(&*escaped("\x1b]0;x\x07\n\"\\\u{9b}\x7f"), r"\x1B]0;x\x07\x0A\x22\x5C\xC2\x9B\x7F");
    let long = format!("{}\x1b{}", "a".repeat(MAX_REQUEST - 3), "b".repeat(10));
    assert_eq!(&*escaped(&long), "a".repeat(MAX_REQUEST - 3));
    assert_eq!(escaped(&"a".repeat(MAX_REQUEST + 1)).len(), MAX_REQUEST);
}
