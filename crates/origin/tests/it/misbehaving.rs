//! Servers that break the rules: no client takes a part for the whole, waits for ever, or gets another's answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use expressway_web::{BodyError, RequestBody};
use http::Method;

use crate::common::{self, Bed, Server, ok, options, request};

const SHORT: Duration = Duration::from_millis(300);

/// A response whose body must end in an error, after `expected`.
fn broken(server: &Server, expected: &[u8]) -> BodyError {
    let bed = Bed::of(server);
    let mut asked = bed.get();
    assert_eq!(asked.status(), 200);
    let (body, end) = asked.body();
    assert_eq!(body, expected);
    end.expect_err("a part passed for the whole")
}

#[test]
fn a_server_that_dies_in_mid_body_is_an_error_at_the_client() {
    let cut = Server::closing("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello");
    assert_eq!(broken(&cut, b"hello"), BodyError::Origin("incomplete"));
    let cut = Server::closing("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
    assert_eq!(broken(&cut, b"hello"), BodyError::Origin("incomplete"));
}

#[test]
fn garbage_between_chunks_is_an_error_at_the_client() {
    for garbage in ["zz\r\n", "-5\r\n", "fffffffffffffffff\r\n", "5hello"] {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";
        broken(&Server::saying(format!("{head}{garbage}")), b"hello");
    }
}

#[test]
fn a_body_that_stands_still_is_given_up() {
    let server = Server::saying("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello");
    let mut options = options(&[server.address]);
    options.timeouts.read = SHORT;
    let bed = Bed::new(options);
    let mut asked = bed.get();
    assert_eq!(asked.status(), 200);
    assert_eq!(asked.body(), (b"hello".to_vec(), Err(BodyError::Origin("read-timeout"))));
    assert_eq!(bed.failures("read-timeout"), 1);
}

#[test]
fn a_head_that_drips_is_given_up() {
    let server = Server::start(|mut connection| {
        connection.request();
        connection.say(b"HTTP/1.1 200 OK\r\n");
        while connection.say(b"a: b\r\n") {
            std::thread::sleep(SHORT / 20);
        }
    });
    let mut options = options(&[server.address]);
    options.timeouts.response = SHORT;
    let bed = Bed::new(options);
    assert_eq!(bed.get().whole(), (504, "504 Gateway Timeout\n".into()));
    assert_eq!(bed.failures("response-timeout"), 1);
}

#[test]
fn interim_responses_are_skipped_but_not_for_ever() {
    let server = Server::saying(format!(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n{}",
        ok("late")
    ));
    assert_eq!(Bed::of(&server).get().whole(), (200, "late".into()));
    let endless = Server::start(|mut connection| {
        connection.request();
        while connection.say(b"HTTP/1.1 103 Early Hints\r\n\r\n") {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let mut options = options(&[endless.address]);
    options.timeouts.response = SHORT;
    assert_eq!(Bed::new(options).get().status(), 504);
    let switching = Server::saying("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n");
    assert_eq!(Bed::of(&switching).get().status(), 502);
}

#[test]
fn heads_are_bounded() {
    let long = Server::saying(format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "x".repeat(70 << 10)));
    let bed = Bed::of(&long);
    assert_eq!(bed.get().status(), 502);
    assert_eq!(bed.failures("head-too-large"), 1);
    let endless = Server::start(|mut connection| {
        connection.request();
        connection.say(b"HTTP/1.1 200 OK\r\n");
        while connection.say(b"a: bcdefghijklmnopqrstuvwxyz\r\n") {}
    });
    assert_eq!(Bed::of(&endless).get().status(), 502);
    let many = Server::saying(format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(200)));
    assert_eq!(Bed::of(&many).get().status(), 502);
}

#[test]
fn what_is_no_response_is_answered_502() {
    for garbage in [
        "SSH-2.0-OpenSSH_9.9\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nbad name: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\na: b\r\n folded\r\n\r\n",
        "\0\0\0\0",
    ] {
        let server = Server::closing(garbage);
        assert_eq!(Bed::of(&server).get().status(), 502, "{garbage:?}");
    }
}

#[test]
fn what_follows_a_body_is_nobodys_response() {
    let server = Server::start(|mut connection| {
        while connection.request().is_some() {
            let more = format!("{}{}", ok("mine"), ok("EVIL"));
            connection.say(more.as_bytes());
        }
    });
    let bed = Bed::of(&server);
    for _ in 0..20 {
        assert_eq!(bed.get().whole(), (200, "mine".into()));
    }
    let bodyless =
        Server::saying("HTTP/1.1 304 Not Modified\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nEVIL");
    let bed = Bed::of(&bodyless);
    for _ in 0..20 {
        assert_eq!(bed.get().whole(), (304, String::new()));
    }
}

#[test]
fn a_connection_that_is_closed_at_once_is_not_used_again() {
    let server = Server::closing(ok("once"));
    let bed = Bed::of(&server);
    for _ in 0..30 {
        assert_eq!(bed.get().whole(), (200, "once".into()));
    }
    assert_eq!(server.accepted(), 30);
}

/// Answers the first request on a connection, and closes it at the second.
fn dying(seen: &Arc<AtomicUsize>) -> Server {
    let seen = seen.clone();
    Server::start(move |mut connection| {
        connection.request();
        seen.fetch_add(1, Ordering::SeqCst);
        connection.say(ok("first").as_bytes());
        if connection.request().is_some() {
            seen.fetch_add(1, Ordering::SeqCst);
        }
    })
}

#[test]
fn a_pooled_connection_that_dies_costs_an_idempotent_request_nothing() {
    let seen = Arc::default();
    let server = dying(&seen);
    let bed = Bed::of(&server);
    for _ in 0..10 {
        assert_eq!(bed.get().whole(), (200, "first".into()));
        wait(|| bed.origin.report().servers[0].idle == 1);
    }
    assert_eq!(server.accepted(), 10);
    assert_eq!((bed.failures("closed"), seen.load(Ordering::SeqCst)), (9, 19));
}

#[test]
fn what_may_have_been_done_is_not_done_again() {
    let seen = Arc::default();
    let server = dying(&seen);
    let bed = Bed::of(&server);
    assert_eq!(bed.get().whole().0, 200);
    wait(|| bed.origin.report().servers[0].idle == 1);
    let post = bed.send(&request(Method::POST, "/", &[]), RequestBody::empty());
    assert_eq!(post.whole().0, 502);
    assert_eq!((server.accepted(), seen.load(Ordering::SeqCst)), (1, 2));
}

#[test]
fn responses_without_a_body_leave_their_connection_to_the_next() {
    for (method, response, length) in [
        (Method::HEAD, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", Some("5")),
        (Method::GET, "HTTP/1.1 204 No Content\r\n\r\n", None),
        (Method::GET, "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", Some("5")),
        (Method::HEAD, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", None),
    ] {
        let server = Server::saying(response);
        let bed = Bed::of(&server);
        for _ in 0..3 {
            let mut asked = bed.ask(method.clone(), "/");
            let head = asked.head();
            assert!(head.is_bodyless(), "{response}");
            assert_eq!(head.headers.get("content-length").map(|l| l.to_str().unwrap()), length, "{response}");
            assert!(head.headers.contains_key("date") && !head.headers.contains_key("transfer-encoding"));
            drop(asked);
            wait(|| bed.origin.report().servers[0].idle == 1);
        }
        assert_eq!(server.accepted(), 1, "{response}");
    }
}

#[test]
fn an_old_server_ends_its_body_with_the_connection() {
    let server = Server::closing("HTTP/1.0 200 OK\r\n\r\nuntil the end");
    assert_eq!(Bed::of(&server).get().whole(), (200, "until the end".into()));
}

#[test]
fn an_endless_body_is_held_up_by_its_client_and_ends_with_it() {
    let sent = Arc::<AtomicUsize>::default();
    let (counter, ended) = (sent.clone(), Arc::<AtomicUsize>::default());
    let end = ended.clone();
    let server = Server::start(move |mut connection| {
        connection.request();
        connection.say(b"HTTP/1.1 200 OK\r\n\r\n");
        while connection.say(&[b'x'; 1 << 14]) {
            counter.fetch_add(1 << 14, Ordering::SeqCst);
        }
        end.store(1, Ordering::SeqCst);
    });
    let bed = Bed::of(&server);
    let mut asked = bed.get();
    assert_eq!(asked.status(), 200);
    let mut taken = 0;
    while taken < 4 << 20 {
        taken += asked.chunk(1 << 16).unwrap().unwrap().len();
    }
    // What sockets, hyper and the pipe hold.
    let mut before = usize::MAX;
    wait(|| {
        std::thread::sleep(SHORT);
        std::mem::replace(&mut before, sent.load(Ordering::SeqCst)) == before
    });
    assert!(before - taken < 16 << 20, "{before} sent of which {taken} were taken");
    drop(asked);
    wait(|| ended.load(Ordering::SeqCst) == 1);
    wait(|| bed.origin.report().servers[0].open == 0);
}

#[test]
fn a_client_that_goes_away_before_the_head_frees_the_server() {
    let server = Server::start(|mut connection| {
        connection.request();
        connection.read(1);
    });
    let bed = Bed::of(&server);
    let asked = bed.get();
    wait(|| bed.origin.report().servers[0].open == 1);
    drop(asked);
    wait(|| bed.origin.report().servers[0].open == 0 && bed.origin.report().servers[0].active == 0);
}

#[test]
fn requests_end_when_the_runtime_does() {
    let server = Server::start(|mut connection| {
        connection.request();
        connection.read(1);
    });
    let mut bed = Bed::of(&server);
    let mut asked = bed.get();
    wait(|| bed.origin.report().servers[0].open == 1);
    drop(bed.control.take());
    assert_eq!(asked.status(), 503);
    assert_eq!(bed.get().status(), 503);
}

/// Waits until `done`, which may take as long as anything here.
fn wait(mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < common::LONG, "it does not come to pass");
        std::thread::sleep(Duration::from_millis(5));
    }
}
