//! Tests of handshakes over a pair of sockets: slow, long, and split at any byte.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

use boring::ssl::{SslConnector, SslMethod, SslStream, SslVerifyMode};
use expressway_tls::Identity;

use super::*;
use crate::fanout::TlsIdentity;

const REQUEST: &str = "GET /feed HTTP/1.1\r\nHost: feed.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

fn rules(start: StartPolicy) -> Rules {
    let (key, parameters) =
        (rcgen::KeyPair::generate().unwrap(), rcgen::CertificateParams::new(vec!["feed.test".to_owned()]));
    let certificate = parameters.unwrap().self_signed(&key).unwrap().pem();
    let (key, path) = (key.serialize_pem(), Path::new("test.pem"));
    let identity = Identity::from_pem(certificate.as_bytes(), key.as_bytes(), path, path).unwrap();
    let tls = Some(TlsIdentity::of(&identity).unwrap().context().clone());
    Rules { start, origins: Vec::new(), tls, request: 8192 }
}

fn begin(protocol: Protocol, rules: &Rules) -> (Handshake, UnixStream) {
    let (server, client) = UnixStream::pair().unwrap();
    (Handshake::new(protocol, Arc::new(server.into()), rules).unwrap(), client)
}

/// Goes on, as an acceptor would, until the handshake is over.
fn finish(handshake: &mut Handshake, rules: &Rules) -> Progress {
    loop {
        match handshake.advance(rules) {
            Progress::Waiting | Progress::TurnOver => std::thread::yield_now(),
            progress => return progress,
        }
    }
}

/// Cuts every record of a client's first flight into records of one byte, which TLS permits (RFC 8446, section 5.1).
#[derive(Debug)]
struct Shredder {
    stream: UnixStream,
    shreds: bool,
}

impl Read for Shredder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.shreds = false;
        self.stream.read(buffer)
    }
}

impl Write for Shredder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.shreds {
            return self.stream.write(bytes);
        }
        let (header, hello) = bytes.split_at(5);
        assert_eq!(usize::from(u16::from_be_bytes([header[3], header[4]])), hello.len(), "one record");
        self.stream.write_all(&shredded(&header[..3], hello))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn shredded(kind: &[u8], content: &[u8]) -> Vec<u8> {
    content.iter().flat_map(|byte| [kind, &[0, 1, *byte]].concat()).collect()
}

/// A client that connects on a thread of its own and then does what it is given to do.
fn client<T: Send + 'static>(
    stream: UnixStream,
    shreds: bool,
    work: impl FnOnce(SslStream<Shredder>) -> T + Send + 'static,
) -> JoinHandle<T> {
    std::thread::spawn(move || {
        let mut connector = SslConnector::builder(SslMethod::tls()).unwrap();
        connector.set_verify(SslVerifyMode::NONE);
        work(connector.build().connect("feed.test", Shredder { stream, shreds }).unwrap())
    })
}

#[test]
fn a_hello_in_records_of_one_byte_is_read_a_buffer_at_a_time() {
    let rules = rules(StartPolicy::Fixed(Start::Next));
    let (mut handshake, stream) = begin(Protocol::Tls, &rules);
    let client = client(stream, true, drop);
    let Progress::Subscribe(ready) = finish(&mut handshake, &rules) else { panic!("refused") };
    let received = ready.transport.wire_received().unwrap();
    assert!(received > 6 * 200, "{received} bytes: no record was cut up");
    client.join().unwrap();
}

#[test]
fn a_turn_reads_a_part_of_the_longest_hello() {
    let rules = rules(StartPolicy::Fixed(Start::Next));
    let (mut handshake, mut stream) = begin(Protocol::Tls, &rules);
    // A ClientHello of 16 KiB less one, of which nothing makes sense.
    let hello = [&[1, 0, 0x3f, 0xff, 3, 3][..], &[0; 16_381]].concat();
    let writer = std::thread::spawn(move || {
        let _ = stream.write_all(&shredded(&[22, 3, 1], &hello));
        stream
    });
    let (mut before, mut turns) = (0, 0);
    let failure = loop {
        let progress = handshake.advance(&rules);
        if let State::Tls(stream) = &handshake.state {
            let received = stream.get_ref().received();
            assert!(received - before <= 16 << 10, "{} bytes in a turn", received - before);
            before = received;
        }
        match progress {
            Progress::Waiting | Progress::TurnOver => turns += 1,
            Progress::Failed(failure) => break failure,
            _ => panic!("accepted"),
        }
    };
    assert_eq!(failure, Failure::Handshake);
    assert!(turns >= 5 && before <= max_wire(&rules), "{turns} turns, {before} bytes");
    writer.join().unwrap();
}

#[test]
fn a_request_in_records_of_one_byte_ends_at_the_limit_of_bytes() {
    let rules = rules(StartPolicy::Fixed(Start::Next));
    let (mut handshake, stream) = begin(Protocol::SecureWebSocket, &rules);
    let client = client(stream, false, |mut stream| {
        let request = format!("{REQUEST}Cookie: {}\r\n\r\n", "a".repeat(7000));
        // Each byte is a record of 23: as much as twenty requests.
        while request.bytes().all(|byte| stream.write_all(&[byte]).is_ok()) {}
    });
    let progress = finish(&mut handshake, &rules);
    assert!(matches!(progress, Progress::Failed(Failure::Size)));
    drop(handshake);
    client.join().unwrap();
}

#[test]
fn a_request_is_taken_however_it_is_cut_and_one_that_is_too_long_is_told_so() {
    let rules = rules(StartPolicy::Fixed(Start::Next));
    for size in [1, 5, 4000] {
        let (mut handshake, mut stream) = begin(Protocol::WebSocket, &rules);
        let request = format!("{REQUEST}\r\nbehind");
        for (number, piece) in request.as_bytes().chunks(size).enumerate() {
            stream.write_all(piece).unwrap();
            match handshake.advance(&rules) {
                Progress::Waiting => {}
                Progress::Subscribe(ready) => {
                    assert!(request.as_bytes()[REQUEST.len() + 2..].starts_with(&ready.input));
                    assert!((number + 1) * size >= REQUEST.len() + 2);
                    break;
                }
                _ => panic!("refused"),
            }
        }
        assert!(matches!(handshake.state, State::Done), "never done in pieces of {size}");
    }
    let (mut handshake, mut stream) = begin(Protocol::WebSocket, &rules);
    stream.write_all(format!("{REQUEST}Cookie: {}", "a".repeat(9000)).as_bytes()).unwrap();
    assert!(matches!(finish(&mut handshake, &rules), Progress::Failed(Failure::Size)));
    drop(handshake);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[test]
fn who_sends_on_behind_a_page_is_cut_off() {
    let rules = rules(StartPolicy::Fixed(Start::Next));
    let (mut handshake, mut stream) = begin(Protocol::WebSocket, &rules);
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(matches!(handshake.advance(&rules), Progress::Served));
    stream.set_nonblocking(true).unwrap();
    let (mut sent, block) = (0, [0; 4096]);
    loop {
        sent += stream.write(&block).unwrap_or(0);
        match handshake.advance(&rules) {
            Progress::Served => assert!(sent < 2 * MAX_DISCARDED, "{sent} bytes discarded"),
            Progress::Failed(Failure::Gone) => break,
            _ => panic!("neither served nor gone"),
        }
    }
}

#[test]
fn a_line_without_end_is_refused() {
    let rules = rules(StartPolicy::Ask);
    let (mut handshake, mut stream) = begin(Protocol::Tcp, &rules);
    stream.write_all(&[b'n'; 63]).unwrap();
    assert!(matches!(handshake.advance(&rules), Progress::Waiting));
    stream.write_all(b"n").unwrap();
    assert!(matches!(handshake.advance(&rules), Progress::Failed(Failure::Handshake)));
}
