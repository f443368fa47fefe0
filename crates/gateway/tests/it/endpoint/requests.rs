//! Requests and bodies, in good weather and bad.

use std::time::{Duration, Instant};

use expressway_gateway::quic::Settings;
use expressway_netio::sim::Link;
use expressway_netio::{SliceLimit, WorkerOptions};

use super::exchange::{client, fetch};
use crate::support::client::Options;
use crate::support::world::{Build, World};

#[test]
fn bodies_of_every_kind_arrive_whole() {
    let mut world = Build::default().world();
    let paths = [
        ("/bytes/0", 0),
        ("/bytes/1", 1),
        ("/bytes/1024", 1024),
        ("/bytes/65536", 65_536),
        ("/bytes/65537", 65_537),
        ("/bytes/5000000", 5_000_000),
        ("/unsized/300000", 300_000),
        ("/unsized/0", 0),
        ("/slow/400000", 400_000),
    ];
    let id = fetch(&mut world, Options::default(), &paths);
    let stats = world.stats(0);
    assert_eq!(stats.requests, paths.len() as u64);
    assert_eq!(stats.responses_complete, paths.len() as u64);
    assert_eq!(stats.requests_active, 0);
    assert_eq!(stats.response_body_bytes, paths.iter().map(|(_, length)| length).sum::<u64>());
    assert_eq!(world.clients[id].largest_received, 1472, "path-MTU discovery found the link's MTU");
}

#[test]
fn head_and_errors_have_no_body_but_a_length() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].request("HEAD", "/bytes/1000", &[], b"");
    world.clients[id].request("POST", "/bytes/1000", &[("content-length", "5")], b"hello");
    world.clients[id].get("/nothing");
    world.until("responses", |world| world.clients[id].is_done());
    let head = world.clients[id].response(0);
    assert_eq!((head.status, head.received), (Some(200), 0));
    assert_eq!(head.header("content-length"), Some("1000"));
    assert_eq!(world.clients[id].response(1).status, Some(405));
    assert_eq!(world.clients[id].response(2).status, Some(404));
}

#[test]
fn a_hundred_streams_share_a_connection() {
    let mut world = Build::default().world();
    let paths = [("/bytes/100000", 100_000); 100];
    fetch(&mut world, Options::default(), &paths);
}

#[test]
fn small_responses_share_datagrams() {
    // What a connection's part of the turn has time for leaves at once: on a slow machine that may be less.
    let mut world = Build { slice: SliceLimit::Pieces(1000), ..Build::default() }.world();
    let id = fetch(&mut world, Options::default(), &[("/bytes/1", 1)]);
    let before = world.stats(0).datagrams_sent;
    for _ in 0..40 {
        world.clients[id].get("/bytes/50");
    }
    world.until("all responses", |world| world.clients[id].is_done());
    let sent = world.stats(0).datagrams_sent - before;
    assert!(sent <= 20, "{sent} datagrams for 40 responses of 50 bytes");
}

#[test]
fn responses_that_share_lost_datagrams_arrive_whole() {
    let link = Link {
        delay: Duration::from_millis(3),
        loss: 0.06,
        duplicate: 0.05,
        reorder: 0.10,
        ..Link::default()
    };
    for seed in 1..4 {
        let mut world = Build { link: link.clone(), seed, ..Build::default() }.world();
        let names: Vec<(String, u64)> =
            (0..90).map(|number| number * 37).map(|length| (format!("/bytes/{length}"), length)).collect();
        let paths: Vec<(&str, u64)> = names.iter().map(|(name, length)| (name.as_str(), *length)).collect();
        fetch(&mut world, Options::default(), &paths);
        assert!(world.network.stats().dropped_loss > 2);
    }
}

/// Where packet I/O has room for one datagram a turn, all that a connection has in flight is acknowledged before its next
/// turn now and then: nothing but that turn itself has the response go on.
#[test]
fn what_is_acknowledged_between_turns_does_not_hold_a_response_up() {
    let link = Link { delay: Duration::ZERO, ..Link::default() };
    // What holds it up is the congestion window, or memory.
    let tune: [fn(&mut Settings); 2] = [|_| {}, |settings| settings.send_window = 64 << 10];
    for (room, tune) in [1, 2, 7].into_iter().flat_map(|room| tune.map(|tune| (room, tune))) {
        let mut world = Build { link: link.clone(), room, tune, ..Build::default() }.world();
        fetch(&mut world, Options::default(), &[("/bytes/1000000", 1_000_000), ("/unsized/300000", 300_000)]);
    }
}

#[test]
fn loss_reordering_and_duplication_corrupt_nothing() {
    let link = Link {
        delay: Duration::from_millis(3),
        jitter: Duration::from_millis(2),
        loss: 0.06,
        duplicate: 0.05,
        reorder: 0.10,
        reorder_delay: Duration::from_millis(4),
        ..Link::default()
    };
    for seed in 1..4 {
        let mut world = Build { link: link.clone(), seed, ..Build::default() }.world();
        let paths = [("/bytes/1000000", 1_000_000), ("/unsized/300000", 300_000), ("/bytes/200000", 200_000)];
        fetch(&mut world, Options::default(), &paths);
        let lost = world.network.stats().dropped_loss;
        assert!(lost > 20, "the link lost only {lost} datagrams");
    }
}

#[test]
fn a_hop_that_swallows_large_datagrams_is_found_and_lived_with() {
    let link = Link { delay: Duration::from_millis(1), path_mtu: 1350, ..Link::default() };
    let mut world = Build { link, ..Build::default() }.world();
    let id = fetch(&mut world, Options::default(), &[("/bytes/3000000", 3_000_000)]);
    let largest = world.clients[id].largest_received;
    assert!((1200..=1322).contains(&largest), "largest datagram: {largest}");
}

#[test]
fn large_links_are_used_and_a_limit_that_shrank_is_survived() {
    let delay = Duration::from_millis(1);
    let link = Link { delay, mtu: 9000, path_mtu: 9000, ..Link::default() };
    let mut world = Build { link, ..Build::default() }.world();
    // The first connection tells the endpoint what the interface carries.
    let large = || Options { max_payload: 9000, ..Options::default() };
    fetch(&mut world, large(), &[("/bytes/1000", 1000)]);
    let id = fetch(&mut world, large(), &[("/bytes/3000000", 3_000_000)]);
    assert_eq!(world.clients[id].largest_received, 8972);
    // The next one is made for that limit, and finds a smaller one.
    let (server, client) = (world.server().ip(), "198.51.100.1".parse().unwrap());
    world.network.set_link(server, client, Link { delay, ..Link::default() });
    let id = fetch(&mut world, large(), &[("/bytes/40000000", 40_000_000)]);
    assert!(world.stats(0).mtu_probes_dropped > 0);
    let largest = world.clients[id].largest_received;
    assert!((1201..=1472).contains(&largest), "largest datagram: {largest}");
}

#[test]
fn a_client_that_stops_reading_pins_no_more_than_the_window() {
    let tune = |settings: &mut Settings| settings.send_window = 256 << 10;
    let mut world = Build { tune, ..Build::default() }.world();
    let id = client(&mut world, 5000, Options { reads: false, max_data: 8 << 20, ..Options::default() });
    for _ in 0..50 {
        world.clients[id].get("/bytes/100000000");
    }
    let mut most = 0;
    let mut last = (0, Instant::now());
    // Until nothing has been sent for a while: the client's flow control is used up.
    world.until("a standstill", |world| {
        most = most.max(world.held_bytes());
        let sent = world.stats(0).bytes_sent;
        if sent != last.0 {
            last = (sent, Instant::now());
        }
        sent > (8 << 20) && last.1.elapsed() > Duration::from_millis(500)
    });
    assert!(most <= 256 << 10, "{most} bytes were held");
    assert!(most >= 128 << 10, "the window was used");
}

#[test]
fn what_is_held_is_what_was_sent_and_not_acknowledged() {
    let link = Link { delay: Duration::from_millis(50), rate: Some(10_000_000), ..Link::default() };
    let mut world = Build { link, ..Build::default() }.world();
    let id = client(&mut world, 5000, Options::default());
    let before = world.stats(0).bytes_sent;
    world.clients[id].get("/bytes/10000000");
    // In slow start each acknowledgement makes room for less than what is fetched from a body at once.
    let mut most = 0;
    world.until("some round trips", |world| {
        let (held, sent) = (world.held_bytes() as u64, world.stats(0).bytes_sent - before);
        most = most.max(held);
        assert!(held <= sent, "{held} bytes are held, {sent} were sent");
        sent > 150_000
    });
    assert!(most > 20_000, "{most} bytes were held");
}

#[test]
fn a_client_that_vanishes_pins_no_more_than_was_in_flight() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].get("/bytes/100000000");
    world.until("a beginning", |world| world.clients[id].received() > 50_000);
    let (server, client) = (world.server().ip(), "198.51.100.1".parse().unwrap());
    for (from, to) in [(server, client), (client, server)] {
        world.network.set_link(from, to, Link { loss: 1.0, ..Link::default() });
    }
    let sent = world.stats(0).datagrams_sent;
    world.for_a_while(Duration::from_millis(100));
    let (held, most) = (world.held_bytes(), world.stats(0).bytes_sent as usize);
    assert!((1..=most).contains(&held) && most < 1 << 20, "{held} bytes are held, {most} were sent");
    // Probe timeouts bring probes, and no more of the body.
    world.until("probes", |world| world.stats(0).datagrams_sent > sent + 10);
    assert!(world.held_bytes() <= held, "{} bytes are held, {held} were", world.held_bytes());
}

#[test]
fn streams_that_the_client_has_paused_leave_the_window_to_others() {
    let tune = |settings: &mut Settings| settings.send_window = 64 << 10;
    let mut world = Build { tune, ..Build::default() }.world();
    let options = Options { reads: false, max_stream_data: 10_000, ..Options::default() };
    let id = client(&mut world, 5000, options);
    // Each takes 10,000 bytes of what is fetched for it.
    for _ in 0..20 {
        world.clients[id].get("/bytes/1000000");
    }
    let taken = 20 * 10_000;
    world.until("all are paused", |world| world.stats(0).bytes_sent > taken && world.held_bytes() == 0);
    world.clients[id].get("/bytes/9000");
    world.until("another response", |world| world.stats(0).responses_complete == 1);
    world.clients[id].read_on();
    world.until("the rest", |world| world.clients[id].is_done());
    assert!((0..21).all(|index| world.clients[id].response(index).intact));
}

#[test]
fn the_window_goes_to_the_most_urgent_and_to_incremental_ones_in_turn() {
    let tune = |settings: &mut Settings| settings.send_window = 64 << 10;
    let link = Link { delay: Duration::from_millis(5), ..Link::default() };
    let whole_turns = WorkerOptions::default().slice;
    for (first, second, slice) in [
        ("u=5", "u=2", whole_turns),
        ("u=3, i", "u=3, i", whole_turns),
        // What is cut short in every turn does not go before who waits.
        ("u=5", "u=2", SliceLimit::Pieces(1)),
        ("u=3, i", "u=3, i", SliceLimit::Pieces(1)),
    ] {
        let mut world = Build { tune, link: link.clone(), slice, ..Build::default() }.world();
        let id = client(&mut world, 5000, Options::default());
        world.clients[id].request("GET", "/bytes/20000000", &[("priority", first)], b"");
        // The congestion window is beyond the send window by then.
        world.until("a beginning", |world| world.clients[id].received() > 2_000_000);
        world.clients[id].request("GET", "/bytes/500000", &[("priority", second)], b"");
        world.until("the second", |world| {
            world.clients[id].streams.len() == 2 && world.clients[id].response(1).is_over()
        });
        let behind = world.clients[id].response(0);
        assert!(
            !behind.is_over() && behind.received < 10_000_000,
            "{first}, {slice:?}: {} bytes",
            behind.received
        );
    }
}

#[test]
fn the_urgency_of_an_answer_counts_if_its_client_names_none() {
    let tune = |settings: &mut Settings| settings.send_window = 64 << 10;
    let link = Link { delay: Duration::from_millis(5), ..Link::default() };
    for (target, asked, overtakes) in [
        ("/bytes/500000/u2", None, true),
        ("/bytes/500000", None, false),
        ("/bytes/500000/u2", Some("u=5"), false),
        ("/bytes/500000/u5", Some("u=1"), true),
    ] {
        let mut world = Build { tune, link: link.clone(), ..Build::default() }.world();
        let id = client(&mut world, 5000, Options::default());
        world.clients[id].get("/bytes/6000000");
        world.until("a beginning", |world| world.clients[id].received() > 2_000_000);
        let headers: Vec<_> = asked.iter().map(|asked| ("priority", *asked)).collect();
        world.clients[id].request("GET", target, &headers, b"");
        let is_over = |world: &World, index| {
            world.clients[id].streams.len() == 2 && world.clients[id].response(index).is_over()
        };
        world.until("one of both", |world| is_over(world, 0) || is_over(world, 1));
        assert_eq!(is_over(&world, 1), overtakes, "{target}, {asked:?}");
    }
}

#[test]
fn a_request_that_is_cancelled_lets_go_of_its_memory() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options { reads: false, max_data: 1 << 20, ..Options::default() });
    world.clients[id].get("/bytes/100000000");
    world.until("data held", |world| world.held_bytes() > 0 && !world.clients[id].streams.is_empty());
    let stream = world.clients[id].streams[0];
    world.clients[id].quic.stream_shutdown(stream, quiche::Shutdown::Read, 0x10c).unwrap();
    world.until("it to be let go", |world| world.held_bytes() == 0 && world.stats(0).requests_active == 0);
    let stats = world.stats(0);
    assert_eq!((stats.responses_cancelled, stats.connections), (1, 1));
    world.clients[id].reads = true;
    world.clients[id].get("/bytes/1000");
    world.until("another request", |world| {
        world.clients[id].streams.len() == 2 && world.clients[id].response(1).is_over()
    });
    assert!(world.clients[id].response(1).intact);
}

#[test]
fn a_body_that_fails_resets_its_stream_and_no_other() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].get("/fail/200000");
    world.clients[id].get("/bytes/300000");
    world.until("both", |world| world.clients[id].is_done());
    assert_eq!(world.clients[id].response(0).reset, Some(0x102), "H3_INTERNAL_ERROR");
    assert!(world.clients[id].response(1).finished && world.clients[id].response(1).intact);
    assert_eq!(world.stats(0).responses_failed, 1);
}

#[test]
fn malformed_requests_are_reset_and_the_connection_lives() {
    let mut world = Build { tune: |settings| settings.max_header_size = 4096, ..Build::default() }.world();
    let id = client(&mut world, 5000, Options::default());
    let good = [(":method", "GET"), (":scheme", "https"), (":authority", "a"), (":path", "/bytes/10")];
    world.clients[id].raw(&good[..3], b"");
    world.clients[id].raw(&[&good[..], &[("connection", "close")]].concat(), b"");
    // Its answer is slow in coming, so the body is seen first.
    let slow = [&good[..3], &[(":path", "/slow/1000000"), ("content-length", "3")]].concat();
    world.clients[id].raw(&slow, b"four");
    world.clients[id].raw(&[&good[..], &[("x", &"y".repeat(6000))]].concat(), b"");
    world.clients[id].raw(&good, b"");
    world.until("all", |world| world.clients[id].is_done());
    for index in 0..3 {
        assert_eq!(world.clients[id].response(index).reset, Some(0x10e), "request {index}: H3_MESSAGE_ERROR");
    }
    assert_eq!(world.clients[id].response(3).status, Some(431));
    assert_eq!(world.clients[id].response(4).received, 10);
    assert_eq!(world.stats(0).refused_malformed, 3);
    assert_eq!(world.stats(0).connections, 1);
}

#[test]
fn a_client_that_keeps_abandoning_requests_is_cut_off() {
    let mut world = Build::default().world();
    let id = client(&mut world, 5000, Options::default());
    world.until("a connection", |world| world.clients[id].http.is_some());
    world.until("the end of patience", |world| {
        let client = &mut world.clients[id];
        client.get("/bytes/100000000");
        for stream in std::mem::take(&mut client.streams) {
            let _ = client.quic.stream_shutdown(stream, quiche::Shutdown::Read, 0x10c);
            let _ = client.quic.stream_shutdown(stream, quiche::Shutdown::Write, 0x10c);
        }
        client.quic.peer_error().is_some()
    });
    let error = world.clients[id].quic.peer_error().unwrap();
    assert_eq!((error.is_app, error.error_code), (true, 0x107), "H3_EXCESSIVE_LOAD");
}

#[test]
fn of_early_data_what_is_safe_is_served_at_once_and_the_rest_when_the_handshake_is_complete() {
    for allowed in [false, true] {
        let tune = if allowed {
            |settings: &mut Settings| settings.early_data = true
        } else {
            |_: &mut Settings| {}
        };
        let mut world = Build { tune, ..Build::default() }.world();
        let first =
            fetch(&mut world, Options { early_data: true, ..Options::default() }, &[("/bytes/10", 10)]);
        world.until("a ticket", |world| world.clients[first].quic.session().is_some());
        let session = world.clients[first].quic.session().map(<[u8]>::to_vec);
        let options = Options { early_data: true, session, ..Options::default() };
        let id = client(&mut world, 5009, options);
        world.clients[id].get("/bytes/1000");
        world.clients[id].request("POST", "/bytes/1000", &[], b"");
        world.clients[id].request("POST", "/echo", &[], b"hello");
        for _ in 0..20 {
            world.clients[id].request("DELETE", "/bytes/1000", &[], b"");
        }
        world.until("answers", |world| world.clients[id].is_done());
        assert!(world.clients[id].quic.is_resumed());
        assert_eq!(world.clients[id].response(0).received, 1000);
        assert_eq!(world.clients[id].response(1).status, Some(405));
        let echo = world.clients[id].response(2);
        assert_eq!((echo.status, &echo.body[..]), (Some(200), &b"hello"[..]));
        // Of those that could be replayed a connection holds 16.
        let too_early = (3..23).filter(|n| world.clients[id].response(*n).status == Some(425)).count();
        assert_eq!(too_early, if allowed { 6 } else { 0 });
        let stats = world.stats(0);
        assert_eq!(stats.requests_held_early, if allowed { 16 } else { 0 });
        assert_eq!(
            (stats.refused_early_data, stats.connections_early_data),
            (too_early as u64, allowed.into())
        );
    }
}
