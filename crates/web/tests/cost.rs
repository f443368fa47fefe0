//! What a request costs, whatever is in it: octets read, allocations and pieces are counted, never time.

mod common;
#[path = "../../netio/tests/counting_allocator/mod.rs"]
mod counting_allocator;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{Client, pattern, request, settle, site};
use counting_allocator::{allocated_octets, allocations};
use expressway_web::files::{Encoding, FileOptions, FileStore, FilesConfig};
use expressway_web::{RequestHead, SiteConfig, Sites};

const BLOCK: usize = 4096;
const RANGES: usize = 200;

fn metric(store: &FileStore, name: &str) -> u64 {
    store.metrics().iter().find(|metric| metric.name == name).expect(name).value
}

fn pieces_read(store: &FileStore) -> u64 {
    metric(store, "piece_reads_now") + metric(store, "piece_reads_pooled")
}

fn serve(root: &Path, options: FileOptions) -> (Sites, Arc<FileStore>) {
    let store = FileStore::new(options).unwrap();
    let mut files = FilesConfig::new(root);
    files.precompressed = vec![Encoding::Gzip];
    (Sites::new(&[site(files)], &store).unwrap(), store)
}

fn uncached() -> FileOptions {
    FileOptions { block_bytes: BLOCK, cache_bytes: 0, readahead_blocks: 0, ..FileOptions::default() }
}

/// A range of so many octets in each of 200 blocks.
fn ranges(length: usize) -> String {
    let specs: Vec<_> = (0..RANGES).map(|i| format!("{0}-{1}", i * BLOCK, i * BLOCK + length - 1)).collect();
    format!("bytes={}", specs.join(","))
}

#[test]
fn a_small_range_reads_what_it_asks_for_and_no_block() {
    let directory = tempfile::tempdir().unwrap();
    let content = pattern(RANGES * BLOCK);
    std::fs::write(directory.path().join("a"), &content).unwrap();
    for try_on_worker in [true, false] {
        for length in [1, 100, BLOCK / 16 - 1] {
            let options = FileOptions { try_on_worker, ..uncached() };
            let (sites, store) = serve(directory.path(), options);
            let ask = request("GET", "", "/a", &[("range", &ranges(length))]);
            let mut client = Client::start(&sites, &ask);
            let head = client.head();
            assert_eq!(head.status, 206);
            let (mut body, mut polls, mut read) = (Vec::new(), 0, 0);
            while let Some(chunk) = client.chunk(1 << 16) {
                let chunk = chunk.unwrap();
                assert!(chunk.len() <= 16 * 512, "a poll gathers no more than so many pieces");
                body.extend_from_slice(&chunk);
                let now = pieces_read(&store);
                assert!(now - read <= 16, "a poll reads no more often than that");
                (read, polls) = (now, polls + 1);
            }
            assert_eq!(head.body_length, Some(body.len() as u64));
            for at in (0..RANGES).map(|i| i * BLOCK) {
                let text = format!("Content-Range: bytes {at}-{}/{}\r\n\r\n", at + length - 1, content.len());
                let found = body.windows(text.len()).position(|window| window == text.as_bytes());
                let start = found.expect("the part is there") + text.len();
                assert!(body[start..start + length] == content[at..at + length]);
            }
            assert_eq!(metric(&store, "block_read_bytes"), (RANGES * length) as u64);
            assert_eq!(read, RANGES as u64);
            assert!(!try_on_worker || polls <= 2 * RANGES / 16 + 2, "{polls} polls");
        }
    }
}

#[test]
fn a_small_range_comes_from_its_block_where_that_is_cached() {
    let directory = tempfile::tempdir().unwrap();
    let content = pattern(3 * BLOCK);
    std::fs::write(directory.path().join("a"), &content).unwrap();
    settle();
    let (sites, store) = serve(directory.path(), FileOptions { cache_bytes: 1 << 20, ..uncached() });
    common::fetch(&sites, &common::get("/a"));
    let ask = request("GET", "", "/a", &[("range", "bytes=5000-5009")]);
    assert_eq!(common::fetch(&sites, &ask).1, content[5000..5010]);
    assert_eq!(pieces_read(&store), 0);
}

#[test]
fn parts_taken_in_pieces_are_whole() {
    let directory = tempfile::tempdir().unwrap();
    let content = pattern(RANGES * BLOCK);
    std::fs::write(directory.path().join("a"), &content).unwrap();
    // Small, across the end of a block, large, and from near the end of one block through the next ones.
    let spans = [(0, 10), (BLOCK - 5, BLOCK + 5), (BLOCK, 5 * BLOCK), (9 * BLOCK - 7, 12 * BLOCK + 3)];
    let specs: Vec<_> = spans.iter().map(|(start, end)| format!("{start}-{}", end - 1)).collect();
    for try_on_worker in [true, false] {
        for max in [1, 7, 100, 1350, 1 << 20] {
            let (sites, _store) = serve(directory.path(), FileOptions { try_on_worker, ..uncached() });
            let ask = request("GET", "", "/a", &[("range", &format!("bytes={}", specs.join(",")))]);
            let mut client = Client::start(&sites, &ask);
            let length = client.head().body_length.unwrap();
            let mut body = Vec::new();
            while let Some(chunk) = client.chunk(max) {
                let chunk = chunk.unwrap();
                assert!((1..=max).contains(&chunk.len()));
                body.extend_from_slice(&chunk);
                assert_eq!(client.exchange.remaining(), Some(length - body.len() as u64));
                if body.len() % 3 == 0 {
                    client.exchange.release();
                }
            }
            for (start, end) in spans {
                assert!(body.windows(end - start).any(|window| window == &content[start..end]));
            }
        }
    }
}

/// Allocations and octets of starting a request whose path has been looked up, and polling its head.
fn cost(sites: &Sites, ask: &RequestHead) -> (u64, u64) {
    Client::start(sites, ask).head();
    let before = (allocations(), allocated_octets());
    Client::start(sites, ask).head();
    (allocations() - before.0, allocated_octets() - before.1)
}

fn cached(root: &Path) -> Sites {
    settle();
    let options = FileOptions { open_file_valid: Duration::from_secs(3600), ..FileOptions::default() };
    serve(root, options).0
}

#[test]
fn many_ranges_cost_their_list_until_they_are_sent() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), pattern(RANGES * BLOCK)).unwrap();
    let sites = cached(directory.path());
    let one = cost(&sites, &request("GET", "", "/a", &[("range", "bytes=5-9,20-30")]));
    let many = cost(&sites, &request("GET", "", "/a", &[("range", &ranges(1))]));
    assert!(many.0 <= one.0 + 10, "{many:?} allocations and octets, {one:?} for two ranges");
    assert!(
        many.1 <= one.1 + 3 * 16 * RANGES as u64,
        "{many:?} allocations and octets, {one:?} for two ranges"
    );
}

/// No field makes the start of a request allocate more than the plain one, whatever a client repeats in it.
#[test]
fn fields_of_any_content_cost_no_memory() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), pattern(BLOCK)).unwrap();
    std::fs::write(directory.path().join("a.gz"), pattern(BLOCK / 2)).unwrap();
    let sites = cached(directory.path());
    let plain = cost(&sites, &request("GET", "", "/a", &[]));
    for name in ["if-match", "if-none-match", "if-range", "if-modified-since", "accept-encoding", "cookie"] {
        for member in ["a,", "\"a\",", "\"", ",", " ;", "W/\"", "*,", "gzip;q=1,", "9"] {
            let value = member.repeat((32 << 10) / member.len()).trim().to_owned();
            let cost = cost(&sites, &request("GET", "", "/a", &[(name, &value)]));
            assert!(
                cost.0 <= plain.0 + 16 && cost.1 <= plain.1 + 4096,
                "{name}: {member}: {cost:?}, plain {plain:?}"
            );
        }
    }
}

/// A target and an authority may be copied a few times, and no more.
#[test]
fn what_a_target_or_authority_costs_is_in_proportion_to_it() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("a")).unwrap();
    let hosts = vec!["*.example".to_owned()];
    let config = SiteConfig::new(hosts, FilesConfig::new(directory.path()));
    let sites = Sites::new(&[config], &FileStore::new(FileOptions::default()).unwrap()).unwrap();
    for piece in ["/a", "/../a", "/a/..", "/", "/.", "%2f", "%2e", "%61", "?", "/a?"] {
        let target = format!("/{}", piece.repeat(8000 / piece.len()));
        let (allocations, octets) = cost(&sites, &request("GET", "", &target, &[]));
        assert!(
            allocations <= 64 && octets <= 8 * target.len() as u64 + 4096,
            "{piece}: {allocations}, {octets}"
        );
    }
    for authority in ["a.".repeat(15_000), "A".repeat(15_000), format!("{}.example", "A.".repeat(100) + "a")]
    {
        let ask = request("GET", &authority, "/", &[]);
        let (allocations, octets) = cost(&sites, &ask);
        assert!(allocations <= 32 && octets <= 4096, "{} octets: {allocations}, {octets}", authority.len());
    }
}
