//! What comes at a fan-out's doors.

/// Protocol and manner, as `fanout::handshake` reads them.
const TCP: u8 = 0;
const TLS: u8 = 1;
const WEBSOCKET: u8 = 2;
const SECURE: u8 = 3;
const FIXED: u8 = 4;
const REAL: u8 = 8;

pub(super) fn handshakes() -> Vec<(&'static str, Vec<u8>)> {
    let with = |how: u8, size: u8, words: &str| [&[how, size], words.as_bytes()].concat();
    let upgrade = |target: &str, more: &str| {
        format!(
            "GET {target} HTTP/1.1\r\nHost: feed.test:80\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
        )
    };
    vec![
        ("line", with(TCP, 255, "last:10\n")),
        ("line-cut", with(TCP, 1, "snapshot\r\n")),
        ("line-long", with(TCP, 8, &"x".repeat(100))),
        ("line-wrong", with(TCP, 255, "last:99999999999\n")),
        ("fixed", with(TCP | FIXED, 255, "ignored")),
        ("tls-real", with(TLS | REAL, 255, "next\n")),
        ("tls-cut", with(TLS | REAL, 1, "last:3\n")),
        ("tls-alert", with(TLS, 255, "\x15\x03\x01\0\x02\x02\x28")),
        ("tls-clear", with(TLS, 255, "GET / HTTP/1.1\r\n\r\n")),
        (
            "tls-hello",
            [
                &[TLS, 5],
                b"\x16\x03\x01\0\x30\x01\0\0\x2c\x03\x03".as_slice(),
                &[7; 32],
                b"\0\0\x02\x13\x01\x01\0\0\0",
            ]
            .concat(),
        ),
        (
            "tls-records",
            [
                &[TLS, 255],
                b"\x16\x03\x01\0\x04\x01\0\xff\xff".as_slice(),
                &b"\x16\x03\x01\0\x01x".repeat(100),
            ]
            .concat(),
        ),
        ("upgrade", with(WEBSOCKET, 255, &upgrade("/feed?start=last%3A5", ""))),
        ("upgrade-cut", with(WEBSOCKET, 1, &upgrade("/feed", ""))),
        ("upgrade-real", with(SECURE | REAL, 100, &upgrade("/feed", "Origin: https://feed.test:80\r\n"))),
        ("origin", with(WEBSOCKET, 255, &upgrade("/feed", "Origin: https://nobody.test\r\n"))),
        ("page", with(WEBSOCKET, 255, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")),
        ("page-linger", with(WEBSOCKET, 64, &format!("GET / HTTP/1.1\r\n\r\n{}", "more ".repeat(200)))),
        ("headers", with(WEBSOCKET, 255, &upgrade("/feed", &"a: b\r\n".repeat(60)))),
        ("headers-many", with(WEBSOCKET, 255, &format!("GET / HTTP/1.1\r\n{}", "a:\r\n".repeat(200)))),
        (
            "connection-list",
            with(
                WEBSOCKET,
                255,
                &format!("GET /feed HTTP/1.1\r\nUpgrade: {0}\r\nConnection: {0}\r\n\r\n", "a,".repeat(200)),
            ),
        ),
        ("query", with(WEBSOCKET, 255, &upgrade(&format!("/feed?{}", "start&".repeat(100)), ""))),
        ("escapes", with(WEBSOCKET, 255, &upgrade(&format!("/feed?start={}", "%3A".repeat(100)), ""))),
        ("newlines", with(WEBSOCKET, 1, &"\r\n".repeat(200))),
        ("no-end", with(WEBSOCKET, 20, &format!("GET /{}", "a".repeat(400)))),
    ]
}

/// Frames of a client: the size of pieces, then masked frames.
pub(super) fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let with = |size: u8, frames: &[u8]| [&[size], frames].concat();
    vec![
        ("ping", with(255, b"\x89\x82mask\x01\x02")),
        ("pings", with(255, &b"\x89\x80mask".repeat(50))),
        ("pings-long", with(3, &[b"\x89\xfdmask".as_slice(), &[1; 125]].concat().repeat(3))),
        ("close", with(1, b"\x88\x82mask\x6e\x89")),
        ("text-cut", with(1, b"\x01\x83maskabc\x00\x81maskd\x80\x80mask")),
        ("fragments", with(255, &[b"\x01\x80mask".as_slice(), &b"\x00\x80mask".repeat(60)].concat())),
        ("long", with(255, b"\x82\xff\0\0\0\0\0\x01\0\0maskxyz")),
        ("unmasked", with(255, b"\x89\x00")),
        ("control-long", with(255, b"\x89\xfe\x01\0mask")),
    ]
}
