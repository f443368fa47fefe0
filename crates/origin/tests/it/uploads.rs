//! Request bodies on their way to an origin.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use expressway_origin::OriginOptions;
use expressway_web::{BodyError, PipeWriter, RequestBody, Wake, pipe};
use http::{HeaderMap, HeaderValue, Method};

use crate::common::{self, Bed, Server, Signal, ok, options, request};

/// A body of this length, and where it is written.
fn body(length: Option<u64>) -> (PipeWriter, RequestBody) {
    let (writer, reader) = pipe(64 << 10);
    (writer, RequestBody::new(reader, length))
}

/// Writes as fast as the pipe takes it; what was taken if the reader goes away before the end.
fn write(writer: &mut PipeWriter, mut left: usize) -> Result<(), usize> {
    let signal = Arc::new(Signal::default());
    let waker: Waker = Wake::new(signal.clone(), 0).waker();
    let mut sent = 0;
    while left > 0 {
        let Some(room) = signal.until(|| writer.poll_room(&waker)) else { return Err(sent) };
        let length = room.min(left).min((16 << 10) - sent % (16 << 10));
        writer.write(Bytes::from(vec![(sent >> 14) as u8; length]));
        (left, sent) = (left - length, sent + length);
    }
    Ok(())
}

/// The value of a field in the lines of a head.
fn field<'a>(head: &'a [String], name: &str) -> Option<&'a str> {
    head.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[test]
fn a_slow_origin_holds_up_a_large_upload_and_gets_all_of_it() {
    const SIZE: usize = 100 << 20;
    let read = Arc::<AtomicUsize>::default();
    let (counter, go) = (read.clone(), Arc::<AtomicUsize>::default());
    let gate = go.clone();
    let server = Server::start(move |mut connection| {
        let head = connection.request().unwrap();
        assert_eq!(field(&head, "content-length"), Some(SIZE.to_string().as_str()));
        while gate.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut sum = 0_u64;
        while counter.load(Ordering::SeqCst) < SIZE {
            let piece = connection.read(1 << 20);
            assert!(!piece.is_empty());
            sum += piece.iter().map(|byte| u64::from(*byte)).sum::<u64>();
            counter.fetch_add(piece.len(), Ordering::SeqCst);
        }
        connection.say(ok(&sum.to_string()).as_bytes());
    });
    let bed = Bed::of(&server);
    let (mut writer, body) = body(Some(SIZE as u64));
    let taken = Arc::<AtomicUsize>::default();
    let mut asked = bed.send(&request(Method::POST, "/", &[]), body);
    let progress = taken.clone();
    let client = std::thread::spawn(move || {
        for _ in 0..SIZE >> 20 {
            write(&mut writer, 1 << 20).unwrap();
            progress.fetch_add(1 << 20, Ordering::SeqCst);
        }
        writer.finish(None);
    });
    // What sockets, hyper and the pipe hold is all that goes before the origin reads.
    let mut before = usize::MAX;
    while before != taken.load(Ordering::SeqCst) {
        before = taken.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(before < 16 << 20, "{before} were taken of a body that nobody reads");
    go.store(1, Ordering::SeqCst);
    assert_eq!(asked.status(), 200);
    client.join().unwrap();
    // Each piece of 1 MiB begins to count anew.
    let sum: u64 = (0..64_u64).map(|piece| piece << 14).sum::<u64>() * (SIZE >> 20) as u64;
    assert_eq!(asked.body(), (sum.to_string().into_bytes(), Ok(())));
}

#[test]
fn an_early_answer_ends_the_upload() {
    let server = Server::start(|mut connection| {
        connection.request();
        connection.read(1000);
        connection.say(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig");
        // Unread octets would make the kernel reset the connection, and the answer be lost.
        while !connection.read(1 << 16).is_empty() {}
    });
    let bed = Bed::of(&server);
    let (mut writer, body) = body(None);
    let asked = bed.send(&request(Method::POST, "/", &[]), body);
    let client = std::thread::spawn(move || write(&mut writer, usize::MAX));
    assert_eq!(asked.whole(), (413, "big".into()));
    assert!(client.join().unwrap().is_err(), "nobody reads the rest");
    assert_eq!(bed.origin.report().servers[0].idle, 0, "a connection with half a request is not used again");
}

#[test]
fn a_body_of_unknown_length_goes_in_chunks_with_its_trailers() {
    let server = Server::start(|mut connection| {
        let head = connection.request().unwrap();
        assert_eq!(field(&head, "transfer-encoding"), Some("chunked"));
        assert_eq!((field(&head, "content-length"), field(&head, "trailer")), (None, Some("x-sum")));
        let mut text = String::new();
        while !text.ends_with("\r\n\r\n") {
            text += std::str::from_utf8(&connection.read(1)).unwrap();
        }
        connection.say(ok(&text.replace("\r\n", "|")).as_bytes());
    });
    let bed = Bed::of(&server);
    let (mut writer, body) = body(None);
    writer.write(Bytes::from_static(b"hello"));
    let mut trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("5"))]);
    trailers.insert("content-length", HeaderValue::from_static("7"));
    writer.finish(Some(trailers));
    let asked = bed.send(&request(Method::POST, "/", &[("trailer", "X-Sum, Content-Length")]), body);
    assert_eq!(asked.whole(), (200, "5|hello|0|x-sum: 5||".into()));
}

#[test]
fn trailers_do_not_say_whose_certificate_it_was() {
    let server = Server::start(|mut connection| {
        connection.request().unwrap();
        let mut text = String::new();
        while !text.ends_with("\r\n\r\n") {
            text += std::str::from_utf8(&connection.read(1)).unwrap();
        }
        connection.say(ok(&text.replace("\r\n", "|")).as_bytes());
    });
    let subject = "x-client-subject".parse().unwrap();
    let bed = Bed::new(OriginOptions { client_subject: Some(subject), ..options(&[server.address]) });
    let (mut writer, body) = body(None);
    writer.write(Bytes::from_static(b"hello"));
    let names = ["x-sum", "x-client-subject", "x_client-subject"];
    let value = HeaderValue::from_static("CN=root");
    writer.finish(Some(names.map(|name| (name.parse().unwrap(), value.clone())).into_iter().collect()));
    let asked = bed.send(&request(Method::POST, "/", &[("trailer", &names.join(", "))]), body);
    assert_eq!(asked.whole(), (200, "5|hello|0|x-sum: CN=root||".into()));
}

#[test]
fn an_end_that_comes_behind_the_head_is_no_body() {
    for (method, expected) in [(Method::GET, None), (Method::DELETE, None), (Method::POST, Some("chunked"))] {
        let server = Server::start(move |mut connection| {
            let head = connection.request().unwrap();
            let coding = field(&head, "transfer-encoding");
            connection.say(ok(if coding == expected { "right" } else { "wrong" }).as_bytes());
            connection.read(1000);
        });
        let bed = Bed::of(&server);
        let (writer, body) = body(None);
        let asked = bed.send(&request(method, "/", &[]), body);
        std::thread::sleep(Duration::from_millis(50));
        writer.finish(None);
        assert_eq!(asked.whole(), (200, "right".into()));
    }
    // A body that a GET has all the same is sent.
    let server = Server::start(|mut connection| {
        let head = connection.request().unwrap();
        assert_eq!(field(&head, "transfer-encoding"), Some("chunked"));
        assert_eq!(connection.read(12), b"2\r\nhi\r\n0\r\n\r\n");
    });
    let bed = Bed::of(&server);
    let (mut writer, body) = body(None);
    writer.write(Bytes::from_static(b"hi"));
    writer.finish(None);
    assert_eq!(bed.send(&request(Method::GET, "/", &[]), body).status(), 502);
}

#[test]
fn a_client_that_breaks_off_is_seen_by_the_origin_as_broken_off() {
    let seen = Arc::new(Mutex::new(None));
    let tell = seen.clone();
    let server = Server::start(move |mut connection| {
        connection.request();
        let all = connection.read(1 << 20);
        *tell.lock().unwrap() = Some(all);
    });
    let bed = Bed::of(&server);
    let (mut writer, body) = body(None);
    let mut asked = bed.send(&request(Method::PUT, "/", &[]), body);
    writer.write(Bytes::from_static(b"half"));
    while writer.held() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    writer.fail(BodyError::Stopped);
    assert_eq!(asked.status(), 400);
    let start = std::time::Instant::now();
    while seen.lock().unwrap().is_none() {
        assert!(start.elapsed() < common::LONG);
        std::thread::sleep(Duration::from_millis(5));
    }
    let all = seen.lock().unwrap().take().unwrap();
    assert!(!all.ends_with(b"0\r\n\r\n"), "a part passed for the whole: {all:?}");
    assert_eq!(server.accepted(), 1, "it is not sent again");
    assert!(bed.origin.report().servers[0].is_available);
}

#[test]
fn lengths_that_lie_do_not_reach_the_origin() {
    for (length, sent) in [(10, "short"), (3, "too long")] {
        let server = Server::start(|mut connection| {
            let head = connection.request().unwrap();
            let length = field(&head, "content-length").unwrap().parse().unwrap();
            let all = connection.read(length + 1);
            assert!(all.len() <= length, "{all:?}");
            connection.say(ok("?").as_bytes());
        });
        let bed = Bed::of(&server);
        let (mut writer, body) = body(Some(length));
        writer.write(Bytes::from(sent));
        writer.finish(None);
        let mut asked = bed.send(&request(Method::POST, "/", &[]), body);
        assert_ne!(asked.status(), 200, "{sent}");
    }
}

#[test]
fn who_uploads_slowly_is_waited_for_and_who_answers_slowly_is_not() {
    let short = Duration::from_millis(300);
    let server = Server::start(|mut connection| {
        connection.request();
        connection.read(3);
        connection.say(ok("done").as_bytes());
    });
    let mut options = options(&[server.address]);
    options.timeouts.response = short;
    let bed = Bed::new(options);
    let (mut writer, body) = body(Some(3));
    let asked = bed.send(&request(Method::POST, "/", &[]), body);
    for octet in [b"a", b"b", b"c"] {
        std::thread::sleep(short * 2);
        writer.write(Bytes::from_static(octet));
    }
    writer.finish(None);
    assert_eq!(asked.whole(), (200, "done".into()));
}

#[test]
fn an_origin_that_stops_reading_is_given_up() {
    let server = Server::start(|mut connection| {
        connection.request();
        connection.read(1);
        std::thread::sleep(common::LONG);
    });
    let mut options = options(&[server.address]);
    options.timeouts.response = Duration::from_millis(300);
    let bed = Bed::new(options);
    let (mut writer, body) = body(None);
    let asked = bed.send(&request(Method::POST, "/", &[]), body);
    // It waits for its client first, so that what is told of that must not be taken for ever.
    std::thread::sleep(Duration::from_millis(500));
    let client = std::thread::spawn(move || write(&mut writer, usize::MAX));
    assert_eq!(asked.whole().0, 504);
    assert!(client.join().unwrap().is_err(), "nobody reads the rest");
}

#[test]
fn the_client_is_not_asked_to_go_on_twice() {
    let server = Server::start(|mut connection| {
        let head = connection.request().unwrap();
        assert_eq!(field(&head, "expect"), None);
        connection.read(2);
        connection.say(b"HTTP/1.1 100 Continue\r\n\r\n");
        connection.say(ok("done").as_bytes());
    });
    let bed = Bed::of(&server);
    let (mut writer, body) = body(Some(2));
    let mut asked = bed.send(&request(Method::POST, "/", &[("expect", "100-continue")]), body);
    assert!(matches!(asked.exchange.poll_head(), Poll::Pending));
    writer.write(Bytes::from_static(b"ab"));
    writer.finish(None);
    assert_eq!(asked.whole(), (200, "done".into()));
}
