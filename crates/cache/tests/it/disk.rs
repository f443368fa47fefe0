//! What is on disk: over restarts, kills, flipped bits and full disks.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use expressway_cache::{CacheOptions, Purge, SiteOptions, Target};
use proptest::prelude::*;

use crate::common::{BLOCK, Bed, Resource, body, options};

/// A store that holds two megabytes.
fn on_disk(folder: &Path, size: u64) -> CacheOptions {
    CacheOptions { disk: Some(folder.to_owned()), disk_size: size, ..options() }
}

/// With so little memory that nearly everything comes from the disk.
fn bed(folder: &Path) -> Bed {
    Bed::with(
        CacheOptions { heads: 64 << 10, ..on_disk(folder, 2 << 20) },
        SiteOptions::default(),
        2 * BLOCK as u64,
    )
}

fn url(number: u64) -> String {
    format!("/{number}")
}

/// The content that the object of a number has in every test.
fn content(number: u64) -> Vec<u8> {
    body(number, (number as usize * 977) % (9 * BLOCK) + 1)
}

fn fill(bed: &Bed, numbers: std::ops::Range<u64>) {
    for number in numbers {
        bed.origin.set(&url(number), Resource::new(content(number), "max-age=600").etag("a").ranged());
        assert_eq!(bed.get(&url(number)).body, content(number));
    }
    bed.cache.flush();
}

#[test]
fn objects_are_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    fill(&bed(folder.path()), 0..30);
    let bed = bed(folder.path());
    for number in 0..30 {
        let answer = bed.get(&url(number));
        assert!(answer.is_hit(), "{number}: {}", answer.cache());
        assert_eq!(answer.body, content(number));
    }
    assert_eq!(bed.origin.count(), 0);
    assert!(bed.metric("cache_disk_reads") > 0);
}

#[test]
fn the_store_keeps_to_its_size_and_keeps_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let bed = bed(folder.path());
    fill(&bed, 1..2);
    for round in 0..40 {
        fill(&bed, 100 + round * 10..110 + round * 10);
        assert!(bed.get(&url(1)).is_hit(), "round {round}: it is read, so it stays");
    }
    assert!(bed.metric("cache_disk_regions_evicted") > 0);
    assert!(bed.metric("cache_disk_reinserted") > 0);
    assert!(std::fs::metadata(folder.path().join("objects")).unwrap().len() <= 2 << 20);
    let before = bed.origin.count();
    bed.get(&url(100));
    assert!(bed.origin.count() > before, "the oldest are gone");
}

#[test]
fn purges_outlive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let first = bed(folder.path());
    fill(&first, 0..20);
    for target in
        [Target::Url("https://edge.example/3".into()), Target::Prefix("https://edge.example/1".into())]
    {
        first.cache.purge(&Purge { target, soft: false }, |_| SiteOptions::default()).unwrap();
    }
    first.cache.flush();
    assert!(!first.get(&url(11)).is_hit() && first.get(&url(4)).is_hit());
    first.cache.flush();
    drop(first);
    let second = bed(folder.path());
    fill(&second, 0..0);
    for number in [3, 1, 10, 19] {
        second.origin.set(&url(number), Resource::new("new", "max-age=60"));
        assert_eq!(second.get(&url(number)).body, b"new", "{number}");
    }
    assert_eq!(second.get(&url(4)).body, content(4));
    assert_eq!(second.get(&url(11)).body, content(11), "stored again since");
}

#[test]
fn two_processes_do_not_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = bed(folder.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let opened = expressway_cache::Cache::open(
        on_disk(folder.path(), 2 << 20),
        &first.store,
        runtime.handle().clone(),
    );
    assert!(opened.unwrap_err().to_string().contains("in use"));
}

#[test]
fn a_store_of_another_size_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    fill(&bed(folder.path()), 0..5);
    let other = Bed::with(on_disk(folder.path(), 4 << 20), SiteOptions::default(), 1 << 20);
    fill(&other, 0..5);
    assert!(other.get(&url(1)).is_hit());
}

/// Every answer is right, whatever comes of the store.
fn assert_all_right(folder: &Path, numbers: impl IntoIterator<Item = u64>) -> usize {
    let bed = bed(folder);
    let mut hits = 0;
    for number in numbers {
        bed.origin.set(&url(number), Resource::new(content(number), "max-age=600").etag("a").ranged());
        let answer = bed.get(&url(number));
        assert_eq!(answer.body, content(number), "{number}: {}", answer.cache());
        assert!(answer.error.is_none());
        hits += usize::from(answer.is_hit());
    }
    hits
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bits_and_cut_files_cost_fetches_and_no_octet(
        flips in prop::collection::vec((0_u64..2 << 20, 0_u8..8), 0..400),
        zeros in prop::collection::vec((0_u64..2 << 20, 1_usize..100_000), 0..3),
        cut in prop::option::of(0_u64..2 << 20),
    ) {
        let folder = tempfile::tempdir().unwrap();
        fill(&bed(folder.path()), 0..40);
        let file = std::fs::File::options().read(true).write(true).open(folder.path().join("objects")).unwrap();
        let end = file.metadata().unwrap().len();
        for (at, bit) in flips {
            let mut octet = [0];
            if at < end && file.read_at(&mut octet, at).unwrap() == 1 {
                file.write_all_at(&[octet[0] ^ 1 << bit], at).unwrap();
            }
        }
        for (at, length) in zeros {
            file.write_all_at(&vec![0; length.min((end.saturating_sub(at)) as usize)], at).unwrap();
        }
        if let Some(cut) = cut {
            file.set_len(cut).unwrap();
        }
        drop(file);
        assert_all_right(folder.path(), 0..40);
    }
}

#[test]
fn a_flipped_bit_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let bed = bed(folder.path());
    fill(&bed, 0..40);
    let path = folder.path().join("objects");
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let needle = &content(7)[..64];
    let all = std::fs::read(folder.path().join("objects")).unwrap();
    let at = all.windows(needle.len()).position(|window| window == needle).unwrap();
    file.write_all_at(&[all[at] ^ 1], at as u64).unwrap();
    let before = bed.metric("cache_disk_corrupt");
    assert_eq!(bed.get(&url(7)).body, content(7), "fetched again");
    assert_eq!(bed.metric("cache_disk_corrupt"), before + 1);
}

/// How many objects [`child_that_writes`] goes through; more than the store has room for.
const WRITTEN: u64 = 200;

/// Not a test by itself: what [`a_killed_process_leaves_nothing_wrong`] kills. Says which object it has stored.
#[test]
fn child_that_writes() {
    let Some(folder) = std::env::var_os("EXPRESSWAY_CACHE_CHILD") else { return };
    let bed = bed(Path::new(&folder));
    for number in (0..WRITTEN).cycle() {
        bed.origin.set(&url(number), Resource::new(content(number), "max-age=600").etag("a").ranged());
        assert_eq!(bed.get(&url(number)).body, content(number));
        println!("stored {number}");
    }
}

#[test]
fn a_killed_process_leaves_nothing_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let mut hits = 0;
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "disk::child_that_writes", "--quiet", "--nocapture"])
            .env("EXPRESSWAY_CACHE_CHILD", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It is killed at some moment, when it has filled half of the store.
        let mut stored = BufReader::new(child.stdout.take().unwrap()).lines().filter_map(|line| {
            line.unwrap().strip_prefix("stored ").and_then(|number| number.parse::<u64>().ok())
        });
        assert_eq!(stored.by_ref().take(60).count(), 60);
        std::thread::sleep(Duration::from_millis(37 * round));
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        let last = stored.last().unwrap_or(59);
        // The newest first, because each that is missing is stored again and takes the place of the oldest.
        hits += assert_all_right(folder.path(), (0..WRITTEN).map(|age| (WRITTEN + last - age) % WRITTEN));
    }
    assert!(hits > 0, "something was found again");
}

#[test]
fn a_full_disk_stops_writing_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| {
        Command::new("mount").args(arguments).arg(folder.path()).status().is_ok_and(|s| s.success())
    };
    if !mount(&["-t", "tmpfs", "-o", "size=1m", "none"]) {
        assert!(std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_none(), "mounting needs root");
        eprintln!("skipped: mounting needs root");
        return;
    }
    {
        let bed = bed(folder.path());
        fill(&bed, 0..100);
        assert!(bed.metric("cache_disk_errors") > 0);
        assert_eq!(bed.metric("cache_disk_is_off"), 1);
        assert!(bed.metric("cache_disk_writes") > 0, "what fits is written");
        for number in 0..100 {
            assert_eq!(bed.get(&url(number)).body, content(number));
        }
    }
    assert_all_right(folder.path(), 0..100);
    assert!(Command::new("umount").arg(folder.path()).status().unwrap().success());
}
