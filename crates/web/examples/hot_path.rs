//! Nanoseconds a request of the hot path, without a transport.
//!
//!     cargo run --release -p expressway-web --example hot_path

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use expressway_web::access_log::{AccessLog, AccessLogOptions, Format, Record, Target};
use expressway_web::files::{Encoding, FileOptions, FileStore, FilesConfig};
use expressway_web::{Handler, Notify, Protocol, RequestBody, RequestHead, Scheme, SiteConfig, Sites, Wake};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

const ROUNDS: u32 = 300_000;

struct Nobody;

impl Notify for Nobody {
    fn notify(&self, _token: u64) {}
}

fn request(target: &str, headers: &[(&'static str, &'static str)]) -> RequestHead {
    // What a browser sends; the handler sees it all.
    let mut map = HeaderMap::new();
    let browser = [
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/143.0.0.0 Safari/537.36"),
        ("accept", "*/*"),
        ("accept-encoding", "gzip, deflate, br, zstd"),
        ("referer", "https://edge.example/watch"),
    ];
    for (name, value) in browser.iter().chain(headers) {
        map.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    RequestHead {
        method: Method::GET,
        scheme: Scheme::Https,
        authority: "edge.example".to_owned(),
        target: target.to_owned(),
        headers: map,
        protocol: Protocol::H3,
        remote: SocketAddr::from(([192, 0, 2, 1], 443)),
        client_subject: None,
    }
}

/// One exchange to its end; the octets of its body.
fn serve(sites: &Sites, request: &RequestHead, wake: &Wake) -> u64 {
    let mut exchange = sites.start(request, RequestBody::empty(), wake.clone());
    loop {
        match exchange.poll_head() {
            Poll::Ready(head) => break drop(black_box(head)),
            Poll::Pending => std::thread::yield_now(),
        }
    }
    let mut total = 0;
    while exchange.remaining() != Some(0) {
        match exchange.poll_body(16 * 1024) {
            Poll::Ready(Some(Ok(chunk))) => total += black_box(chunk).len() as u64,
            Poll::Ready(_) => break,
            Poll::Pending => std::thread::yield_now(),
        }
    }
    total
}

/// The best of five runs, in nanoseconds a round.
fn measure(rounds: u32, mut round: impl FnMut()) -> f64 {
    (0..rounds / 10).for_each(|_| round());
    let run = |_| {
        let start = Instant::now();
        (0..rounds).for_each(|_| round());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds)
    };
    (0..5).map(run).fold(f64::INFINITY, f64::min)
}

fn sites(root: &std::path::Path, valid: Duration, precompressed: bool) -> Sites {
    let options = FileOptions { open_file_valid: valid, ..FileOptions::default() };
    let mut files = FilesConfig::new(root);
    if precompressed {
        files.precompressed = vec![Encoding::Brotli, Encoding::Gzip];
    }
    let config = SiteConfig::new(vec!["edge.example".to_owned()], files);
    Sites::new(&[config], &FileStore::new(options).expect("store")).expect("sites")
}

fn main() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let root = directory.path();
    for (name, size) in [("small.mp4", 1024), ("app.js", 1024), ("app.js.br", 512), ("large.mp4", 64 << 20)] {
        std::fs::write(root.join(name), vec![7; size]).expect("a file");
    }
    let wake = Wake::new(Arc::new(Nobody), 1);
    let cached = sites(root, Duration::from_secs(3600), true);
    let default = sites(root, FileOptions::default().open_file_valid, true);
    let uncached = sites(root, Duration::ZERO, false);
    let report = |name: &str, nanoseconds: f64| println!("{name:48} {nanoseconds:8.0} ns");
    let of = |sites: &Sites, request: &RequestHead| {
        measure(ROUNDS, || {
            black_box(serve(sites, request, &wake));
        })
    };
    report("1 KiB, open-file cache", of(&cached, &request("/small.mp4", &[])));
    report("1 KiB, open-file cache of 100 ms", of(&default, &request("/small.mp4", &[])));
    report("1 KiB, no open-file cache", of(&uncached, &request("/small.mp4", &[])));
    report("1 KiB precompressed, open-file cache", of(&cached, &request("/app.js", &[])));
    report(
        "range of 1 KiB, open-file cache",
        of(&cached, &request("/large.mp4", &[("range", "bytes=4096-5119")])),
    );
    let etag = sites_etag(&cached, &wake);
    let mut conditional = request("/small.mp4", &[]);
    conditional.headers.insert("if-none-match", etag);
    report("304, open-file cache", of(&cached, &conditional));
    report("404, no open-file cache", of(&uncached, &request("/missing", &[])));
    let large = request("/large.mp4", &[]);
    let nanoseconds = measure(20, || assert_eq!(serve(&cached, &large, &wake), 64 << 20));
    report("16 KiB chunk of a hot large file", nanoseconds / 4096.0);

    let log =
        AccessLog::open(AccessLogOptions::new(Target::File("/dev/null".into()), Format::Json)).expect("log");
    let ask = request("/small.mp4", &[]);
    let line = || {
        log.log(&Record {
            time: SystemTime::UNIX_EPOCH,
            duration: Duration::from_micros(50),
            remote: ask.remote,
            method: "GET",
            scheme: Scheme::Https,
            host: &ask.authority,
            target: &ask.target,
            protocol: Protocol::H3,
            status: 200,
            body_bytes: 1024,
            complete: true,
            range: "",
            referer: "https://edge.example/watch",
            user_agent: "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/143.0.0.0 Safari/537.36",
            tls_version: "TLSv1.3",
            tls_cipher: "TLS_AES_128_GCM_SHA256",
            client_subject: "",
            io_mode: "udp",
            cmcd: None,
            worker: 0,
            cache: "",
            upstream: "",
            upstream_status: 0,
            upstream_time: Duration::ZERO,
        });
    };
    // Fewer than the queue takes, so that every round is a line kept.
    let start = Instant::now();
    (0..4000).for_each(|_| line());
    report("access log line, caller's part", start.elapsed().as_secs_f64() * 1e9 / 4000.0);
}

fn sites_etag(sites: &Sites, wake: &Wake) -> HeaderValue {
    let mut exchange = sites.start(&request("/small.mp4", &[]), RequestBody::empty(), wake.clone());
    match exchange.poll_head() {
        Poll::Ready(head) => head.headers["etag"].clone(),
        Poll::Pending => panic!("the file is cached"),
    }
}
