//! Bodies: larger than the cache, colder than the page cache, and files that change under them.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use expressway_web::files::{FileOptions, FileStore, FilesConfig};
use expressway_web::{BodyError, Sites};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::common::{Client, fetch, get, pattern, request, settle, site};

const BLOCK: usize = 4096;

/// Small blocks, few of them, one reader with a queue of one: everything that can be scarce is.
fn scarce() -> FileOptions {
    FileOptions {
        block_bytes: BLOCK,
        cache_bytes: 4 * BLOCK as u64,
        reader_threads: 1,
        reader_queue: 1,
        ..FileOptions::default()
    }
}

fn serve(root: &Path, options: FileOptions) -> (Sites, Arc<FileStore>) {
    let store = FileStore::new(options).unwrap();
    (Sites::new(&[site(FilesConfig::new(root))], &store).unwrap(), store)
}

fn metric(store: &FileStore, name: &str) -> u64 {
    store.metrics().iter().find(|metric| metric.name == name).expect(name).value
}

fn set_modified(path: &Path, seconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    utimensat(CWD, path, &Timestamps { last_access: time, last_modification: time }, AtFlags::empty())
        .unwrap();
}

/// A file of `length` octets with a modification time that any later change moves.
fn write_old(path: &Path, content: &[u8]) {
    std::fs::write(path, content).unwrap();
    set_modified(path, 784_111_777);
}

#[test]
fn a_file_larger_than_the_cache_arrives_whole_by_either_way() {
    let directory = tempfile::tempdir().unwrap();
    let content = pattern(100 * BLOCK + 123);
    std::fs::write(directory.path().join("a"), &content).unwrap();
    for (try_on_worker, max) in [(true, 1350), (true, BLOCK), (false, 1350), (false, 1 << 20)] {
        let (sites, store) = serve(directory.path(), FileOptions { try_on_worker, ..scarce() });
        let mut client = Client::start(&sites, &get("/a"));
        assert_eq!(client.head().body_length, Some(content.len() as u64));
        let mut body = Vec::new();
        while let Some(chunk) = client.chunk(max) {
            body.extend_from_slice(&chunk.unwrap());
            assert_eq!(client.exchange.remaining(), Some((content.len() - body.len()) as u64));
            assert!(metric(&store, "block_cache_bytes") <= 4 * BLOCK as u64);
        }
        assert!(body == content);
        let (now, pooled) = (metric(&store, "block_reads_now"), metric(&store, "block_reads_pooled"));
        if try_on_worker {
            assert!(now + pooled >= 101);
        } else {
            assert_eq!(now, 0);
            assert!(pooled >= 101);
        }
    }
}

#[test]
fn chunks_are_slices_of_cached_blocks() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), pattern(BLOCK)).unwrap();
    settle();
    let (sites, _store) = serve(directory.path(), scarce());
    let chunk = || {
        let mut client = Client::start(&sites, &get("/a"));
        client.head();
        client.chunk(BLOCK).unwrap().unwrap()
    };
    // What is small beside its block is copied instead, so that it does not keep the block in memory.
    assert_eq!(chunk().as_ptr(), chunk().as_ptr(), "the same memory twice");
}

#[test]
fn a_released_exchange_goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let content = pattern(10 * BLOCK);
    std::fs::write(directory.path().join("a"), &content).unwrap();
    for try_on_worker in [true, false] {
        let (sites, _store) =
            serve(directory.path(), FileOptions { try_on_worker, cache_bytes: 0, ..scarce() });
        let mut client = Client::start(&sites, &get("/a"));
        client.head();
        let mut body = Vec::new();
        while let Some(chunk) = client.chunk(1500) {
            body.extend_from_slice(&chunk.unwrap());
            client.exchange.release();
        }
        assert!(body == content);
    }
}

#[test]
fn many_cold_files_share_one_reader_and_a_queue_of_one() {
    let directory = tempfile::tempdir().unwrap();
    let content = |i: usize| pattern(3 * BLOCK + i);
    for i in 0..100 {
        std::fs::write(directory.path().join(i.to_string()), content(i)).unwrap();
    }
    let options = FileOptions { try_on_worker: false, cache_bytes: 0, ..scarce() };
    let (sites, store) = serve(directory.path(), options);
    let mut clients: Vec<_> = (0..100).map(|i| Client::start(&sites, &get(&format!("/{i}")))).collect();
    // All want something before any is waited for, which is more than the queue takes.
    for client in &mut clients {
        assert!(client.exchange.poll_head().is_pending());
    }
    // Some leave while they wait.
    clients.drain(90..);
    for (i, client) in clients.iter_mut().enumerate() {
        client.head();
        assert!(client.body(BLOCK).unwrap() == content(i));
    }
    drop(clients);
    assert_eq!(metric(&store, "reader_queue_blocked"), 0);
    assert_eq!(metric(&store, "block_reads_now"), 0);
}

#[test]
fn a_popular_cold_block_is_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let content = pattern(BLOCK);
    std::fs::write(directory.path().join("a"), &content).unwrap();
    settle();
    let (sites, store) = serve(directory.path(), FileOptions { try_on_worker: false, ..scarce() });
    let mut clients: Vec<_> = (0..50).map(|_| Client::start(&sites, &get("/a"))).collect();
    for client in &mut clients {
        client.head();
    }
    let mut pending = 0;
    for client in &mut clients {
        pending += usize::from(client.exchange.poll_body(BLOCK).is_pending());
    }
    assert!(pending > 0);
    for client in &mut clients {
        // The last ones may have taken their chunk above.
        if client.exchange.remaining() == Some(BLOCK as u64) {
            assert!(client.body(BLOCK).unwrap() == content);
        }
    }
    assert_eq!(metric(&store, "block_reads_pooled"), 1);
}

#[test]
fn reading_ahead_finds_the_next_blocks() {
    let directory = tempfile::tempdir().unwrap();
    let content = pattern(64 * BLOCK);
    std::fs::write(directory.path().join("a"), &content).unwrap();
    settle();
    let options = FileOptions {
        try_on_worker: false,
        cache_bytes: 1 << 20,
        readahead_blocks: 4,
        reader_queue: 64,
        ..scarce()
    };
    let (sites, store) = serve(directory.path(), options);
    let (_, body) = fetch(&sites, &get("/a"));
    assert!(body == content);
    assert!(metric(&store, "reader_prefetches") > 0);
    assert_eq!(metric(&store, "block_reads_pooled"), 64, "each block once");
}

/// Starts a body, lets `change` do its work on the file, and reads on.
fn changed_while_served(
    try_on_worker: bool,
    change: impl Fn(&Path),
) -> (Vec<u8>, Result<Vec<u8>, BodyError>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let content = pattern(16 * BLOCK);
    write_old(&path, &content);
    let options = FileOptions { try_on_worker, readahead_blocks: 0, reader_queue: 8, ..scarce() };
    let (sites, _store) = serve(directory.path(), options);
    let mut client = Client::start(&sites, &get("/a"));
    client.head();
    let first = client.chunk(100).unwrap().unwrap();
    assert!(first == content[..100]);
    change(&path);
    let rest = client.body(BLOCK);
    if rest.is_err() {
        assert_eq!(client.chunk(1), Some(Err(rest.clone().unwrap_err())), "an error is final");
    }
    (content[100..].to_vec(), rest)
}

#[test]
fn a_file_that_changes_ends_in_an_error() {
    for try_on_worker in [true, false] {
        let truncate = |length: u64| {
            move |path: &Path| {
                std::fs::File::options().write(true).open(path).unwrap().set_len(length).unwrap()
            }
        };
        for length in [0, 50, 5 * BLOCK as u64, 16 * BLOCK as u64 - 1, 17 * BLOCK as u64] {
            let (_, rest) = changed_while_served(try_on_worker, truncate(length));
            assert_eq!(rest, Err(BodyError::Changed), "length {length}");
        }
        let (_, rest) = changed_while_served(try_on_worker, |path| {
            std::fs::File::options()
                .write(true)
                .open(path)
                .unwrap()
                .write_at(b"new", 9 * BLOCK as u64)
                .unwrap();
        });
        assert_eq!(rest, Err(BodyError::Changed), "rewritten in place");
    }
}

#[test]
fn a_file_that_is_replaced_or_removed_arrives_in_its_old_version() {
    for try_on_worker in [true, false] {
        let (expected, rest) = changed_while_served(try_on_worker, |path| {
            let new = path.with_extension("new");
            std::fs::write(&new, b"short and new").unwrap();
            std::fs::rename(&new, path).unwrap();
        });
        assert!(rest.unwrap() == expected);
        let (expected, rest) =
            changed_while_served(try_on_worker, |path| std::fs::remove_file(path).unwrap());
        assert!(rest.unwrap() == expected);
        let (expected, rest) = changed_while_served(try_on_worker, |path| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        });
        assert!(rest.unwrap() == expected, "a change of mode is no change of content");
    }
}

#[test]
fn a_kept_open_file_never_announces_what_its_content_contradicts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    write_old(&path, &pattern(2 * BLOCK));
    settle();
    let options = FileOptions { open_file_valid: Duration::from_secs(3600), cache_bytes: 0, ..scarce() };
    let (sites, store) = serve(directory.path(), options);
    let (old, _) = fetch(&sites, &get("/a"));
    fetch(&sites, &get("/a"));
    assert_eq!(metric(&store, "open_file_cache_hits"), 1);
    write_old(&path, b"another content");
    let (new, body) = fetch(&sites, &get("/a"));
    assert_eq!(body, b"another content");
    assert_ne!(old.headers["etag"], new.headers["etag"]);
}

#[test]
fn a_kept_open_file_serves_the_old_version_until_it_is_too_old() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    for (valid, expected) in [(Duration::from_secs(3600), b"old".as_slice()), (Duration::ZERO, b"new!")] {
        write_old(&path, b"old");
        settle();
        let (sites, _store) = serve(directory.path(), FileOptions { open_file_valid: valid, ..scarce() });
        fetch(&sites, &get("/a"));
        write_old(&path.with_extension("new"), b"new!");
        std::fs::rename(path.with_extension("new"), &path).unwrap();
        let (head, body) = fetch(&sites, &get("/a"));
        assert_eq!(body, expected);
        assert_eq!(head.headers["content-length"], expected.len().to_string().as_str());
    }
}

#[test]
fn multipart_parts_come_from_where_they_say() {
    let directory = tempfile::tempdir().unwrap();
    let content = pattern(40 * BLOCK);
    std::fs::write(directory.path().join("a"), &content).unwrap();
    for try_on_worker in [true, false] {
        let (sites, _store) = serve(directory.path(), FileOptions { try_on_worker, ..scarce() });
        let ask = request("GET", "x", "/a", &[("range", "bytes=100000-100009,0-4999,-10")]);
        let (head, body) = fetch(&sites, &ask);
        assert_eq!(head.status, 206);
        for part in [&content[100_000..100_010], &content[..5000], &content[content.len() - 10..]] {
            assert!(body.windows(part.len()).any(|window| window == part));
        }
    }
}

#[test]
fn an_exchange_outlives_its_sites() {
    let directory = tempfile::tempdir().unwrap();
    let content = pattern(8 * BLOCK);
    std::fs::write(directory.path().join("a"), &content).unwrap();
    let (sites, store) = serve(directory.path(), FileOptions { try_on_worker: false, ..scarce() });
    let mut client = Client::start(&sites, &get("/a"));
    assert!(matches!(client.exchange.poll_head(), Poll::Pending));
    drop((sites, store));
    client.head();
    assert!(client.body(BLOCK).unwrap() == content);
}

/// Workers ask for random ranges of files that are renamed over all the time. Each version is made of one
/// octet, so a body that mixes two versions shows.
#[test]
fn bodies_never_mix_versions() {
    use std::sync::atomic::{AtomicBool, Ordering};

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let write = |version: u8| {
        let new = path.with_extension("new");
        std::fs::write(&new, vec![version; 6 * BLOCK + usize::from(version)]).unwrap();
        std::fs::rename(&new, &path).unwrap();
    };
    write(0);
    let options = FileOptions { open_file_valid: Duration::from_millis(1), ..scarce() };
    let (sites, _store) = serve(directory.path(), options);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..3_u64 {
            let (sites, done) = (&sites, &done);
            scope.spawn(move || {
                let mut state = worker + 1;
                let mut random = move |below: u64| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 33) % below
                };
                while !done.load(Ordering::Relaxed) {
                    let first = random(6 * BLOCK as u64);
                    let range = format!("bytes={first}-{}", first + random(4 * BLOCK as u64));
                    let mut client = Client::start(sites, &request("GET", "", "/a", &[("range", &range)]));
                    let head = client.head();
                    let size: usize = head.headers["content-range"]
                        .to_str()
                        .unwrap()
                        .rsplit('/')
                        .next()
                        .unwrap()
                        .parse()
                        .unwrap();
                    let body =
                        client.body(1 + random(2 * BLOCK as u64) as usize).expect("a rename is no change");
                    let version = (size - 6 * BLOCK) as u8;
                    assert!(body.iter().all(|&octet| octet == version));
                    assert_eq!(head.body_length, Some(body.len() as u64));
                }
            });
        }
        for round in 0..300_u32 {
            write((round % 250) as u8);
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The kernel's own answer for blocks that are not in the page cache. Some file systems (tmpfs for one) keep
/// them there; what arrives is the same.
#[test]
fn blocks_dropped_from_the_page_cache_are_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    let content = pattern(256 * BLOCK);
    std::fs::write(&path, &content).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let (sites, store) = serve(directory.path(), FileOptions { reader_queue: 8, ..scarce() });
    let (_, body) = fetch(&sites, &get("/a"));
    assert!(body == content);
    let reads = metric(&store, "block_reads_now") + metric(&store, "block_reads_pooled");
    assert!(reads >= 256);
    eprintln!("{} blocks came from the disk", metric(&store, "block_reads_pooled"));
}
