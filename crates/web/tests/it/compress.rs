//! Compression as transports see it: files, other sources, and clients that do not read.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use bytes::Bytes;
use expressway_web::files::{FileOptions, FileStore, FilesConfig};
use expressway_web::memory::Account;
use expressway_web::{
    BodyError, CompressOptions, Exchange, Handler, RequestBody, RequestHead, ResponseHead, ResponseSource,
    SiteConfig, SiteContent, Sites, Wake,
};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use proptest::prelude::*;

use crate::common::{Client, request, settle, site};

fn decode(coding: &str, coded: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let read = match coding {
        "br" => brotli::Decompressor::new(coded, 4096).read_to_end(&mut plain),
        "zstd" => zstd::stream::read::Decoder::new(coded).unwrap().read_to_end(&mut plain),
        "gzip" => flate2::read::GzDecoder::new(coded).read_to_end(&mut plain),
        other => panic!("{other}"),
    };
    read.unwrap();
    plain
}

/// What a client has by now of a zstd stream that goes on.
fn decode_so_far(coded: &[u8]) -> Vec<u8> {
    let mut decoder = zstd::stream::read::Decoder::new(coded).unwrap();
    let (mut plain, mut octet) = (Vec::new(), [0]);
    while let Ok(1) = decoder.read(&mut octet) {
        plain.push(octet[0]);
    }
    plain
}

fn text(length: usize) -> Vec<u8> {
    let words = (0u32..).map(|i| format!("<p>{}</p> ", i.wrapping_mul(2_654_435_761) >> 20));
    words.flat_map(String::into_bytes).take(length).collect()
}

fn metric(store: &FileStore, name: &str) -> u64 {
    store.metrics().iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name}")).value
}

/// A site of files that compresses, with what counts in it.
struct Bed {
    root: tempfile::TempDir,
    store: Arc<FileStore>,
    sites: Sites,
}

impl Bed {
    fn new(options: FileOptions, files: &[(&str, Vec<u8>)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        for (name, octets) in files {
            std::fs::write(root.path().join(name), octets).unwrap();
        }
        let store = FileStore::new(options).unwrap();
        let compress = Some(CompressOptions::default());
        let config = SiteConfig { compress, ..site(FilesConfig::new(root.path())) };
        let sites = Sites::new(&[config], &store).unwrap();
        Self { root, store, sites }
    }

    fn start(&self, method: &str, target: &str, fields: &[(&str, &str)]) -> Client {
        Client::start(&self.sites, &request(method, "a", target, fields))
    }

    fn fetch(&self, target: &str, fields: &[(&str, &str)]) -> (ResponseHead, Vec<u8>) {
        let mut client = self.start("GET", target, fields);
        let head = client.head();
        (head, client.body(1000).unwrap())
    }
}

fn field<'a>(head: &'a ResponseHead, name: &str) -> &'a str {
    head.headers.get(name).map_or("", |value| value.to_str().unwrap())
}

#[test]
fn a_file_is_compressed_once_for_all() {
    let plain = text(300_000);
    let bed = Bed::new(FileOptions::default(), &[("a.html", plain.clone()), ("b.mp4", plain.clone())]);
    settle();
    for coding in ["zstd", "br", "gzip"] {
        let before = metric(&bed.store, "files_compressed");
        for _ in 0..3 {
            let (head, body) = bed.fetch("/a.html", &[("accept-encoding", coding)]);
            assert_eq!((field(&head, "content-encoding"), field(&head, "vary")), (coding, "Accept-Encoding"));
            assert_eq!(field(&head, "content-length"), body.len().to_string());
            assert!(field(&head, "etag").starts_with("W/\"") && !head.headers.contains_key("accept-ranges"));
            assert!(body.len() < plain.len() / 2 && decode(coding, &body) == plain);
        }
        assert_eq!(metric(&bed.store, "files_compressed"), before + 1, "{coding}");
    }
    let (head, body) = bed.fetch("/a.html", &[]);
    assert!(
        body == plain && field(&head, "vary") == "Accept-Encoding" && !field(&head, "etag").starts_with("W/")
    );
    let (head, body) = bed.fetch("/b.mp4", &[("accept-encoding", "br")]);
    assert!(body == plain && !head.headers.contains_key(VARY));
    assert_eq!(metric(&bed.store, "compressor_bytes"), 0);
    // Another version is compressed anew.
    std::fs::write(bed.root.path().join("a.html"), text(5000)).unwrap();
    std::thread::sleep(FileOptions::default().open_file_valid * 2);
    let (_, body) = bed.fetch("/a.html", &[("accept-encoding", "br")]);
    assert!(decode("br", &body) == text(5000));
}

#[test]
fn ranges_conditions_and_heads() {
    let bed = Bed::new(FileOptions::default(), &[("a.html", text(300_000)), ("small.html", text(1023))]);
    settle();
    let takes = ("accept-encoding", "gzip");
    let (head, body) = bed.fetch("/a.html", &[takes, ("range", "bytes=5-2004")]);
    assert_eq!((head.status.as_u16(), body), (206, text(2005).split_off(5)));
    assert!(!head.headers.contains_key(CONTENT_ENCODING));
    let (head, _) = bed.fetch("/small.html", &[takes]);
    assert!(!head.headers.contains_key(CONTENT_ENCODING));

    let (get, _) = bed.fetch("/a.html", &[takes]);
    let mut client = bed.start("HEAD", "/a.html", &[takes]);
    let head = client.head();
    assert_eq!((head.body_length, &head.headers[ETAG]), (Some(0), &get.headers[ETAG]));
    assert!(head.headers[CONTENT_ENCODING] == "gzip" && !head.headers.contains_key(CONTENT_LENGTH));
    assert_eq!(client.body(1000).unwrap(), b"");

    let etag = field(&get, "etag").to_owned();
    let (head, _) = bed.fetch("/a.html", &[takes, ("if-none-match", &etag)]);
    assert_eq!(
        (head.status.as_u16(), field(&head, "etag"), field(&head, "vary")),
        (304, &*etag, "Accept-Encoding")
    );
    let (head, _) = bed.fetch("/a.html", &[takes, ("range", "bytes=0-9"), ("if-range", &etag)]);
    assert_eq!(
        (head.status.as_u16(), field(&head, "content-encoding")),
        (200, "gzip"),
        "a part of the plain one is of no use"
    );
}

#[test]
fn a_long_file_is_compressed_as_it_is_read() {
    let plain = text(3_000_000);
    // Nothing is kept, so that what becomes of the file shows.
    let options = FileOptions { cache_bytes: 0, ..FileOptions::default() };
    let bed = Bed::new(options, &[("a.txt", plain.clone())]);
    for coding in ["zstd", "br", "gzip"] {
        let mut client = bed.start("GET", "/a.txt", &[("accept-encoding", coding)]);
        let head = client.head();
        assert_eq!((head.body_length, head.headers.contains_key(CONTENT_LENGTH)), (None, false));
        assert!(metric(&bed.store, "compressor_bytes") > 0);
        let body = client.body(100_000).unwrap();
        assert!(body.len() < plain.len() / 2 && decode(coding, &body) == plain);
        assert_eq!(metric(&bed.store, "compressor_bytes"), 0, "it is not kept until the client is gone");
    }
    // A file that shrinks is not passed off as complete.
    let mut client = bed.start("GET", "/a.txt", &[("accept-encoding", "br")]);
    client.head();
    client.chunk(1000).unwrap().unwrap();
    std::fs::write(bed.root.path().join("a.txt"), b"short").unwrap();
    assert!(matches!(client.body(1 << 20), Err(BodyError::Changed)));
}

#[test]
fn clients_that_do_not_read_hold_little_and_others_get_what_there_is() {
    let plain = text(3_000_000);
    let small = text(100_000);
    let memory_bytes = 64 << 20;
    let options = FileOptions { memory_bytes, ..FileOptions::default() };
    let bed = Bed::new(options, &[("a.txt", plain.clone()), ("b.txt", small.clone())]);
    let ledger = bed.store.memory().ledger();
    let mut idle = Vec::new();
    for number in 0..60 {
        let account = Account::new(&ledger, 1 << 20, 4 << 20);
        // Ten connections of many requests each, and fifty of one.
        for _ in 0..if number < 10 { 10 } else { 1 } {
            let mut client = bed.start("GET", "/a.txt", &[("accept-encoding", "br, gzip")]);
            client.exchange.charge_to(&account);
            let head = client.head();
            client.chunk(1000).unwrap().unwrap();
            idle.push((client, head.headers.contains_key(CONTENT_ENCODING)));
        }
        let taken = metric(&bed.store, "compressor_bytes");
        assert!(taken > 0 && taken <= memory_bytes / 8, "{taken}");
    }
    let compressed = idle.iter().filter(|(_, is_compressed)| *is_compressed).count();
    assert!((1..20).contains(&compressed), "{compressed}");
    assert!(metric(&bed.store, "compressions_refused") >= 130);
    let (head, body) = bed.fetch("/a.txt", &[("accept-encoding", "br")]);
    assert!(!head.headers.contains_key(CONTENT_ENCODING) && body == plain);
    assert!(!field(&head, "etag").is_empty() && field(&head, "vary") == "Accept-Encoding");
    let (_, body) = bed.fetch("/b.txt", &[("accept-encoding", "br")]);
    assert!(decode("br", &body) == small, "files that are compressed whole need no place");
    // Those who read on get all of it.
    let (client, _) = idle.iter_mut().find(|(_, is_compressed)| *is_compressed).unwrap();
    client.exchange.release();
    client.body(1 << 20).unwrap();
    drop(idle);
    assert_eq!(metric(&bed.store, "compressor_bytes"), 0);
    let (head, _) = bed.fetch("/a.txt", &[("accept-encoding", "br")]);
    assert!(head.headers.contains_key(CONTENT_ENCODING));
}

#[test]
fn what_was_let_go_of_goes_on_where_it_was() {
    let plain = text(900_000);
    let options = FileOptions { cache_bytes: 0, ..FileOptions::default() };
    let bed = Bed::new(options, &[("a.txt", plain.clone())]);
    let account = Account::new(&bed.store.memory().ledger(), 1 << 20, 4 << 20);
    let mut client = bed.start("GET", "/a.txt", &[("accept-encoding", "zstd")]);
    client.exchange.charge_to(&account);
    client.head();
    let mut body = client.chunk(5000).unwrap().unwrap().to_vec();
    client.exchange.release();
    assert_eq!(account.used(), 0, "the chunk is copied and gone, the block let go of");
    body.extend(client.body(5000).unwrap());
    assert!(decode("zstd", &body) == plain);
    assert_eq!(metric(&bed.store, "files_compressed"), 2);
}

#[test]
fn a_client_that_may_hold_little_gets_the_file_as_it_is() {
    let plain = text(900_000);
    let bed = Bed::new(FileOptions::default(), &[("a.txt", plain.clone())]);
    let account = Account::new(&bed.store.memory().ledger(), 16 << 10, 64 << 10);
    let mut client = bed.start("GET", "/a.txt", &[("accept-encoding", "zstd")]);
    client.exchange.charge_to(&account);
    let head = client.head();
    assert_eq!(head.body_length, Some(plain.len() as u64));
    assert!(client.body(10_000).unwrap() == plain);
}

/// What an origin does next.
#[derive(Debug, Clone)]
enum Step {
    Octets(Vec<u8>),
    /// Nothing is there yet.
    Wait,
    /// Nothing comes until it is asked again after this.
    Stop,
    Fail,
}

struct Script {
    steps: VecDeque<Step>,
    head: Option<ResponseHead>,
    trailers: Option<HeaderMap>,
    wake: Wake,
}

impl ResponseSource for Script {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        self.head.take().map_or(Poll::Pending, Poll::Ready)
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        match self.steps.front_mut() {
            None => Poll::Ready(None),
            Some(Step::Octets(octets)) => {
                let rest = octets.split_off(octets.len().min(max));
                let chunk = std::mem::replace(octets, rest);
                if octets.is_empty() {
                    self.steps.pop_front();
                }
                Poll::Ready(Some(Ok(chunk.into())))
            }
            Some(Step::Wait) => {
                self.steps.pop_front();
                self.wake.wake();
                Poll::Pending
            }
            Some(Step::Stop) => Poll::Pending,
            Some(Step::Fail) => Poll::Ready(Some(Err(BodyError::Origin("it ended")))),
        }
    }

    fn remaining(&self) -> Option<u64> {
        (self.steps.is_empty() && self.trailers.is_none()).then_some(0)
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }
}

struct Origin(Mutex<Vec<Step>>, Option<HeaderMap>);

impl Handler for Origin {
    fn start(&self, _request: &RequestHead, _body: RequestBody, wake: Wake) -> Exchange {
        let headers = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (ETAG, HeaderValue::from_static("\"v1\"")),
        ]);
        let head = Some(ResponseHead { status: StatusCode::OK, headers, body_length: None });
        let steps = self.0.lock().unwrap().clone().into();
        Exchange::new(Box::new(Script { steps, head, trailers: self.1.clone(), wake }))
    }
}

fn origin(steps: Vec<Step>, trailers: Option<HeaderMap>) -> Sites {
    let store = FileStore::new(FileOptions { reader_threads: 1, ..FileOptions::default() }).unwrap();
    let content = SiteContent::Other(Arc::new(Origin(Mutex::new(steps), trailers)));
    let config =
        SiteConfig { compress: Some(CompressOptions::default()), ..SiteConfig::new(Vec::new(), content) };
    Sites::new(&[config], &store).unwrap()
}

#[test]
fn what_an_origin_sends_is_there_while_it_waits() {
    let sites = origin(vec![Step::Octets(b"{\"a\":1}".to_vec()), Step::Stop], None);
    let mut client = Client::start(&sites, &request("GET", "a", "/", &[("accept-encoding", "zstd")]));
    assert_eq!(client.head().headers[CONTENT_ENCODING], "zstd");
    let mut coded = Vec::new();
    while decode_so_far(&coded) != b"{\"a\":1}" {
        coded.extend(client.chunk(1000).unwrap().unwrap());
    }
    assert!(client.exchange.poll_body(1000).is_pending());
}

#[test]
fn failures_and_trailers_pass() {
    let sites = origin(vec![Step::Octets(text(100_000)), Step::Fail], None);
    let mut client = Client::start(&sites, &request("GET", "a", "/", &[("accept-encoding", "br")]));
    client.head();
    assert_eq!(client.body(1 << 16), Err(BodyError::Origin("it ended")));
    let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("1"))]);
    let sites = origin(vec![Step::Octets(text(5000))], Some(trailers.clone()));
    let mut client = Client::start(&sites, &request("GET", "a", "/", &[("accept-encoding", "br")]));
    client.head();
    let mut body = Vec::new();
    while let Some(chunk) = client.chunk(1000) {
        body.extend(chunk.unwrap());
    }
    assert_eq!((decode("br", &body), client.exchange.remaining()), (text(5000), None));
    assert_eq!(client.exchange.take_trailers(), Some(trailers));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_the_chunks_the_body_is_the_same(
        steps in prop::collection::vec(prop_oneof![
            (1usize..70_000, any::<u8>()).prop_map(|(length, seed)| {
                let mut octets = text(length);
                octets[0] = seed;
                Step::Octets(octets)
            }),
            prop::collection::vec(any::<u8>(), 1..500).prop_map(Step::Octets),
            Just(Step::Wait),
        ], 0..12),
        max in 1usize..100_000,
        coding in prop_oneof![Just("zstd"), Just("br"), Just("gzip")],
    ) {
        let octets = |step: &Step| if let Step::Octets(octets) = step { octets.clone() } else { Vec::new() };
        let plain: Vec<u8> = steps.iter().flat_map(octets).collect();
        let sites = origin(steps, None);
        let mut client = Client::start(&sites, &request("GET", "a", "/", &[("accept-encoding", coding)]));
        let head = client.head();
        prop_assert_eq!(&head.headers[CONTENT_ENCODING], coding);
        prop_assert_eq!(&head.headers[ETAG], "W/\"v1\"");
        let body = client.body(max).unwrap();
        prop_assert!(decode(coding, &body) == plain);
    }
}
