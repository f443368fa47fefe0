//! What responses pin, what is counted of it, and what reading costs where clients take little.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use expressway_web::Sites;
use expressway_web::files::{FileOptions, FileStore, FilesConfig};
use expressway_web::memory::Account;

use crate::common::{self, Client, fetch, get, pattern, request, site};

const BLOCK: usize = 64 << 10;

/// Of the window and of all that a connection may hold.
const WINDOW: usize = 512 << 10;
const LIMIT: usize = 1 << 20;

fn serve(root: &Path, options: FileOptions) -> (Sites, Arc<FileStore>) {
    let store = FileStore::new(FileOptions { block_bytes: BLOCK, ..options }).unwrap();
    (Sites::new(&[site(FilesConfig::new(root))], &store).unwrap(), store)
}

fn metric(store: &FileStore, name: &str) -> usize {
    store.metrics().iter().find(|metric| metric.name == name).expect(name).value as usize
}

fn account(store: &FileStore) -> Account {
    Account::new(&store.memory().ledger(), WINDOW, LIMIT)
}

fn files(count: usize, length: usize) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in 0..count {
        std::fs::write(directory.path().join(name.to_string()), pattern(length)).unwrap();
    }
    directory
}

fn start(sites: &Sites, path: &str, account: &Account) -> Client {
    let mut client = Client::start(sites, &get(path));
    client.exchange.charge_to(account);
    client.head();
    client
}

/// The next chunk, as a transport takes it that has room for `max` octets and then for none.
fn chunk(client: &mut Client, max: usize, account: &Account) -> Bytes {
    account.follow();
    let chunk = client.chunk(max).unwrap().unwrap();
    client.exchange.rest();
    chunk
}

#[test]
fn responses_of_which_little_is_taken_hold_no_more_than_is_said() {
    let directory = files(100, 20 * BLOCK);
    for (cache_bytes, try_on_worker) in [(0, true), (0, false), (2 * BLOCK as u64, true)] {
        let options = FileOptions { cache_bytes, try_on_worker, ..FileOptions::default() };
        let (sites, store) = serve(directory.path(), options);
        let account = account(&store);
        // Some of what follows is a block, some is copied.
        for length in [300, BLOCK / 8, BLOCK / 2] {
            let mut clients: Vec<_> =
                (0..100).map(|name| start(&sites, &format!("/{name}"), &account)).collect();
            let mut taken = Vec::new();
            for client in &mut clients {
                if account.room() >= length {
                    taken.push(chunk(client, length, &account));
                }
                let (used, blocks) = (account.used(), metric(&store, "file_block_bytes"));
                assert!(used <= LIMIT, "{used} octets are held");
                let cached = metric(&store, "block_cache_bytes");
                assert!(blocks <= used + cached, "{blocks} octets of blocks, {used} are counted");
            }
            assert!(
                taken.len() * length >= WINDOW * 3 / 4 || taken.len() == 100,
                "{} of {length}",
                taken.len()
            );
            let in_flight = account.in_flight();
            assert!(
                (taken.len() * length..=WINDOW).contains(&in_flight),
                "{in_flight} octets are on their way"
            );
            for (taken, expected) in taken.iter().zip(std::iter::repeat(pattern(length))) {
                assert!(*taken == expected);
            }
            // What is on its way outlives its response.
            drop(clients);
            assert_eq!(account.in_flight(), in_flight);
            drop(taken);
            assert_eq!((account.used(), account.in_flight()), (0, 0));
        }
        // A reader thread may be at a block that nobody waits for any more.
        let pinned = || metric(&store, "file_block_pinned_bytes");
        let deadline = Instant::now() + Duration::from_secs(10);
        while pinned() != 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(pinned(), 0, "nothing is left of what was held");
        assert_eq!(
            store.memory().total(),
            metric(&store, "file_block_bytes") + metric(&store, "file_block_spare_bytes")
        );
    }
}

#[test]
fn a_block_that_leaves_the_cache_counts_as_long_as_somebody_holds_it() {
    let directory = files(10, 4 * BLOCK);
    common::settle();
    let cache_bytes = 2 * BLOCK as u64 + 1000;
    let (sites, store) = serve(directory.path(), FileOptions { cache_bytes, ..FileOptions::default() });
    let held: Vec<_> = (0..5)
        .map(|name| {
            let mut client = Client::start(&sites, &get(&format!("/{name}")));
            client.head();
            client.chunk(BLOCK).unwrap().unwrap()
        })
        .collect();
    let cached = metric(&store, "block_cache_bytes");
    let pinned = metric(&store, "file_block_pinned_bytes");
    assert!(cached <= cache_bytes as usize);
    assert!((3 * BLOCK..=5 * BLOCK).contains(&pinned), "{pinned} octets of blocks outside of the cache");
    assert_eq!(metric(&store, "file_block_bytes"), cached + pinned);
    drop(held);
    assert_eq!((metric(&store, "file_block_bytes"), metric(&store, "file_block_pinned_bytes")), (cached, 0));
}

#[test]
fn a_block_that_was_read_for_a_response_counts_before_it_is_taken() {
    let directory = files(100, 2 * BLOCK);
    let options = FileOptions { cache_bytes: 0, try_on_worker: false, ..FileOptions::default() };
    let (sites, store) = serve(directory.path(), options);
    let account = account(&store);
    let mut clients: Vec<_> = (0..100).map(|name| start(&sites, &format!("/{name}"), &account)).collect();
    // All ask, and none comes back for what is read for it.
    let asked = |clients: &mut Vec<Client>| {
        for client in clients.iter_mut() {
            let room = account.room().min(BLOCK);
            if room > 0 {
                let _ = client.exchange.poll_body(room);
            }
        }
    };
    asked(&mut clients);
    let expected = metric(&store, "reader_jobs");
    while metric(&store, "reader_queue_length") > 0 || metric(&store, "reader_jobs") < expected {
        std::thread::yield_now();
    }
    let (used, blocks) = (account.used(), metric(&store, "file_block_bytes"));
    assert!(
        blocks <= used && used <= LIMIT + 100 * (BLOCK + 1024),
        "{blocks} octets of blocks, {used} are counted"
    );
    assert!(blocks <= LIMIT, "{blocks} octets of blocks");
    for client in &mut clients {
        client.exchange.release();
    }
    drop(clients);
    assert_eq!(account.used(), 0);
}

#[test]
fn ranges_of_an_octet_cost_reads_of_an_octet() {
    let directory = files(1, 200 * BLOCK);
    for try_on_worker in [true, false] {
        let options = FileOptions { cache_bytes: 0, try_on_worker, ..FileOptions::default() };
        let (sites, store) = serve(directory.path(), options);
        let ranges: Vec<_> = (0..200).map(|block| format!("{0}-{0}", block * BLOCK + 77)).collect();
        let range = format!("bytes={}", ranges.join(","));
        let (head, _) = fetch(&sites, &request("GET", "x", "/0", &[("range", &range)]));
        assert_eq!(head.status, 206);
        assert_eq!(metric(&store, "block_read_bytes"), 200);
        let pieces = metric(&store, "piece_reads_now") + metric(&store, "piece_reads_pooled");
        assert_eq!(pieces, 200);
    }
}

#[test]
fn what_is_read_stays_in_proportion_to_what_is_taken() {
    let directory = files(1, 64 * BLOCK);
    let options = FileOptions { cache_bytes: 0, ..FileOptions::default() };
    // As long as memory is there, and where each block has to be given back at once.
    for most in [LIMIT, 0] {
        let (sites, store) = serve(directory.path(), FileOptions { ..options.clone() });
        let account = Account::new(&store.memory().ledger(), WINDOW, most);
        let mut client = start(&sites, "/0", &account);
        let mut taken = 0;
        for round in 0..20_000 {
            let max = if round % 1000 == 0 { BLOCK / 4 } else { 1 };
            taken += client.chunk(max).unwrap().unwrap().len();
            client.exchange.release();
            let read = metric(&store, "block_read_bytes");
            assert!(read <= 17 * taken, "{read} octets were read for {taken}");
        }
    }
}

#[test]
fn who_takes_a_body_whole_has_its_blocks_read_once() {
    let directory = files(1, 40 * BLOCK + 100);
    for cache_bytes in [0, 1 << 20] {
        let options = FileOptions { cache_bytes, ..FileOptions::default() };
        let (sites, store) = serve(directory.path(), options);
        let account = account(&store);
        let mut client = start(&sites, "/0", &account);
        // As acknowledgements come, a packet or two at a time.
        let mut body = Vec::new();
        let mut sent = std::collections::VecDeque::new();
        while client.exchange.remaining() != Some(0) {
            let chunk = chunk(&mut client, if body.is_empty() { 40_000 } else { 2900 }, &account);
            body.extend_from_slice(&chunk);
            sent.push_back(chunk);
            if sent.len() > 100 {
                sent.pop_front();
            }
        }
        assert!(body == pattern(40 * BLOCK + 100));
        let read = metric(&store, "block_read_bytes");
        assert!(read <= body.len() + BLOCK, "{read} octets were read for {}", body.len());
    }
}

#[test]
fn a_request_that_takes_much_counts_what_it_takes() {
    let directory = files(1, BLOCK);
    let (sites, store) = serve(directory.path(), FileOptions::default());
    let account = account(&store);
    let ranges: Vec<_> = (0..200).map(|part| format!("{0}-{0}", part * 2)).collect();
    let range = format!("bytes={}", ranges.join(","));
    let mut client = Client::start(&sites, &request("GET", "x", "/0", &[("range", &range)]));
    client.exchange.charge_to(&account);
    client.head();
    let requests = account.requests();
    // A range each; their headers are made when they are sent.
    assert!((200 * 16..200 * 32).contains(&requests), "{requests} octets for 200 parts");
    drop(client);
    assert_eq!(account.requests(), 0);
}
