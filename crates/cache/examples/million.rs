//! What many small objects cost: memory, a restart, and a lookup.
//!
//! `cargo run --release -p expressway-cache --example million -- FOLDER|memory [OBJECTS]`: with a disk store in FOLDER, which
//! needs 2 GB for a million, and little memory; or with all of them in memory, which needs 3 GB.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::Instant;

use bytes::Bytes;
use expressway_cache::{Cache, CacheOptions, CachedSite, SiteOptions};
use expressway_web::files::{FileOptions, FileStore};
use expressway_web::{Exchange, Handler, Notify, Protocol, RequestBody, RequestHead, Scheme, Wake};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

/// Octets an object.
const OBJECT: usize = 1024;

/// Answers everything with an object.
struct Origin;

impl Handler for Origin {
    fn start(&self, request: &RequestHead, _body: RequestBody, _wake: Wake) -> Exchange {
        let mut headers = HeaderMap::new();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=86400"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::ETAG, HeaderValue::from_static("\"1\""));
        Exchange::fixed(&request.method, StatusCode::OK, headers, Bytes::from(vec![7; OBJECT]))
    }
}

#[derive(Default)]
struct Bell(Mutex<bool>, Condvar);

impl Notify for Bell {
    fn notify(&self, _token: u64) {
        if let Ok(mut rung) = self.0.lock() {
            *rung = true;
        }
        self.1.notify_all();
    }
}

fn get(site: &CachedSite, bell: &Arc<Bell>, number: usize) -> usize {
    let request = RequestHead {
        method: Method::GET,
        scheme: Scheme::Https,
        authority: "edge.example".to_owned(),
        target: format!("/objects/{number:08}.bin"),
        headers: HeaderMap::new(),
        protocol: Protocol::H3,
        remote: ([127, 0, 0, 1], 1).into(),
        client_subject: None,
    };
    let wake = Wake::new(Arc::clone(bell) as Arc<dyn Notify>, 0);
    let mut exchange = site.start(&request, RequestBody::empty(), wake);
    let wait = || {
        if let Ok(rung) = bell.0.lock()
            && let Ok(mut rung) = bell.1.wait_while(rung, |rung| !*rung)
        {
            *rung = false;
        }
    };
    while exchange.poll_head().is_pending() {
        wait();
    }
    let mut octets = 0;
    loop {
        match exchange.poll_body(usize::MAX) {
            Poll::Pending => wait(),
            Poll::Ready(Some(Ok(chunk))) => octets += chunk.len(),
            Poll::Ready(Some(Err(_)) | None) => return octets,
        }
    }
}

/// Numbers below `most` in an order that nothing can be guessed from (xorshift).
fn at_random(most: usize) -> impl FnMut() -> usize {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % most.max(1) as u64) as usize
    }
}

/// Resident memory of the process in octets.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("give a folder, or memory")?;
    let objects: usize = arguments.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let disk = (folder != "memory").then(|| PathBuf::from(folder));
    // Blocks and heads of all of them, or of one in a hundred.
    let cache_bytes = if disk.is_some() { 16 << 20 } else { (objects * 2 * OBJECT) as u64 };
    let heads = if disk.is_some() { 16 << 20 } else { objects * 2048 };
    let store = FileStore::new(FileOptions { cache_bytes, ..FileOptions::default() })?;
    let rounds = if disk.is_some() { &["first start", "restart"][..] } else { &["first start"] };
    let options = CacheOptions {
        slice: 0,
        disk_size: (objects as u64 * 4096).max(1 << 28),
        disk,
        heads,
        ..CacheOptions::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    let bell = Arc::new(Bell::default());
    let report = |what: &str, started: Instant, count: usize| {
        let each = started.elapsed().as_nanos() / count.max(1) as u128;
        println!("{what}: {:?}, {each} ns each; resident {} MiB", started.elapsed(), resident() >> 20);
    };
    for round in rounds {
        let before = resident();
        let started = Instant::now();
        let cache = Cache::open(options.clone(), &store, handle.clone())?;
        report(round, started, objects);
        println!("  {} bytes of memory an object", resident().saturating_sub(before) / objects);
        let site = cache.site(SiteOptions::default(), Arc::new(Origin));
        let started = Instant::now();
        for number in 0..objects {
            assert_eq!(get(&site, &bell, number), OBJECT);
        }
        cache.flush();
        report("each once", started, objects);
        println!("  {} bytes of memory an object", resident().saturating_sub(before) / objects);
        let started = Instant::now();
        for _ in 0..objects {
            assert_eq!(get(&site, &bell, objects - 1), OBJECT);
        }
        report("one of them, again and again", started, objects);
        let mut next = at_random(objects);
        let started = Instant::now();
        for _ in 0..objects {
            assert_eq!(get(&site, &bell, next()), OBJECT);
        }
        report("any of them, at random", started, objects);
        let mut values = std::collections::BTreeMap::new();
        for metric in cache.metrics().into_iter().chain(store.metrics()) {
            values.insert(metric.name, metric.value);
        }
        for name in [
            "cache_hits",
            "cache_misses",
            "cache_heads",
            "cache_head_bytes",
            "block_cache_bytes",
            "cache_disk_entries",
            "cache_disk_reads",
            "cache_disk_queue_full",
        ] {
            if let Some(value) = values.get(name) {
                println!("  {name} {value}");
            }
        }
    }
    Ok(())
}
