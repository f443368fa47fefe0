//! HTTP/1.1 and 1.0.

use crate::stage::octets;
use crate::world::{Build, connect};

const ECHO: &str = "POST /echo HTTP/1.1\r\nhost: edge.test\r\n";

#[test]
fn a_connection_is_kept_and_requests_may_come_at_once() {
    let world = Build::default().world();
    let mut wire = world.connect();
    for length in [0, 1, 1000, 300_000] {
        let (head, body) = wire.get(&format!("/bytes/{length}"));
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert_eq!(body, octets(length));
    }
    wire.send("GET /bytes/7 HTTP/1.1\r\nhost: a\r\n\r\n".repeat(20));
    for _ in 0..20 {
        assert_eq!(wire.response().1, octets(7));
    }
    wire.send("HEAD /bytes/9 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let rest = String::from_utf8(wire.rest()).unwrap();
    assert!(rest.contains("content-length: 9\r\n") && rest.ends_with("\r\n\r\n"), "{rest}");
    assert_eq!(world.count("tcp_requests", "HTTP/1.1"), 25);
    world.until("all complete", || world.count("tcp_responses", "complete") == 25);
}

#[test]
fn a_body_without_a_length_is_chunked_and_arrives_whole() {
    let world = Build::default().world();
    let mut wire = world.connect();
    wire.send("GET /stream/2000000 HTTP/1.0\r\n\r\n");
    let head = wire.head();
    assert!(!head.contains("chunked") && head.contains("x-stage: yes"), "{head}");
    assert_eq!(wire.rest(), octets(2_000_000));
    let mut wire = world.connect();
    wire.send("GET /stream/100 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    assert!(wire.head().contains("transfer-encoding: chunked"));
    let expected = [b"64\r\n", &octets(100)[..], b"\r\n0\r\n\r\n"].concat();
    assert_eq!(wire.rest(), expected);
}

#[test]
fn a_request_body_goes_through_with_its_trailers() {
    let world = Build::default().world();
    let mut wire = world.connect();
    let chunk = octets(70_000);
    wire.send(format!("{ECHO}te: trailers\r\nconnection: te, close\r\ntransfer-encoding: chunked\r\n\r\n"));
    for _ in 0..3 {
        wire.send(format!("{:x}\r\n", chunk.len()));
        wire.send(&chunk);
        wire.send("\r\n");
    }
    wire.send("0\r\nx-end: yes\r\n\r\n");
    let answer = wire.rest();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let (body, trailers) = dechunk(&answer[end..]);
    assert_eq!(body, chunk.repeat(3));
    assert_eq!(trailers, "x-end: yes\r\n\r\n");
}

/// The body and the trailers of a chunked message.
fn dechunk(mut rest: &[u8]) -> (Vec<u8>, String) {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n").unwrap();
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        rest = &rest[end + 2..];
        if length == 0 {
            return (body, String::from_utf8(rest.to_vec()).unwrap());
        }
        body.extend_from_slice(&rest[..length]);
        rest = &rest[length + 2..];
    }
}

#[test]
fn who_asks_first_is_told_to_go_on_or_answered_at_once() {
    let world = Build::default().world();
    let mut wire = world.connect();
    wire.send(format!("{ECHO}expect: 100-continue\r\ncontent-length: 5\r\n\r\n"));
    assert_eq!(wire.head(), "HTTP/1.1 100 Continue\r\n\r\n");
    wire.send("hello");
    assert!(wire.head().starts_with("HTTP/1.1 200"));
    let mut wire = world.connect();
    wire.send("POST /bytes/1 HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n");
    assert!(wire.response().0.starts_with("HTTP/1.1 405"));
    assert!(wire.rest().is_empty(), "whether the body comes cannot be known");
}

#[test]
fn a_body_that_nobody_wants_is_read_within_limits_and_the_answer_arrives() {
    let world = Build::default().world();
    let mut wire = world.connect();
    wire.send("POST /bytes/1 HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n");
    wire.send(vec![b'x'; 100_000]);
    assert!(wire.response().0.starts_with("HTTP/1.1 405"));
    assert_eq!(wire.get("/bytes/3").1, octets(3), "the connection goes on");
    let mut wire = world.connect();
    wire.send("POST /bytes/1 HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n");
    while wire.try_send(&[b'x'; 10_000]) {}
    let mut wire = world.connect();
    wire.send("POST /bytes/1 HTTP/1.1\r\nhost: a\r\ncontent-length: 700000\r\n\r\n");
    wire.send(vec![b'x'; 700_000]);
    assert!(wire.response().0.starts_with("HTTP/1.1 405"), "the connection lingers");
    assert!(wire.rest().is_empty());
}

#[test]
fn whom_a_request_is_for_is_said_once() {
    let world = Build::default().world();
    let ask = |request: &str| {
        let mut wire = world.connect();
        wire.send(format!("{request}connection: close\r\n\r\n"));
        String::from_utf8(wire.rest()).unwrap()
    };
    let bad = |request: &str| assert!(ask(request).starts_with("HTTP/1.1 400"), "{request}");
    bad("GET /head HTTP/1.1\r\n");
    bad("GET /head HTTP/1.1\r\nhost: a\r\nhost: a\r\n");
    bad("GET http://a/head HTTP/1.1\r\nhost: b\r\n");
    bad("GET /head HTTP/1.1\r\nhost: a b\r\n");
    bad("GET ftp://a/head HTTP/1.1\r\nhost: a\r\n");
    let absolute = ask("GET http://a.example:80/head/?x HTTP/1.1\r\nhost: a.example:80\r\n");
    assert!(absolute.ends_with("GET http a.example:80 /head/?x HTTP/1.1"), "{absolute}");
    assert!(ask("GET /head HTTP/1.0\r\n").ends_with("GET http  /head HTTP/1.0"));
    assert!(ask("CONNECT a:443 HTTP/1.1\r\nhost: a:443\r\n").starts_with("HTTP/1.1 501"));
    assert!(ask("OPTIONS * HTTP/1.1\r\nhost: a\r\n").starts_with("HTTP/1.1 404"));
}

#[test]
fn what_is_no_http_is_refused() {
    let world = Build::default().world();
    for request in [
        "GET / HTTP/2.0\r\nhost: a\r\n\r\n",
        "GET\r\n\r\n",
        "\x16\x03\x01 is TLS\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nbad header\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n",
        "GET / HTTP/1.1\r\nhost : a\r\n\r\n",
    ] {
        let mut wire = world.connect();
        wire.send(request);
        let rest = wire.rest();
        assert!(rest.starts_with(b"HTTP/1.1 400"), "{request:?}: {}", String::from_utf8_lossy(&rest));
    }
    assert!(world.count("tcp_refused", "malformed") >= 7);
    world.serves();
}

#[test]
fn tls_is_of_1_2_or_1_3_and_responses_name_http3() {
    let world = Build::default().world();
    let mut wire = world.connect_tls(b"\x08http/1.1");
    let (head, body) = wire.get("/head");
    assert_eq!(body, b"GET https edge.test /head HTTP/1.1");
    assert!(head.contains("alt-svc: h3=\":443\"; ma=60\r\n"), "{head}");
    assert!(!world.connect().get("/head").0.contains("alt-svc"));
    assert_eq!(world.count("tcp_handshakes", "TLSv1.3"), 1);
}

#[test]
fn plain_http_is_sent_to_https() {
    let world = Build::default().world();
    let mut wire = connect(world.redirect);
    let (head, _) = wire.get("/a?b");
    assert!(
        head.starts_with("HTTP/1.1 308") && head.contains("location: https://edge.test/a?b\r\n"),
        "{head}"
    );
    wire.send("POST /a HTTP/1.1\r\nhost: edge.test:80\r\ncontent-length: 3\r\n\r\nabc");
    assert!(wire.response().0.contains("location: https://edge.test/a\r\n"));
    assert!(wire.get("/").0.starts_with("HTTP/1.1 308"));
}

#[test]
fn who_is_trusted_says_whom_it_speaks_for() {
    let trusting =
        |prefix: &str| Build { proxy: Some(vec![prefix.parse().unwrap()]), ..Build::default() }.world();
    let world = trusting("127.0.0.0/8");
    let mut wire = world.connect();
    wire.send("PROXY TCP4 192.0.2.9 198.51.100.1 1234 443\r\n");
    assert_eq!(wire.get("/remote").1, b"192.0.2.9:1234");
    let mut wire = world.connect();
    wire.send(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\xc6\x33\x64\x01\0\x50\x01\xbb");
    assert_eq!(wire.get("/remote").1, b"192.0.2.7:80");
    let mut wire = world.connect();
    wire.send("GET /remote HTTP/1.1\r\nhost: a\r\n\r\n");
    assert!(wire.rest().is_empty(), "who is trusted has to say it");
    world.wait_for("tcp_refused", "proxy", 1);
    let world = trusting("192.0.2.0/24");
    let mut wire = world.connect();
    let (_, body) = wire.get("/remote");
    assert!(body.starts_with(b"127.0.0.1:"));
    let mut wire = world.connect();
    wire.send("PROXY TCP4 192.0.2.9 198.51.100.1 1234 443\r\n\r\n");
    assert!(wire.rest().starts_with(b"HTTP/1.1 400"), "others' word is none");
}
