use expressway_netio::trace::{Arrival, Channel, Event, Hop, Tracers};
use proptest::prelude::*;

use super::*;

fn event(time: u64, connection: u64, hop: Hop) -> Line {
    Line::Recorded(Recorded { worker: 0, event: Event { time, connection, hop } })
}

/// All hops of a request over AF_XDP, as a gateway records them.
fn request(connection: u64, stream: u64, at: u64) -> Vec<Line> {
    let way = Channel::Xsk(0);
    let datagram = Arrival { arrived: Some(at), taken: at + 10, opened: at + 30, way: Some(way) };
    let remote = "192.0.2.7:4433".parse().unwrap();
    let mark = at;
    vec![
        event(at + 10, connection, Hop::Taken { way, remote, bytes: 1200, arrived: Some(at) }),
        event(at + 30, connection, Hop::Opened),
        event(at + 60, connection, Hop::Request { stream, request: "GET https://a/b".into(), datagram }),
        event(at + 100, connection, Hop::Started { stream }),
        event(at + 150, connection, Hop::Answered { stream, status: 200, source: "here".into() }),
        event(at + 151, connection, Hop::Body { stream }),
        event(at + 160, connection, Hop::Written { stream, bytes: 5, complete: true }),
        event(at + 210, connection, Hop::Burst { mark, began: at + 170, way, packets: 1, bytes: 900 }),
        event(at + 280, 0, Hop::Completed { mark }),
        event(at + 300, 0, Hop::Flushed { mark, began: at + 220 }),
        event(at + 900, connection, Hop::Acknowledged { stream }),
    ]
}

fn connection(number: u64) -> Line {
    let remote = "192.0.2.7:4433".parse().unwrap();
    event(1, number, Hop::Connection { remote, id: "00aa".into() })
}

fn place() -> Line {
    Line::Control(Control::Place { worker: 0, xsk: 0, interface: "eth0".into(), queue: 3 })
}

#[test]
fn a_request_has_all_its_hops_and_their_times() {
    let mut model = Model::default();
    model.take(place());
    model.take(connection(7));
    let done: Vec<_> = request(7, 4, 1000).into_iter().flat_map(|line| model.take(line)).collect();
    let [request] = &done[..] else { panic!("{done:?}") };
    let times: Vec<_> = Stamp::ALL.map(|stamp| request.time(stamp).unwrap() - 1000).into();
    assert_eq!(times, [0, 10, 30, 60, 100, 150, 151, 210, 300, 280, 160, 900]);
    assert_eq!((&*request.way_in, &*request.way_out), ("eth0 queue 3", "eth0 queue 3"));
    assert_eq!(request.hop(Stamp::Arrived), "datagram received by the XDP program, verdict redirect");
    assert_eq!(request.hop(Stamp::Taken), "datagram taken by the worker: eth0 queue 3");
    assert_eq!((request.status, request.bytes, request.complete, request.duration()), (200, 5, true, 900));
    assert_eq!(&*request.client.as_ref().unwrap().1, "00aa");
    let p50: Vec<_> = model.steps().iter().map(|row| (row.step, row.p50)).collect();
    assert_eq!(
        p50,
        [
            ("receive", 10),
            ("decrypt", 20),
            ("turn", 30),
            ("dispatch", 40),
            ("answer", 50),
            ("build", 60),
            ("flush", 90),
            ("complete", 70),
            ("body", 10),
            ("acknowledge", 740),
            ("whole", 890)
        ]
    );
    let packets: Vec<_> = model.packets().iter().map(|row| (row.step, row.p50)).collect();
    assert_eq!(
        packets,
        [
            ("datagram receive", 10),
            ("datagram decrypt", 20),
            ("burst build", 40),
            ("flush", 80),
            ("burst complete", 70)
        ]
    );
    assert_eq!((model.finished, model.under_way()), (1, 0));
}

#[test]
fn what_was_lost_is_missing_and_nothing_is_made_up() {
    for without in 0..request(7, 4, 1000).len() {
        let mut model = Model::default();
        model.take(connection(7));
        let mut lines = request(7, 4, 1000);
        lines.remove(without);
        let done: Vec<_> = lines.into_iter().flat_map(|line| model.take(line)).collect();
        let rest = model.end();
        // Without its beginning there is no request; without its end it is unfinished.
        assert_eq!(
            (done.len(), rest.len()),
            match without {
                2 => (0, 0),
                10 => (0, 1),
                _ => (1, 0),
            }
        );
        for request in done.iter().chain(&rest) {
            let line = request.line();
            assert!(line.is_sorted_by_key(|(time, _)| *time) && line.len() >= 8, "{without}: {line:?}");
        }
    }
}

#[test]
fn a_connection_that_has_closed_ends_its_requests_and_is_forgotten() {
    let mut model = Model::default();
    let mut ended = Vec::new();
    // More than are remembered at a time, one after the other; the last hop of each is missing.
    let count = (1 << 16) + 2;
    for number in 1..=count {
        let mut lines = vec![connection(number)];
        lines.extend(request(number, 4, 1000).into_iter().take(10));
        lines.extend(request(number, 8, 1000).into_iter().take(4));
        for line in lines {
            assert_eq!(model.take(line), []);
        }
        assert_eq!(model.under_way(), 2);
        ended.extend(model.take(event(3000, number, Hop::Closed)));
        assert!(model.client(number).is_none());
    }
    assert_eq!((model.under_way(), model.left_out, model.end().len()), (0, 0, 0));
    assert_eq!((model.connections() as u64, model.finished, model.failed), (count, 2 * count, count));
    let last = &ended[ended.len() - 2..];
    assert_eq!(
        last.iter().map(|one| (one.connection, one.stream)).collect::<Vec<_>>(),
        [(count, 4), (count, 8)]
    );
    assert!(last[0].complete && !last[1].complete && last[1].client.is_some());
    assert_eq!((last[0].duration(), last[0].time(Stamp::Acknowledged)), (300, None));
    assert_eq!(model.take(event(3000, count, Hop::Closed)), [], "once");
}

#[test]
fn a_connection_that_closes_ends_nobody_elses_requests() {
    let mut model = Model::default();
    for number in [6, 7, 8] {
        model.take(connection(number));
        for stream in [0, 4] {
            request(number, stream, 1000).into_iter().take(3).for_each(|line| drop(model.take(line)));
        }
    }
    let ended: Vec<_> = model.take(event(2000, 7, Hop::Closed)).iter().map(|one| one.connection).collect();
    assert_eq!((ended, model.under_way()), (vec![7, 7], 4));
}

#[test]
fn the_slowest_is_the_one_that_is_wanted() {
    let mut model = Model::with_wanted(Some("/nothing".into()));
    model.take(connection(7));
    request(7, 4, 1000).into_iter().for_each(|line| drop(model.take(line)));
    assert!(model.slowest().is_none());
    let mut model = Model::with_wanted(Some("/b".into()));
    model.take(connection(7));
    request(7, 4, 1000).into_iter().for_each(|line| drop(model.take(line)));
    assert!(model.slowest().is_some());
}

#[test]
fn an_order_is_checked() {
    let order = |text: &str| {
        serde_json::from_str::<Order>(text).map_err(|e| e.to_string()).and_then(|order| order.options())
    };
    let both = order(r#"{"client": "[2001:db8::1]:443", "connection": "00fF"}"#).unwrap();
    assert_eq!(both.filter.client, Some(("2001:db8::1".parse().unwrap(), Some(443))));
    assert_eq!(both.filter.connection, [0, 255]);
    for alone in ["192.0.2.1", "2001:db8::1", "[2001:db8::1]"] {
        let order = Order { client: Some(alone.into()), ..Order::default() };
        assert_eq!(order.options().unwrap().filter.client.unwrap().1, None, "{alone}");
    }
    for (text, says) in [
        (r#"{"client": "example"}"#, "must be an address"),
        (r#"{"connection": "0"}"#, "hexadecimal"),
        (r#"{"connection": "é"}"#, "hexadecimal"),
        (r#"{"connection": ""}"#, "hexadecimal"),
        (r#"{"connection": "000000000000000000000000000000000000000000"}"#, "hexadecimal"),
        (r#"{"seconds": 0}"#, "must be 1 to 3600"),
        (r#"{"seconds": 3601}"#, "must be 1 to 3600"),
        (r#"{"sample": 0}"#, "at least 1"),
        (r#"{"clients": "192.0.2.1"}"#, "unknown field"),
        ("[]x", ""),
    ] {
        let problem = order(text).unwrap_err();
        assert!(problem.contains(says), "{text}: {problem}");
    }
}

#[test]
fn a_stream_begins_tells_places_and_ends_with_what_was_lost() {
    let tracers = Tracers::new(1);
    let order = Order { seconds: 1, ..Order::default() };
    let recording = tracers.start(&order.options().unwrap()).unwrap();
    let tracer = tracers.tracer(0);
    tracer.set_queues(vec![("eth0".into(), 5)]);
    let mut stream = Stream::new(recording, order);
    let burst = tracer.begin_burst();
    tracer.leaves_by_xsk(0);
    tracer.end_burst(burst, 1, 1, 100);
    for _ in 0..40_000 {
        tracer.record(1, Hop::Opened);
    }
    let mut lines = Vec::new();
    loop {
        match stream.poll() {
            Next::Lines(some) => lines.extend(
                String::from_utf8(some)
                    .unwrap()
                    .lines()
                    .map(|line| serde_json::from_str::<Line>(line).expect(line)),
            ),
            Next::Nothing => std::thread::sleep(std::time::Duration::from_millis(5)),
            Next::End => break,
        }
    }
    assert!(matches!(lines[0], Line::Control(Control::Begin { workers: 1, seconds: 1, sample: 1, .. })));
    assert_eq!(
        lines[1],
        Line::Control(Control::Place { worker: 0, xsk: 0, interface: "eth0".into(), queue: 5 })
    );
    let told = lines.iter().filter(|line| matches!(line, Line::Recorded(_))).count() as u64;
    let Some(Line::Control(Control::End { events, lost, .. })) = lines.last() else { panic!("no end") };
    assert_eq!((*events, *lost), (told, 40_001 - told));
    assert!(told < 40_001 && !tracer.is_on());
}

/// By the format's description: each slice has a duration, each asynchronous event ends and lies within its parent, and the
/// slices of a thread do not overlap.
fn check_chrome(text: &str) -> Vec<serde_json::Value> {
    let document: serde_json::Value = serde_json::from_str(text).unwrap();
    let events = document["traceEvents"].as_array().unwrap().clone();
    let mut open: std::collections::HashMap<String, Vec<(String, f64)>> = std::collections::HashMap::new();
    for event in &events {
        assert!(event["pid"].is_u64() && event["tid"].is_u64() && event["name"].is_string(), "{event}");
        let id = event["id"].as_str().unwrap_or_default().to_owned();
        match event["ph"].as_str().unwrap() {
            "M" => assert!(event["args"]["name"].is_string()),
            "X" => assert!(event["ts"].as_f64().unwrap() >= 0.0 && event["dur"].as_f64().unwrap() >= 0.0),
            "i" => assert_eq!(event["s"], "t"),
            "b" => {
                let time = event["ts"].as_f64().unwrap();
                let parents = open.entry(id).or_default();
                assert!(parents.last().is_none_or(|(_, began)| *began <= time), "{event}");
                parents.push((event["name"].as_str().unwrap().to_owned(), time));
            }
            "e" => {
                let (name, began) = open.get_mut(&id).unwrap().pop().unwrap();
                assert!(event["name"] == name && event["ts"].as_f64().unwrap() >= began, "{event}");
            }
            other => panic!("phase {other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "every one that began has ended");
    events
}

fn chrome(lines: Vec<Line>) -> String {
    let mut model = Model::default();
    let mut chrome = Chrome::begin(Vec::new()).unwrap();
    for line in lines {
        chrome.take(&line, &model).unwrap();
        for request in model.take(line) {
            chrome.request(&request, &model).unwrap();
        }
    }
    for request in model.end() {
        chrome.request(&request, &model).unwrap();
    }
    String::from_utf8(chrome.end().unwrap()).unwrap()
}

#[test]
fn bursts_whose_completion_is_lost_are_forgotten() {
    let mut model = Model::default();
    let burst = |mark: u64, time: u64| {
        event(time, 7, Hop::Burst { mark, began: time, way: Channel::Xsk(0), packets: 1, bytes: 1 })
    };
    let second = 1_000_000_000;
    for mark in 0..200_000 {
        model.take(burst(mark, mark * second));
        let (first, all) = model.bursts();
        assert!(first <= 12 && all == first);
    }
    assert_eq!((model.left_out, model.uncompleted), (0, 200_000 - model.bursts().1 as u64));
    // Those that complete meanwhile are measured.
    model.take(event(199_999 * second + 5, 7, Hop::Completed { mark: 199_999 }));
    assert_eq!(
        model.packets().last().map(|row| (row.step, row.count, row.max)),
        Some(("burst complete", 1, 5))
    );
}

#[test]
fn perfetto_gets_slices_of_workers_and_spans_of_requests() {
    let mut lines = vec![place(), connection(7)];
    lines.extend(request(7, 4, 1000));
    let events = check_chrome(&chrome(lines));
    let names = |phase: &str| -> Vec<_> {
        events.iter().filter(|one| one["ph"] == phase).map(|one| one["name"].as_str().unwrap()).collect()
    };
    assert_eq!(names("X"), ["datagram", "burst", "flush"]);
    assert_eq!(names("b").len(), 12, "the request and the steps between 12 stamps");
    assert_eq!(names("b")[0], "GET https://a/b");
    check_chrome(&chrome(Vec::new()));
}

#[test]
fn a_connection_that_closes_ends_its_spans() {
    let mut lines = vec![place(), connection(7)];
    // A datagram that was never decrypted, and a request that was never answered.
    lines.extend(request(7, 4, 1000).into_iter().take(4));
    lines.extend(request(7, 8, 2000).into_iter().take(1));
    lines.push(event(3000, 7, Hop::Closed));
    let events = check_chrome(&chrome(lines));
    assert_eq!(events.iter().filter(|one| one["ph"] == "X").count(), 2);
    assert!(events.iter().any(|one| one["ph"] == "e" && one["name"] == "GET https://a/b"));
}

proptest! {
    /// Whatever a process tells, lost or not, in whatever order: no panic, nothing made up, bounded.
    #[test]
    fn any_selection_of_hops_is_borne(picks in prop::collection::vec((0usize..34, 0u64..3), 0..120)) {
        let mut all: Vec<_> = (0..3).flat_map(|stream| request(7, stream * 4, 1000 + stream * 37)).collect();
        all.push(event(2000, 7, Hop::Closed));
        let lines: Vec<_> = std::iter::once(connection(7)).chain(picks.iter().map(|(pick, _)| all[*pick].clone())).collect();
        let requests = picks.iter().filter(|(pick, _)| *pick < 33 && pick % 11 == 2).count() as u64;
        let mut model = Model::default();
        for line in lines.clone() {
            for request in model.take(line) {
                prop_assert!(request.line().is_sorted_by_key(|(time, _)| *time));
            }
        }
        let unfinished = model.end().len() as u64;
        prop_assert!(model.finished + unfinished <= requests);
        check_chrome(&chrome(lines));
    }
}

#[test]
fn who_stamped_a_datagram_is_told_by_the_way_it_came() {
    for (way, arrived, by) in [
        (Channel::Xsk(0), Some(5), Some(Receiver::Xdp)),
        (Channel::Kernel, Some(5), Some(Receiver::Kernel)),
        (Channel::Worker, None, None),
        (Channel::Xsk(0), None, None),
    ] {
        let mut model = Model::default();
        let datagram = Arrival { arrived, taken: 6, opened: 7, way: Some(way) };
        model.take(connection(1));
        model.take(event(8, 1, Hop::Request { stream: 0, request: "GET https://a/b".into(), datagram }));
        let [request] = &model.end()[..] else { panic!("one") };
        assert_eq!((request.receiver, request.time(Stamp::Arrived)), (by, arrived), "{way:?}");
    }
}

#[test]
fn buckets_double_and_hold_every_measurement() {
    let mut steps = Steps::<1>::default();
    for (time, count) in [(0, 1), (1023, 2), (1024, 4), (2047, 8), (2048, 16), (20_000, 32), (u64::MAX, 64)] {
        (0..count).for_each(|_| steps.add(0, 0, time));
    }
    let [row] = &steps.rows(["one"])[..] else { panic!("one") };
    let ends: Vec<_> = row.buckets.iter().map(|bucket| (bucket.le, bucket.count)).collect();
    assert_eq!(ends[..6], [(1023, 3), (2047, 12), (4095, 16), (8191, 0), (16_383, 0), (32_767, 32)]);
    assert_eq!(row.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), row.count);
    // The longest that is told apart, and no further.
    assert_eq!(ends.last(), Some(&((1 << 42) - 1, 64)));
    assert!(ends.windows(2).all(|pair| pair[1].0 == 2 * pair[0].0 + 1), "{ends:?}");
    let counts = row.counts::<8>();
    assert_eq!(counts, [3, 12, 16, 0, 0, 32, 0, 64]);
}

proptest! {
    #[test]
    fn each_time_is_in_the_bucket_that_ends_behind_it(time in 0u64..3_600_000_000_000) {
        let mut steps = Steps::<1>::default();
        steps.add(0, 0, time);
        let rows = steps.rows(["one"]);
        let [bucket] = &rows[0].buckets[..] else { panic!("{rows:?}") };
        prop_assert!(time <= bucket.le && (bucket.le == 1023 || time > bucket.le / 2), "{bucket:?}");
    }
}
