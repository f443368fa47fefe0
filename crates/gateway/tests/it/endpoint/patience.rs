//! Clients that take nothing, acknowledge nothing, do not finish what they begin, or begin much at once.

use std::time::{Duration, Instant};

use expressway_gateway::quic::Settings;
use expressway_netio::sim::Link;

use super::exchange::{client, fetch};
use crate::support::client::Options;
use crate::support::world::Build;

/// HEADERS of 18 bytes, of which five have come.
const PART: &[u8] = b"\x01\x12\x00\x00\xd1";

fn impatient(settings: &mut Settings) {
    settings.response_timeout = Duration::from_secs(1);
    settings.request_timeout = Duration::from_secs(1);
    settings.missing_timeout = Duration::from_secs(1);
}

#[test]
fn a_response_that_its_client_does_not_take_is_cancelled_and_others_go_on() {
    let mut world = Build { tune: impatient, ..Build::default() }.world();
    let id = client(
        &mut world,
        5000,
        Options { reads: false, max_stream_data: 10_000, max_data: 1 << 20, ..Options::default() },
    );
    for _ in 0..3 {
        world.clients[id].get("/bytes/1000000");
    }
    // Meanwhile the connection is busy: this client's other responses go through.
    let mut others = 0;
    world.until("the end of patience", |world| {
        if world.stats(0).responses_complete == others && others < 50 {
            others += 1;
            world.clients[id].get("/bytes/9000");
        }
        world.stats(0).responses_timed_out == 3
    });
    assert!(others > 1);
    world.until("word of it", |world| {
        (0..3).all(|index| world.clients[id].response(index).reset == Some(0x10c))
    });
    let stats = world.stats(0);
    assert_eq!((stats.connections, stats.responses_cancelled, stats.connections_stalled), (1, 0, 0));
}

/// A client opens the window of its response by some octets several times a second. One that takes more is served on.
#[test]
fn an_octet_now_and_then_holds_no_response() {
    let mut world = Build { tune: impatient, ..Build::default() }.world();
    let window = |octets| Options { reads: false, max_stream_data: octets, ..Options::default() };
    let (sips, reads) = (client(&mut world, 5000, window(40)), client(&mut world, 5001, window(4000)));
    for id in [sips, reads] {
        world.clients[id].get("/bytes/10000000");
    }
    let (mut last, mut sipped) = (Instant::now(), 0);
    world.until("the end of patience", |world| {
        if last.elapsed() > Duration::from_millis(50) {
            last = Instant::now();
            sipped += world.clients[sips].sip(4);
            world.clients[reads].sip(4000);
        }
        world.stats(0).responses_timed_out > 0
    });
    assert!(sipped > 8, "it took something all the while");
    world.until("word of it", |world| world.clients[sips].response(0).reset == Some(0x10c));
    assert_eq!(world.clients[reads].response(0).reset, None);
    let stats = world.stats(0);
    assert_eq!((stats.responses_timed_out, stats.connections_stalled, stats.connections), (1, 0, 2));
}

#[test]
fn any_octet_will_do_where_no_rate_is_asked_for() {
    let tune = |settings: &mut Settings| {
        impatient(settings);
        settings.response_rate = 0;
    };
    let mut world = Build { tune, ..Build::default() }.world();
    let options = Options { reads: false, max_stream_data: 40, ..Options::default() };
    let id = client(&mut world, 5000, options);
    world.clients[id].get("/bytes/10000000");
    let (start, mut last) = (Instant::now(), Instant::now());
    world.until("three times the patience", |world| {
        if last.elapsed() > Duration::from_millis(50) {
            last = Instant::now();
            world.clients[id].sip(4);
        }
        start.elapsed() > Duration::from_secs(3)
    });
    assert_eq!(world.stats(0).responses_timed_out, 0);
}

#[test]
fn a_response_that_stands_back_behind_urgent_ones_is_not_held_to_it() {
    let tune = |settings: &mut Settings| {
        settings.response_timeout = Duration::from_millis(400);
        settings.send_window = 64 << 10;
    };
    let link = Link { delay: Duration::from_millis(5), rate: Some(20_000_000), ..Link::default() };
    let mut world = Build { tune, link, ..Build::default() }.world();
    let id = client(&mut world, 5000, Options::default());
    world.clients[id].request("GET", "/bytes/4000000", &[("priority", "u=0")], b"");
    world.until("a beginning", |world| world.clients[id].received() > 500_000);
    world.clients[id].request("GET", "/bytes/200000", &[("priority", "u=7")], b"");
    world.until("both", |world| world.clients[id].streams.len() == 2 && world.clients[id].is_done());
    assert!((0..2).all(|index| world.clients[id].response(index).finished));
    assert_eq!(world.stats(0).responses_timed_out, 0);
}

#[test]
fn a_client_that_acknowledges_nothing_is_left() {
    let mut world = Build { tune: impatient, ..Build::default() }.world();
    let id = fetch(&mut world, Options::default(), &[("/bytes/10", 10)]);
    world.clients[id].get("/bytes/10000");
    world.until("the request", |world| world.stats(0).requests == 2);
    world.clients[id].deaf = true;
    assert!(world.held_bytes() > 0, "all of it is on its way");
    // It is there all the time.
    let mut last = Instant::now();
    world.until("the end of patience", |world| {
        if last.elapsed() > Duration::from_millis(100) {
            last = Instant::now();
            world.clients[id].quic.send_ack_eliciting().unwrap();
        }
        world.stats(0).connections_stalled == 1
    });
    assert_eq!(world.stats(0).responses_complete, 2, "nothing was left to be sent");
    world.clients[id].deaf = false;
    world.until("word of it", |world| world.clients[id].quic.peer_error().is_some());
    let error = world.clients[id].quic.peer_error().unwrap();
    assert_eq!((error.is_app, error.error_code), (true, 0x107), "H3_EXCESSIVE_LOAD");
    world.until("its memory", |world| world.held_bytes() == 0);
}

/// A stream without its first byte is nothing that HTTP/3 knows of, and a client that is there all the time is not idle.
#[test]
fn data_without_its_beginning_ends_its_connection() {
    let mut world = Build { tune: impatient, ..Build::default() }.world();
    let options = || Options { http: false, ..Options::default() };
    let (gaps, good) = (client(&mut world, 5000, options()), client(&mut world, 5001, options()));
    world.until("connections", |world| world.clients.iter().all(|client| client.quic.is_established()));
    world.for_a_while(Duration::from_millis(50));
    assert_eq!(world.stats(0).request_bytes, 0);
    world.clients[gaps].send_with_gaps(&[0, 4], 2, 100);
    world.until("the data", |world| world.stats(0).request_bytes > 1000);
    let mut last = Instant::now();
    world.until("the end of patience", |world| {
        if last.elapsed() > Duration::from_millis(100) {
            last = Instant::now();
            for id in [gaps, good] {
                world.clients[id].quic.send_ack_eliciting().unwrap();
                world.clients[id].send_now().unwrap();
            }
        }
        world.stats(0).refused_received_timeout == 1
    });
    world.clients[gaps].deaf = false;
    world.until("word of it", |world| {
        // The close is said again in answer to what comes.
        let _ = world.clients[gaps].quic.send_ack_eliciting();
        world.clients[gaps].send_now().unwrap();
        world.clients[gaps].quic.peer_error().is_some()
    });
    let error = world.clients[gaps].quic.peer_error().unwrap();
    assert_eq!((error.is_app, error.error_code), (true, 0x107), "H3_EXCESSIVE_LOAD");
    world.until("its end", |world| world.stats(0).connections == 1);
    assert_eq!(world.stats(0).request_bytes, 0);
    assert!(world.clients[good].quic.peer_error().is_none());
}

#[test]
fn a_header_section_that_does_not_come_whole_is_rejected() {
    let mut world = Build { tune: impatient, ..Build::default() }.world();
    let id = client(&mut world, 5000, Options { http: false, ..Options::default() });
    world.until("a connection", |world| world.clients[id].quic.is_established());
    for stream in [0, 4] {
        world.clients[id].quic.stream_send(stream, PART, false).unwrap();
    }
    world.until("its memory", |world| world.stats(0).request_bytes > 0);
    world.until("the end of patience", |world| world.stats(0).refused_request_timeout == 2);
    for stream in [0, 4] {
        let mut reset = None;
        world.until("word of it", |world| {
            if let Err(quiche::Error::StreamReset(code)) =
                world.clients[id].quic.stream_recv(stream, &mut [0; 100])
            {
                reset = Some(code);
            }
            reset.is_some()
        });
        assert_eq!(reset, Some(0x10b), "H3_REQUEST_REJECTED: it may be sent again");
    }
    let stats = world.stats(0);
    assert_eq!((stats.connections, stats.requests, stats.request_bytes), (1, 0, 0));
}

#[test]
fn requests_beyond_what_may_be_open_wait_in_line_and_are_all_served() {
    let tune = |settings: &mut Settings| settings.max_open_files = 4;
    let mut world = Build { tune, ..Build::default() }.world();
    let id = client(&mut world, 5000, Options::default());
    for _ in 0..60 {
        world.clients[id].get("/slow/200000");
    }
    let (mut most, mut waiting) = (0, 0);
    world.until("all", |world| {
        let stats = world.stats(0);
        most = most.max(stats.requests_active);
        waiting = waiting.max(stats.requests_waiting);
        world.clients[id].streams.len() == 60 && world.clients[id].is_done()
    });
    assert_eq!(most, 4);
    assert!(waiting >= 40, "{waiting} waited at once");
    assert!((0..60).all(|index| world.clients[id].response(index).intact));
    let stats = world.stats(0);
    assert_eq!((stats.requests_waiting, stats.responses_complete, stats.request_bytes), (0, 60, 0));
}

#[test]
fn whoever_leaves_while_its_requests_wait_leaves_nothing() {
    let tune = |settings: &mut Settings| settings.max_open_files = 1;
    let mut world = Build { tune, ..Build::default() }.world();
    let id = client(&mut world, 5000, Options { reads: false, max_data: 100_000, ..Options::default() });
    for _ in 0..20 {
        world.clients[id].get("/bytes/1000000");
    }
    world.until("a line", |world| world.stats(0).requests_waiting == 19);
    // One that is given up while it waits is counted when its turn comes.
    let (first, second) = (world.clients[id].streams[0], world.clients[id].streams[1]);
    for stream in [second, first] {
        world.clients[id].quic.stream_shutdown(stream, quiche::Shutdown::Write, 0x10c).unwrap();
        world.clients[id].quic.stream_shutdown(stream, quiche::Shutdown::Read, 0x10c).unwrap();
    }
    world.until("the next", |world| world.stats(0).requests_waiting == 17);
    world.clients[id].quic.close(true, 0x100, b"").unwrap();
    world.until("its end", |world| world.stats(0).connections == 0);
    let stats = world.stats(0);
    assert_eq!((stats.requests_waiting, stats.requests_active, stats.request_bytes), (0, 0, 0));
}
