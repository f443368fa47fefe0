//! Several servers: what one does not answer another does, as far as that is safe.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use expressway_origin::{Balance, Endpoint, HealthCheck};
use expressway_web::{RequestBody, pipe};
use http::Method;

use crate::common::{self, Bed, Server, nobody, ok, options, request};

fn wait(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < common::LONG, "it does not come to pass");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads the request, and closes the connection without a word.
fn silent(seen: &Arc<AtomicUsize>) -> Server {
    let seen = seen.clone();
    Server::start(move |mut connection| {
        if connection.request().is_some() {
            seen.fetch_add(1, Ordering::SeqCst);
        }
    })
}

#[test]
fn a_server_that_is_gone_is_passed_over_and_left_alone() {
    let good = Server::saying(ok("good"));
    let bed = Bed::new(options(&[nobody(), good.address]));
    for _ in 0..20 {
        assert_eq!(bed.ask(Method::POST, "/").whole(), (200, "good".into()), "nothing was sent to the other");
    }
    let report = bed.origin.report();
    assert_eq!((report.servers[0].requests, report.servers[0].is_available), (3, false));
    assert_eq!((report.servers[1].requests, report.servers[1].retries), (20, 3));
    assert_eq!(bed.failures("connect"), 3);
}

#[test]
fn all_servers_gone_are_all_tried_again_and_again() {
    let bed = Bed::new(options(&[nobody(), nobody(), nobody(), nobody()]));
    for _ in 0..10 {
        assert_eq!(bed.get().whole(), (502, "502 Bad Gateway\n".into()));
    }
    assert_eq!(bed.failures("connect"), 30, "three attempts each, of four servers");
}

#[test]
fn only_what_is_idempotent_and_untouched_is_sent_twice() {
    let (seen, good) = (Arc::default(), Server::saying(ok("good")));
    let bad = silent(&seen);
    let mut options = options(&[bad.address, good.address]);
    options.ejection.failures = 0;
    let bed = Bed::new(options);
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::OPTIONS] {
        for _ in 0..4 {
            assert_eq!(bed.ask(method.clone(), "/").whole(), (200, "good".into()), "{method}");
        }
    }
    let before = seen.load(Ordering::SeqCst);
    let posts: Vec<_> = (0..4).map(|_| bed.ask(Method::POST, "/").whole().0).collect();
    assert_eq!(posts.iter().filter(|status| **status == 502).count(), 2, "{posts:?}");
    assert_eq!(seen.load(Ordering::SeqCst) - before, 2);
    // A body that has begun to go to one server is not there for another.
    let puts: Vec<_> = (0..4)
        .map(|_| {
            let (mut writer, reader) = pipe(1000);
            writer.write(Bytes::from_static(b"x"));
            writer.finish(None);
            let body = RequestBody::new(reader, Some(1));
            bed.send(&request(Method::PUT, "/", &[]), body).whole().0
        })
        .collect();
    assert_eq!(puts.iter().filter(|status| **status == 502).count(), 2, "{puts:?}");
}

#[test]
fn retries_are_bounded() {
    let seen = Arc::default();
    let servers: Vec<_> = (0..5).map(|_| silent(&seen)).collect();
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let mut options = options(&addresses);
    options.retries = 1;
    let bed = Bed::new(options);
    assert_eq!(bed.get().status(), 502);
    assert_eq!(seen.load(Ordering::SeqCst), 2);
}

#[test]
fn a_slow_server_is_left_for_another() {
    let slow = Server::start(|mut connection| {
        connection.request();
        connection.read(1);
    });
    let good = Server::saying(ok("good"));
    let mut options = options(&[slow.address, good.address]);
    options.timeouts.response = Duration::from_millis(200);
    let bed = Bed::new(options);
    for _ in 0..2 {
        assert_eq!(bed.get().whole(), (200, "good".into()));
    }
    assert_eq!(bed.failures("response-timeout"), 1);
}

#[test]
fn a_limit_on_all_of_a_request_holds_over_attempts() {
    let slow = Server::start(|mut connection| {
        connection.request();
        connection.read(1);
    });
    let mut options = options(&[slow.address]);
    options.timeouts.total = Some(Duration::from_millis(200));
    let bed = Bed::new(options);
    assert_eq!(bed.get().whole(), (504, "504 Gateway Timeout\n".into()));
    assert_eq!(bed.failures("total-timeout"), 1);
}

#[test]
fn requests_beyond_the_limit_are_refused_and_those_beyond_the_connections_wait() {
    let (release, server) = (Arc::<AtomicBool>::default(), {
        |release: Arc<AtomicBool>| {
            Server::start(move |mut connection| {
                while connection.request().is_some() {
                    wait(|| release.load(Ordering::SeqCst));
                    connection.say(ok("done").as_bytes());
                }
            })
        }
    });
    let server = server(release.clone());
    let mut options = options(&[server.address]);
    (options.limits.requests, options.limits.connections) = (4, 2);
    let bed = Bed::new(options);
    let asked: Vec<_> = (0..4).map(|_| bed.get()).collect();
    assert_eq!(bed.get().whole(), (503, "503 Service Unavailable\n".into()));
    wait(|| server.accepted() == 2);
    release.store(true, Ordering::SeqCst);
    for asked in asked {
        assert_eq!(asked.whole(), (200, "done".into()));
    }
    assert_eq!((server.accepted(), bed.origin.report().refused), (2, 1));
}

#[test]
fn who_waits_for_a_connection_in_vain_is_answered_503() {
    let server = Server::start(|mut connection| {
        connection.request();
        connection.read(1);
    });
    let mut options = options(&[server.address]);
    (options.limits.connections, options.timeouts.connect) = (1, Duration::from_millis(200));
    let bed = Bed::new(options);
    let _first = bed.get();
    wait(|| server.accepted() == 1);
    assert_eq!(bed.get().status(), 503);
    assert_eq!(bed.failures("busy"), 1);
    assert!(bed.origin.report().servers[0].is_available, "busy is not broken");
}

#[test]
fn checks_take_a_server_out_of_service_and_back() {
    let is_well = Arc::new(AtomicBool::new(true));
    let wellness = is_well.clone();
    let server = |name: &'static str, is_well: Arc<AtomicBool>| {
        Server::start(move |mut connection| {
            while let Some(head) = connection.request() {
                let is_check = head[0].starts_with("get /health ");
                match is_check && !is_well.load(Ordering::SeqCst) {
                    true => connection.say(b"HTTP/1.1 500 x\r\ncontent-length: 0\r\n\r\n"),
                    false => connection.say(ok(name).as_bytes()),
                };
            }
        })
    };
    let (one, other) = (server("one", wellness), server("other", Arc::new(AtomicBool::new(true))));
    let mut options = options(&[one.address, other.address]);
    options.health = Some(HealthCheck {
        path: "/health".into(),
        interval: Duration::from_millis(20),
        timeout: Duration::from_secs(5),
        status: vec![(200, 299)],
        rise: 2,
        fall: 2,
    });
    let bed = Bed::new(options);
    let available = |bed: &Bed| bed.origin.report().servers[0].is_available;
    let answers = |bed: &Bed| (0..10).filter(|_| bed.get().whole().1 == "one").count();
    assert_eq!(answers(&bed), 5);
    is_well.store(false, Ordering::SeqCst);
    wait(|| !available(&bed));
    assert_eq!(answers(&bed), 0);
    is_well.store(true, Ordering::SeqCst);
    wait(|| available(&bed));
    assert_eq!(answers(&bed), 5);
}

#[test]
fn a_hash_keeps_a_target_with_its_server_as_long_as_that_is_there() {
    let names = ["a", "b", "c"];
    let mut servers: Vec<_> = names.iter().map(|name| Server::saying(ok(name))).collect();
    let mut options = options(&servers.iter().map(|server| server.address).collect::<Vec<_>>());
    options.balance = Balance::Hash;
    let whole = Bed::new(options.clone());
    let ask = |bed: &Bed, n: usize| bed.ask(Method::GET, &format!("/{n}")).whole().1;
    let before: Vec<_> = (0..60).map(|n| ask(&whole, n)).collect();
    assert!(names.iter().all(|name| before.iter().any(|answer| answer == name)), "{before:?}");
    assert_eq!(before, (0..60).map(|n| ask(&whole, n)).collect::<Vec<_>>());
    // The same origin with one server elsewhere, where nobody is: its targets move, and no others.
    servers.remove(1);
    options.servers[1].endpoint = Endpoint::parse(&format!("http://{}", nobody())).unwrap();
    options.ejection.failures = 1;
    let bed = Bed::new(options);
    for _ in 0..2 {
        for (n, was) in before.iter().enumerate() {
            let is = ask(&bed, n);
            assert!(is != "b" && (was == "b" || is == *was), "{n}: {was}, then {is}");
        }
    }
}
