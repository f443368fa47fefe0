//! Requests for low-latency HLS that wait for what they ask for, and responses that take their time.

use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use expressway_web::files::{FileOptions, FileStore, FilesConfig, HlsOptions, MAX_HELD};
use expressway_web::memory::Account;
use expressway_web::{LimitRate, PathPattern, PathRule, RequestHead, SiteConfig, Sites};

use crate::common::{Client, fetch, get, pattern, request, site};

const HELD_FOR_LONG: Duration = Duration::from_secs(180);

struct Bed {
    root: tempfile::TempDir,
    store: Arc<FileStore>,
    sites: Sites,
}

impl Bed {
    fn new(max_hold: Duration, preload_hints: bool) -> Self {
        Self::with(HlsOptions { max_hold, preload_hints, max_held: MAX_HELD })
    }

    fn with(hls: HlsOptions) -> Self {
        let root = tempfile::tempdir().unwrap();
        let store = FileStore::new(FileOptions::default()).unwrap();
        let files = FilesConfig { hls: Some(hls), ..FilesConfig::new(root.path()) };
        let sites = Sites::new(&[site(files)], &store).unwrap();
        Self { root, store, sites }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join(name)
    }

    /// Publishes a playlist as packagers should.
    fn publish(&self, text: &str) {
        std::fs::write(self.path("new"), text).unwrap();
        std::fs::rename(self.path("new"), self.path("a.m3u8")).unwrap();
    }

    fn metric(&self, name: &str) -> u64 {
        self.store.metrics().into_iter().find(|metric| metric.name == name).unwrap().value
    }

    /// Waits until a reader thread has got so far.
    fn until(&self, what: &str, name: &str, is_so: impl Fn(u64) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so(self.metric(name)) {
            assert!(Instant::now() < deadline, "never: {what}; {name} is {}", self.metric(name));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn start(&self, target: &str) -> Client {
        Client::start(&self.sites, &get(target))
    }

    fn is_waiting(client: &mut Client) -> bool {
        matches!(client.exchange.poll_head(), Poll::Pending)
    }
}

/// A playlist of `segments` segments from 100 and so many parts of the next, of at most a minute each.
fn playlist(segments: u64, parts: u64) -> String {
    let mut text =
        "#EXTM3U\n#EXT-X-TARGETDURATION:60\n#EXT-X-SERVER-CONTROL:CAN-BLOCK-RELOAD=YES,PART-HOLD-BACK=3\n\
                    #EXT-X-PART-INF:PART-TARGET=1\n#EXT-X-MEDIA-SEQUENCE:100\n"
            .to_owned();
    let next = 100 + segments;
    (100..next).for_each(|number| text += &format!("#EXTINF:4,\n{number}.m4s\n"));
    (0..parts).for_each(|part| text += &format!("#EXT-X-PART:DURATION=1,URI=\"{next}.{part}.m4s\"\n"));
    text + &format!("#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"{next}.{parts}.m4s\"\n")
}

#[test]
fn a_reload_is_held_until_the_playlist_has_what_it_asks_for() {
    let bed = Bed::new(HELD_FOR_LONG, false);
    bed.publish(&playlist(2, 1));
    let mut part = bed.start("/a.m3u8?_HLS_msn=102&_HLS_part=1&_HLS_skip=YES");
    let mut segment = bed.start("/a.m3u8?_HLS_msn=102");
    let mut head = Client::start(&bed.sites, &request("HEAD", "a", "/a.m3u8?_HLS_msn=102&_HLS_part=1", &[]));
    assert!(Bed::is_waiting(&mut part) && Bed::is_waiting(&mut segment) && Bed::is_waiting(&mut head));
    bed.until("it was read", "hls_playlists_read", |read| read > 0);
    assert_eq!((bed.metric("hls_requests_held"), bed.metric("hls_playlists_watched")), (3, 1));
    // What is there is answered meanwhile, held or not.
    for query in ["", "?a=1", "?_HLS_msn=101", "?_HLS_msn=102&_HLS_part=0"] {
        assert_eq!(
            fetch(&bed.sites, &get(&format!("/a.m3u8{query}"))).1,
            playlist(2, 1).as_bytes(),
            "{query}"
        );
    }
    bed.publish(&playlist(2, 2));
    assert_eq!(part.head().status, 200);
    assert_eq!(part.body(1 << 16).unwrap(), playlist(2, 2).as_bytes(), "as it was when it had it");
    assert_eq!((head.head().status.as_u16(), head.body(1).unwrap().len()), (200, 0));
    assert!(Bed::is_waiting(&mut segment));
    bed.publish(&playlist(3, 0));
    assert_eq!(
        (segment.head().status.as_u16(), segment.body(100).unwrap().len()),
        (200, playlist(3, 0).len())
    );
    assert_eq!(bed.metric("hls_requests_held"), 0);
    let read = bed.metric("hls_playlists_read");
    let mut next = bed.start("/a.m3u8?_HLS_msn=103");
    assert!(Bed::is_waiting(&mut next), "the playlist is still known");
    bed.publish(&playlist(4, 0).replace("TARGETDURATION:60", "TARGETDURATION:1"));
    assert_eq!(next.head().status, 200);
    assert!(bed.metric("hls_playlists_read") > read);
    bed.until("it is forgotten", "hls_playlists_watched", |watched| watched == 0);
}

/// More than are looked at without letting go of the lock, and some of them wait for what does not come yet.
#[test]
fn thousands_are_held_and_all_of_them_answered() {
    let bed = Bed::new(HELD_FOR_LONG, false);
    bed.publish(&playlist(2, 1));
    let mut parts: Vec<Client> = Vec::new();
    let mut segments: Vec<Client> = Vec::new();
    for _ in 0..1000 {
        parts.push(bed.start("/a.m3u8?_HLS_msn=102&_HLS_part=1"));
        segments.push(bed.start("/a.m3u8?_HLS_msn=102"));
    }
    assert_eq!(bed.metric("hls_requests_held"), 2000);
    bed.publish(&playlist(2, 2));
    assert!(parts.iter_mut().all(|client| client.head().status == 200));
    assert!(segments.iter_mut().all(Bed::is_waiting));
    assert_eq!(bed.metric("hls_requests_held"), 1000);
    // Some go on their own while the playlist is looked at.
    segments.truncate(700);
    bed.publish(&playlist(3, 0));
    assert!(segments.iter_mut().all(|client| client.head().status == 200));
    assert_eq!(bed.metric("hls_requests_held"), 0);
}

#[test]
fn no_more_are_held_than_may_be() {
    let bed = Bed::with(HlsOptions { max_hold: HELD_FOR_LONG, preload_hints: true, max_held: 3 });
    bed.publish(&playlist(2, 1));
    let mut held: Vec<Client> = (0..3).map(|_| bed.start("/a.m3u8?_HLS_msn=102")).collect();
    bed.until("it was read", "hls_playlists_read", |read| read > 0);
    for target in ["/a.m3u8?_HLS_msn=102", "/b.m3u8?_HLS_msn=1", "/102.1.m4s"] {
        assert_eq!(bed.start(target).head().status, 503, "{target}");
    }
    assert_eq!((bed.metric("hls_full"), bed.metric("hls_requests_held")), (3, 3));
    assert_eq!(bed.metric("hls_playlists_watched"), 1, "the other one is not remembered");
    assert_eq!(bed.start("/a.m3u8?_HLS_msn=101").head().status, 200, "what is there is answered");
    assert!(held.iter_mut().all(Bed::is_waiting));
    held.pop();
    let mut next = bed.start("/a.m3u8?_HLS_msn=102");
    assert!(Bed::is_waiting(&mut next));
    bed.publish(&playlist(3, 0));
    assert_eq!(next.head().status, 200);
}

#[test]
fn what_makes_no_sense_or_is_too_far_away_is_refused() {
    let bed = Bed::new(HELD_FOR_LONG, true);
    bed.publish(&playlist(2, 1));
    for query in [
        "_HLS_msn=104",
        "_HLS_msn=18446744073709551615&_HLS_part=18446744073709551615",
        "_HLS_msn=102&_HLS_part=100",
        "_HLS_msn=18446744073709551616",
        "_HLS_msn=x",
        "_HLS_msn=",
        "_HLS_part=1",
        "_HLS_msn=1&_HLS_msn=1",
    ] {
        let (head, _) = fetch(&bed.sites, &get(&format!("/a.m3u8?{query}")));
        assert_eq!(head.status, 400, "{query}");
    }
    assert_eq!(bed.metric("hls_refused"), 3, "the others are not even looked at");
    let post = fetch(&bed.sites, &request("POST", "a", "/a.m3u8?_HLS_msn=x", &[]));
    assert_eq!(post.0.status, 405);
}

#[test]
fn what_is_no_live_playlist_is_answered_as_it_is() {
    let bed = Bed::new(HELD_FOR_LONG, true);
    let long = "x".repeat(5 << 20);
    for (name, text) in [
        ("master.m3u8", "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\na.m3u8\n"),
        ("junk.m3u8", &long),
        ("empty.m3u8", ""),
        ("over.m3u8", &(playlist(2, 0) + "#EXT-X-ENDLIST\n")),
        ("a.txt", &playlist(2, 0)),
    ] {
        std::fs::write(bed.path(name), text).unwrap();
        let (head, body) = fetch(&bed.sites, &get(&format!("/{name}?_HLS_msn=103")));
        assert_eq!((head.status.as_u16(), body.len()), (200, text.len()), "{name}");
    }
    std::fs::create_dir(bed.path("d.m3u8")).unwrap();
    for (path, status) in [("none.m3u8", 404), ("d.m3u8", 301), (".hidden.m3u8", 404)] {
        assert_eq!(fetch(&bed.sites, &get(&format!("/{path}?_HLS_msn=103"))).0.status, status, "{path}");
    }
    assert_eq!(bed.metric("hls_requests_held"), 0);
    // The reader forgets it once it has woken those who waited.
    bed.until("the end of its watch", "hls_playlists_watched", |watched| watched == 0);
}

#[test]
fn nobody_is_held_for_longer_than_it_is_said() {
    let bed = Bed::new(Duration::from_millis(200), false);
    bed.publish(&playlist(2, 0));
    let start = Instant::now();
    assert_eq!(fetch(&bed.sites, &get("/a.m3u8?_HLS_msn=102")).0.status, 503);
    assert!(start.elapsed() >= Duration::from_millis(200));
    // Three target durations are the most.
    let bed = Bed::new(HELD_FOR_LONG, false);
    bed.publish(&playlist(2, 0).replace("TARGETDURATION:60", "TARGETDURATION:1"));
    let start = Instant::now();
    assert_eq!(fetch(&bed.sites, &get("/a.m3u8?_HLS_msn=102")).0.status, 503);
    assert!(start.elapsed() >= Duration::from_secs(3));
    assert_eq!(bed.metric("hls_timeouts"), 1);
}

#[test]
fn a_playlist_that_is_cut_off_or_replaced_is_waited_for_again() {
    let bed = Bed::new(HELD_FOR_LONG, false);
    bed.publish(&playlist(2, 0));
    let mut client = bed.start("/a.m3u8?_HLS_msn=102");
    bed.until("it was read", "hls_playlists_read", |read| read > 0);
    let file = std::fs::File::options().write(true).open(bed.path("a.m3u8")).unwrap();
    for (length, text) in
        [(0, ""), (20, "#EXTM3U\n#EXT-X-TAR"), (0, &playlist(2, 0)[..40]), (0, "<html>no playlist</html>")]
    {
        file.set_len(length).unwrap();
        std::fs::write(bed.path("a.m3u8"), text).unwrap();
        // Some looks go by; none lets go.
        std::thread::sleep(Duration::from_millis(100));
        assert!(Bed::is_waiting(&mut client), "{text}");
    }
    let before = bed.metric("hls_playlists_read");
    bed.publish(&playlist(1, 0));
    bed.until("it has gone back", "hls_playlists_read", |read| read > before);
    assert!(Bed::is_waiting(&mut client));
    bed.publish(&playlist(4, 0));
    assert_eq!(client.head().status, 200);
    // One that is gone is not.
    let mut client = bed.start("/a.m3u8?_HLS_msn=104");
    assert!(Bed::is_waiting(&mut client));
    std::fs::remove_file(bed.path("a.m3u8")).unwrap();
    let status = client.head().status.as_u16();
    assert!(matches!(status, 200 | 404), "{status}: as any other request, which may get what is still open");
}

#[test]
fn a_thousand_held_requests_are_counted_and_leave_nothing() {
    let bed = Bed::new(HELD_FOR_LONG, false);
    let long = format!("#{}\n", "x".repeat(3 << 20));
    bed.publish(&(playlist(2, 0) + &long));
    let ledger = bed.store.memory().ledger();
    let account = Account::new(&ledger, 1 << 20, 64 << 20);
    let start = |query: &str| {
        let mut client = bed.start(&format!("/a.m3u8?{query}"));
        client.exchange.charge_to(&account);
        assert!(Bed::is_waiting(&mut client));
        client
    };
    let mut clients: Vec<_> = (0..1000).map(|_| start("_HLS_msn=102")).collect();
    let requests = account.requests();
    assert!(requests >= 1000 * size_of::<RequestHead>(), "{requests} octets are counted");
    assert!(requests <= 1000 << 11, "{requests} octets are taken");
    assert_eq!((bed.metric("hls_requests_held"), bed.metric("hls_playlists_watched")), (1000, 1));
    // Half of the clients go away.
    clients.truncate(500);
    assert_eq!(bed.metric("hls_requests_held"), 500);
    assert!(account.requests() <= requests * 6 / 10);
    bed.publish(&playlist(3, 0));
    for client in &mut clients {
        assert_eq!(
            (client.head().status.as_u16(), client.body(1 << 20).unwrap().len()),
            (200, playlist(3, 0).len())
        );
    }
    let read = bed.metric("hls_playlists_read");
    assert!(read < 500, "read {read} times for 1000 requests");
    let waiting = [start("_HLS_msn=103"), start("_HLS_msn=104")];
    assert_eq!((bed.metric("hls_requests_held"), bed.metric("hls_playlists_watched")), (2, 1));
    drop((waiting, clients));
    assert_eq!((bed.metric("hls_requests_held"), account.used()), (0, 0));
}

#[test]
fn a_hinted_part_is_held_until_the_playlist_lists_it() {
    let bed = Bed::new(HELD_FOR_LONG, true);
    bed.publish(&playlist(2, 1));
    assert_eq!(fetch(&bed.sites, &get("/102.1.m4s")).0.status, 404, "nobody watches the playlist");
    let mut reload = bed.start("/a.m3u8?_HLS_msn=102&_HLS_part=1");
    bed.until("it was read", "hls_playlists_read", |read| read > 0);
    let mut part = bed.start("/102.1.m4s");
    assert!(Bed::is_waiting(&mut part));
    assert_eq!(fetch(&bed.sites, &get("/102.2.m4s")).0.status, 404, "it is not hinted at");
    // It is being written, and so not complete before the playlist says so.
    std::fs::write(bed.path("102.1.m4s"), "beginning").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(Bed::is_waiting(&mut part));
    // Nor while the playlist is being written.
    std::fs::write(bed.path("a.m3u8"), &playlist(2, 2)[..40]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(Bed::is_waiting(&mut part) && Bed::is_waiting(&mut reload));
    std::fs::write(bed.path("102.1.m4s"), "beginning and end").unwrap();
    bed.publish(&playlist(2, 2));
    assert_eq!((reload.head().status.as_u16(), part.head().status.as_u16()), (200, 200));
    assert_eq!(part.body(100).unwrap(), b"beginning and end");
    drop((reload, part));
    // Between two reloads the playlist is still known.
    let mut part = bed.start("/102.2.m4s");
    assert!(Bed::is_waiting(&mut part));
    bed.publish(&playlist(3, 0));
    assert_eq!(part.head().status, 404, "it was hinted at and never made");
}

fn paced(root: &Path, limit: LimitRate) -> Sites {
    let store = FileStore::new(FileOptions::default()).unwrap();
    let mut config = SiteConfig::new(Vec::new(), FilesConfig::new(root));
    config.rules = vec![PathRule { limit: Some(limit), ..PathRule::new(PathPattern::all()) }];
    Sites::new(&[config], &store).unwrap()
}

#[test]
fn a_body_goes_at_its_rate_once_its_burst_has_gone() {
    let root = tempfile::tempdir().unwrap();
    let content = pattern(400_000);
    std::fs::write(root.path().join("a"), &content).unwrap();
    let sites = paced(root.path(), LimitRate { rate: 200_000, after: 100_000, cmcd_rtp: true });
    for (headers, rate) in [(vec![], 200_000), (vec![("cmcd-status", "rtp=800")], 100_000)] {
        let start = Instant::now();
        let mut client = Client::start(&sites, &request("GET", "a", "/a", &headers));
        assert_eq!(client.head().status, 200);
        assert!(client.chunk(1 << 20).unwrap().unwrap().len() >= 100_000, "the burst goes at once");
        let (mut waits, mut rest) = (0, 0);
        loop {
            let chunk = match client.exchange.poll_body(1 << 20) {
                Poll::Ready(chunk) => chunk,
                Poll::Pending => {
                    waits += 1;
                    client.chunk(1 << 20)
                }
            };
            let Some(chunk) = chunk else { break };
            rest += chunk.unwrap().len() as u64;
        }
        assert!(rest < 300_000);
        assert!(start.elapsed() >= Duration::from_millis(rest * 1000 / rate), "{rest} octets");
        assert!(waits <= 8 * rest / rate + 1, "{waits} waits for {rest} octets");
    }
    // A head has no body, and what is short goes at once.
    std::fs::write(root.path().join("b"), "short").unwrap();
    assert_eq!(fetch(&sites, &request("HEAD", "a", "/a", &[])).1.len(), 0);
    assert_eq!(fetch(&sites, &get("/b")).1, b"short");
    let sites = paced(root.path(), LimitRate { rate: 0, after: 0, cmcd_rtp: true });
    assert_eq!(fetch(&sites, &get("/a")).1, content, "without a limit");
}
