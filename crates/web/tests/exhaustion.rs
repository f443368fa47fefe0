//! File descriptors run out. Alone in its process, for it lowers the process's limit.

mod common;

use std::fs::File;
use std::time::Duration;

use common::{fetch, get, site};
use expressway_web::Sites;
use expressway_web::files::{FileOptions, FileStore, FilesConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn the_open_file_cache_gives_way_and_then_503_answers() {
    let directory = tempfile::tempdir().unwrap();
    for i in 0..200 {
        std::fs::write(directory.path().join(i.to_string()), i.to_string()).unwrap();
    }
    let options = FileOptions { open_file_valid: Duration::from_secs(3600), ..FileOptions::default() };
    let store = FileStore::new(options).unwrap();
    let sites = Sites::new(&[site(FilesConfig::new(directory.path()))], &store).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    for i in 0..200 {
        let (head, body) = fetch(&sites, &get(&format!("/{i}")));
        assert_eq!(head.status, 200, "file {i}");
        assert_eq!(body, i.to_string().as_bytes());
    }
    // Now others hold all of them, and there is nothing to give way.
    let mut others = Vec::new();
    drop(sites);
    let sites = Sites::new(&[site(FilesConfig::new(directory.path()))], &store).unwrap();
    // A reader thread may still be letting go of the last file it opened, so the first attempts may succeed.
    let refused = (0..200).find(|i| {
        while let Ok(file) = File::open("/dev/null") {
            others.push(file);
        }
        let (head, _) = fetch(&sites, &get(&format!("/{i}")));
        assert!(head.status == 200 || head.status == 503);
        head.status == 503
    });
    assert!(refused.is_some());
    assert!(store.metrics().iter().any(|m| m.name == "lookups_exhausted" && m.value == 1));
    drop(others);
    assert_eq!(fetch(&sites, &get("/0")).0.status, 200);
}
