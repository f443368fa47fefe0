//! Random interleavings of requests, changes at the origin, purges and evictions against a model: what is served is always
//! exactly one version, octet for octet, and one that may be served.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use expressway_cache::{CacheOptions, Purge, SiteOptions, Target};
use proptest::prelude::*;

use crate::common::{Answer, BLOCK, Bed, Client, Resource, body, options, request};

const URLS: u8 = 4;

/// How the origin serves a version.
#[derive(Debug, Clone, Copy)]
struct Manner {
    length: usize,
    /// The lifetime is not over when it comes.
    fresh: bool,
    etag: u8,
    ranges: bool,
    chunked: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Change(u8, Manner),
    Get(u8),
    Range(u8, u32, u32),
    Head(u8),
    Purge(u8, bool),
    /// So many requests, with a change while they wait or read.
    Together(u8, u8, Manner),
}

fn manner() -> impl Strategy<Value = Manner> {
    (0..12 * BLOCK, any::<bool>(), 0_u8..3, any::<bool>(), any::<bool>())
        .prop_map(|(length, fresh, etag, ranges, chunked)| Manner { length, fresh, etag, ranges, chunked })
}

fn step() -> impl Strategy<Value = Step> {
    let offset = 0..13 * BLOCK as u32;
    prop_oneof![
        2 => (0..URLS, manner()).prop_map(|(url, manner)| Step::Change(url, manner)),
        5 => (0..URLS).prop_map(Step::Get),
        5 => (0..URLS, offset.clone(), offset).prop_map(|(url, a, b)| Step::Range(url, a.min(b), a.max(b))),
        1 => (0..URLS).prop_map(Step::Head),
        1 => (0..URLS, any::<bool>()).prop_map(|(url, soft)| Step::Purge(url, soft)),
        1 => (0..URLS, 1_u8..6, manner()).prop_map(|(url, count, manner)| Step::Together(url, count, manner)),
    ]
}

/// What the model knows.
#[derive(Default)]
struct Model {
    /// Of every version: its content, and whether it was fresh when it came.
    versions: Vec<(Vec<u8>, bool)>,
    /// The current version of each URL, and those that may be stored and fresh.
    current: HashMap<u8, usize>,
    stored: HashMap<u8, Vec<usize>>,
}

impl Model {
    fn change(&mut self, bed: &Bed, url: u8, manner: Manner) {
        let version = self.versions.len();
        let content = body(version as u64 + 1, manner.length);
        let age = if manner.fresh { "0" } else { "100" };
        let mut resource = Resource::new(content.clone(), "max-age=50").with("age", age);
        resource = match manner.etag {
            0 => resource,
            1 => resource.etag(&version.to_string()),
            _ => resource.with("etag", &format!("W/\"{version}\"")),
        };
        resource.ranges = manner.ranges;
        resource.chunked = manner.chunked;
        bed.origin.set(&target(url), resource);
        self.versions.push((content, manner.fresh));
        self.current.insert(url, version);
    }

    /// A request was made: what the origin has now may be stored.
    fn may_be_stored(&mut self, url: u8) {
        let current = self.current[&url];
        if self.versions[current].1 {
            self.stored.entry(url).or_default().push(current);
        }
    }

    /// Versions that a request for the URL may be answered with.
    fn allowed(&self, url: u8) -> Vec<usize> {
        let mut allowed = self.stored.get(&url).cloned().unwrap_or_default();
        allowed.extend(self.current.get(&url));
        allowed
    }

    /// Checks an answer against the versions that may have been served; the one that it was.
    fn check(
        &mut self,
        url: u8,
        allowed: &[usize],
        range: Option<(u32, u32)>,
        answer: &Answer,
    ) -> Option<usize> {
        self.may_be_stored(url);
        let is_it = |version: &&usize| {
            let content = &self.versions[**version].0;
            let content: &[u8] = match (answer.status, range) {
                (206, Some((first, last))) if (first as usize) < content.len() => {
                    &content[first as usize..content.len().min(last as usize + 1)]
                }
                (206, _) => return false,
                _ => content,
            };
            if answer.error.is_some() { content.starts_with(&answer.body) } else { content == answer.body }
        };
        if answer.status == 416 {
            return None;
        }
        assert!(matches!(answer.status, 200 | 206), "{answer:?}");
        let version = *allowed.iter().find(is_it).unwrap_or_else(|| {
            panic!("not a version that may be served: {} {:?}", answer.body.len(), answer.headers)
        });
        if self.versions[version].1 {
            self.stored.entry(url).or_default().push(version);
        }
        Some(version)
    }
}

fn target(url: u8) -> String {
    format!("/{url}")
}

fn run(bed: &Bed, steps: &[Step]) {
    let mut model = Model::default();
    for url in 0..URLS {
        model.change(
            bed,
            url,
            Manner { length: 3 * BLOCK, fresh: true, etag: 1, ranges: true, chunked: false },
        );
    }
    for step in steps {
        match *step {
            Step::Change(url, manner) => model.change(bed, url, manner),
            Step::Get(url) => {
                let allowed = model.allowed(url);
                let answer = bed.get(&target(url));
                let version = model.check(url, &allowed, None, &answer);
                if answer.error.is_some() {
                    // What was lost is not announced a second time.
                    let again = bed.get(&target(url));
                    assert!(again.error.is_none(), "{version:?}: {again:?}");
                    model.check(url, &allowed, None, &again);
                }
            }
            Step::Range(url, first, last) => {
                let allowed = model.allowed(url);
                let answer = bed.ask("GET", &target(url), &[("range", &format!("bytes={first}-{last}"))]);
                model.check(url, &allowed, Some((first, last)), &answer);
            }
            Step::Head(url) => {
                let answer = bed.ask("HEAD", &target(url), &[]);
                assert!(answer.status == 200 && answer.body.is_empty());
                model.may_be_stored(url);
            }
            Step::Purge(url, soft) => {
                let purge =
                    Purge { target: Target::Url(format!("https://edge.example{}", target(url))), soft };
                bed.cache.purge(&purge, |_| SiteOptions::default()).unwrap();
                model.stored.remove(&url);
            }
            Step::Together(url, count, manner) => {
                let clients: Vec<Client> =
                    (0..count).map(|_| bed.start(&request("GET", &target(url), &[]))).collect();
                let mut allowed = model.allowed(url);
                model.change(bed, url, manner);
                allowed.extend(model.allowed(url));
                for client in clients {
                    let answer = client.finish();
                    model.check(url, &allowed, None, &answer);
                }
            }
        }
    }
    let until = Instant::now() + Duration::from_secs(20);
    while bed.metric("cache_fills_active") > 0 {
        assert!(Instant::now() < until, "a fetch does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((bed.metric("cache_fill_readers"), bed.metric("cache_fill_held_bytes")), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_memory(steps in prop::collection::vec(step(), 1..40)) {
        run(&Bed::with(options(), SiteOptions::default(), 64 << 20), &steps);
    }

    #[test]
    fn in_little_memory(steps in prop::collection::vec(step(), 1..40), blocks in 2_u64..12) {
        run(&Bed::with(CacheOptions { heads: 4 << 10, ..options() }, SiteOptions::default(), blocks * BLOCK as u64), &steps);
    }

    #[test]
    fn on_a_small_disk(steps in prop::collection::vec(step(), 1..40), blocks in 2_u64..12) {
        let folder = tempfile::tempdir().unwrap();
        let options = CacheOptions { disk: Some(folder.path().to_owned()), disk_size: 300 << 10, heads: 4 << 10, ..options() };
        run(&Bed::with(options, SiteOptions::default(), blocks * BLOCK as u64), &steps);
    }

    #[test]
    fn without_slices(steps in prop::collection::vec(step(), 1..30)) {
        run(&Bed::with(CacheOptions { slice: 0, ..options() }, SiteOptions::default(), 8 * BLOCK as u64), &steps);
    }
}
