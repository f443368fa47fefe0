//! Files that are rewritten in place: whatever their times say, old content is not served for new.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use expressway_web::files::{FileOptions, FileStore, FilesConfig};
use expressway_web::{BodyError, Sites};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::common::{self, Client, fetch, get, request, settle, site};

const BLOCK: usize = 4096;

fn serve(root: &Path, valid: Duration) -> Sites {
    let options = FileOptions { block_bytes: BLOCK, open_file_valid: valid, ..FileOptions::default() };
    Sites::new(&[site(FilesConfig::new(root))], &FileStore::new(options).unwrap()).unwrap()
}

fn put_back(path: &Path, modified: i64) {
    let time = Timespec { tv_sec: modified, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

fn rewrite(path: &Path, octet: u8) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&vec![octet; 2 * BLOCK], 0).unwrap();
}

fn is_of(body: &[u8], octet: u8) -> bool {
    body.len() == 2 * BLOCK && body.iter().all(|&one| one == octet)
}

#[test]
fn content_with_its_modification_time_put_back_is_new_content() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    std::fs::write(&path, vec![b'1'; 2 * BLOCK]).unwrap();
    put_back(&path, 784_111_777);
    settle();
    let sites = serve(directory.path(), Duration::ZERO);
    for octet in b'1'..b'9' {
        rewrite(&path, octet);
        put_back(&path, 784_111_777);
        let (head, body) = fetch(&sites, &get("/a"));
        assert!(is_of(&body, octet), "the content of round {}", octet as char);
        assert_eq!(head.headers["etag"], "\"2ebc98a1-2000\"", "which is what nginx says too");
        if octet == b'4' {
            settle();
        }
    }
}

#[test]
fn a_body_does_not_go_on_with_content_whose_modification_time_was_put_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a");
    std::fs::write(&path, vec![b'1'; 2 * BLOCK]).unwrap();
    put_back(&path, 784_111_777);
    settle();
    for valid in [Duration::ZERO, Duration::from_secs(3600)] {
        let sites = serve(directory.path(), valid);
        let mut client = Client::start(&sites, &get("/a"));
        client.head();
        assert_eq!(client.chunk(BLOCK).unwrap().unwrap().len(), BLOCK);
        rewrite(&path, b'2');
        put_back(&path, 784_111_777);
        assert_eq!(client.chunk(BLOCK), Some(Err(BodyError::Changed)));
    }
}

/// What is asked of a file that is rewritten again and again, so fast that a file system without fine times cannot tell
/// the versions apart.
fn rewritten_in_a_row(root: &Path) {
    let path = root.join("a");
    std::fs::write(&path, vec![0; 2 * BLOCK]).unwrap();
    for valid in [Duration::ZERO, Duration::from_millis(1)] {
        let sites = serve(root, valid);
        let mut same = 0;
        for round in 0..500_u32 {
            let octet = (round % 250) as u8;
            rewrite(&path, octet);
            let time = std::fs::metadata(&path).map(|found| (found.mtime(), found.mtime_nsec())).unwrap();
            let (head, body) = fetch(&sites, &get("/a"));
            // While an open file is kept it may be an older version, but never parts of two.
            let expected = if valid.is_zero() { octet } else { body[0] };
            assert!(is_of(&body, expected), "round {round}: {:?}", body.first());
            rewrite(&path, octet + 1);
            let after = std::fs::metadata(&path).map(|found| (found.mtime(), found.mtime_nsec())).unwrap();
            same += usize::from(time == after);
            let etag = head.headers["etag"].to_str().unwrap().to_owned();
            assert!(etag.starts_with("W/"), "{etag}");
            let again = request("GET", "", "/a", &[("if-none-match", &etag)]);
            let (head, body) = fetch(&sites, &again);
            if valid.is_zero() {
                assert_eq!(head.status, 200, "round {round}: {etag} is good no more");
                assert!(is_of(&body, octet + 1), "round {round}: {:?}", body.first());
            }
        }
        eprintln!("{}: {same} of 500 rewrites left the modification time as it was", root.display());
    }
}

#[test]
fn a_file_rewritten_in_a_row_is_served_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    rewritten_in_a_row(directory.path());
}

/// The same on ramfs, which has the kernel's ticks for times, also since most others have better ones (Linux 6.13).
#[test]
fn a_file_rewritten_within_a_tick_is_served_as_it_is() {
    const ROOT: &str = "EXPRESSWAY_TEST_RAMFS";
    if let Some(root) = std::env::var_os(ROOT) {
        return rewritten_in_a_row(Path::new(&root));
    }
    if !rustix::process::geteuid().is_root() {
        return common::skip("root, to mount ramfs in a mount namespace");
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "mount -t ramfs ramfs \"$1\" && exec \"$2\" --exact \"$3\" --nocapture";
    let name = "rewriting::a_file_rewritten_within_a_tick_is_served_as_it_is";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env(ROOT, directory.path())
        .output()
        .expect("unshare of util-linux");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

#[test]
fn a_file_just_changed_has_a_weak_etag_and_no_date() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), "just now").unwrap();
    let sites = serve(directory.path(), Duration::ZERO);
    let (head, _) = fetch(&sites, &get("/a"));
    assert!(head.headers["etag"].as_bytes().starts_with(b"W/\""), "{:?}", head.headers);
    assert!(!head.headers.contains_key("last-modified"));
    settle();
    let (later, _) = fetch(&sites, &get("/a"));
    assert!(later.headers["etag"].as_bytes().starts_with(b"\""), "{:?}", later.headers);
    assert!(later.headers.contains_key("last-modified"));
    let etag = head.headers["etag"].to_str().unwrap();
    let (head, _) = fetch(&sites, &request("GET", "", "/a", &[("if-none-match", etag)]));
    assert_eq!(head.status, 200, "what the first was of may have changed in between");
}
