//! What nginx cannot be asked: Brotli, hidden files, hosts, special files, scarce descriptors.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use expressway_web::files::{Encoding, FileOptions, FileStore, FilesConfig, Symlinks};
use expressway_web::{SiteConfig, SiteError, Sites};

use crate::common::{self, fetch, get, request, site};

fn serve(files: FilesConfig) -> Sites {
    Sites::new(&[site(files)], &FileStore::new(FileOptions::default()).unwrap()).unwrap()
}

fn status(sites: &Sites, target: &str) -> u16 {
    fetch(sites, &get(target)).0.status.as_u16()
}

fn text(sites: &Sites, authority: &str) -> String {
    String::from_utf8(fetch(sites, &request("GET", authority, "/", &[])).1).unwrap()
}

#[test]
fn siblings_are_chosen_by_weight_then_by_our_order() {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in [("a.js", "plain"), ("a.js.br", "brotli"), ("a.js.gz", "gzip"), ("b.js", "plain")]
    {
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    let mut files = FilesConfig::new(directory.path());
    files.precompressed = vec![Encoding::Brotli, Encoding::Gzip];
    let sites = serve(files);
    for (accept, body, coding) in [
        ("gzip, br", "brotli", Some("br")),
        ("gzip", "gzip", Some("gzip")),
        ("br;q=0.5, gzip", "gzip", Some("gzip")),
        ("deflate", "plain", None),
    ] {
        let (head, octets) = fetch(&sites, &request("GET", "", "/a.js", &[("accept-encoding", accept)]));
        assert_eq!(octets, body.as_bytes());
        assert_eq!(head.headers.get("content-encoding").map(|v| v.to_str().unwrap()), coding);
        assert_eq!(head.headers["vary"], "Accept-Encoding");
        assert_eq!(head.headers["content-type"], "text/javascript");
    }
    let (head, _) = fetch(&sites, &request("GET", "", "/b.js", &[("accept-encoding", "br")]));
    assert!(!head.headers.contains_key("vary"), "nothing to choose from");
}

#[test]
fn names_with_a_dot_are_served_only_if_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    for folder in [".git", ".well-known"] {
        std::fs::create_dir(directory.path().join(folder)).unwrap();
        std::fs::write(directory.path().join(folder).join("x"), "x").unwrap();
    }
    let mut files = FilesConfig::new(directory.path());
    let sites = serve(files.clone());
    for target in ["/.git/x", "/%2egit/x", "/.well-known/../.git/x", "/.git", "/.git/", "/.none"] {
        assert_eq!(status(&sites, target), 404, "{target}");
    }
    assert_eq!(status(&sites, "/.well-known/x"), 200);
    files.hidden = true;
    let sites = serve(files);
    assert_eq!(status(&sites, "/.git/x"), 200);
    assert_eq!(status(&sites, "/.well-known/x"), 200);
}

#[test]
fn head_has_no_ranges() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), "0123456789").unwrap();
    let sites = serve(FilesConfig::new(directory.path()));
    for range in ["bytes=0-1", "bytes=0-1,4-5", "bytes=99-", "bytes=x"] {
        let (head, body) = fetch(&sites, &request("HEAD", "", "/a", &[("range", range)]));
        assert_eq!((head.status.as_u16(), body.len()), (200, 0), "{range}");
        assert_eq!(head.headers["content-length"], "10");
        assert_eq!(head.headers["accept-ranges"], "bytes");
        assert!(!head.headers.contains_key("content-range"));
        assert_ne!(fetch(&sites, &request("GET", "", "/a", &[("range", range)])).0.status, 200);
    }
}

#[test]
fn special_files_are_not_there() {
    let directory = tempfile::tempdir().unwrap();
    symlink("/dev/null", directory.path().join("null")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
    let mut files = FilesConfig::new(directory.path());
    files.symlinks = Symlinks::Follow;
    let sites = serve(files);
    assert_eq!(status(&sites, "/null"), 404);
    assert_eq!(status(&sites, "/socket"), 404);
}

#[test]
fn links_are_denied_kept_beneath_or_followed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(directory.path().join("outside"), "outside").unwrap();
    std::fs::write(root.join("inside"), "inside").unwrap();
    symlink("inside", root.join("in")).unwrap();
    symlink("../outside", root.join("out")).unwrap();
    for (symlinks, inward, outward) in
        [(Symlinks::Deny, 403, 403), (Symlinks::Beneath, 200, 403), (Symlinks::Follow, 200, 200)]
    {
        let sites = serve(FilesConfig { symlinks, ..FilesConfig::new(&root) });
        assert_eq!((status(&sites, "/in"), status(&sites, "/out")), (inward, outward), "{symlinks:?}");
    }
}

#[test]
fn methods_that_files_lack_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let (head, body) = fetch(&serve(FilesConfig::new(directory.path())), &request("DELETE", "", "/", &[]));
    assert_eq!(head.status, 405);
    assert_eq!(head.headers["allow"], "GET, HEAD");
    assert_eq!(body, b"405 Method Not Allowed\n");
}

#[test]
fn hosts_choose_sites() {
    let directory = tempfile::tempdir().unwrap();
    let site = |name: &str, hosts: &[&str]| {
        let root = directory.path().join(name);
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("index.html"), name).unwrap();
        SiteConfig::new(hosts.iter().map(|&host| host.to_owned()).collect(), FilesConfig::new(root))
    };
    let configs = [
        site("default", &[]),
        site("exact", &["www.example", "[2001:db8::1]"]),
        site("wild", &["*.example"]),
        site("deeper", &["*.media.example"]),
    ];
    let sites = Sites::new(&configs, &FileStore::new(FileOptions::default()).unwrap()).unwrap();
    for (authority, expected) in [
        ("", "default"),
        ("elsewhere", "default"),
        ("example", "default"),
        ("WWW.Example:443", "exact"),
        ("[2001:db8::1]:443", "exact"),
        ("a.example", "wild"),
        ("a.b.example.", "wild"),
        ("a.media.example", "deeper"),
    ] {
        assert_eq!(text(&sites, authority), expected, "{authority}");
    }
    assert_eq!(fetch(&sites, &request("GET", "a b", "/", &[])).0.status, 400);
    let long = format!("/{}", "a".repeat(8192));
    assert_eq!(fetch(&sites, &get(&long)).0.status, 414);
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = FileStore::new(FileOptions::default()).unwrap();
    let site = |hosts: &[&str], root: &Path| {
        SiteConfig::new(hosts.iter().map(|&host| host.to_owned()).collect(), FilesConfig::new(root))
    };
    let (good, missing) = (directory.path(), Path::new("/nonexistent"));
    let error = |configs: &[SiteConfig]| Sites::new(configs, &store).unwrap_err();
    assert!(matches!(error(&[]), SiteError::Empty));
    assert!(matches!(error(&[site(&[], missing)]), SiteError::Root { site: 0, .. }));
    assert!(matches!(error(&[site(&["a b"], good)]), SiteError::InvalidHost { site: 0, .. }));
    assert!(matches!(error(&[site(&["a:443"], good)]), SiteError::InvalidHost { .. }));
    assert!(matches!(error(&[site(&[], good), site(&[], good)]), SiteError::NoHosts { site: 1 }));
    let twice = [site(&["a", "b"], good), site(&["B"], good)];
    assert!(matches!(error(&twice), SiteError::DuplicateHost { first: 0, second: 1, .. }));
    let served = |change: fn(&mut FilesConfig)| {
        let mut files = FilesConfig::new(good);
        change(&mut files);
        SiteConfig::new(Vec::new(), files)
    };
    let odd = served(|files| files.index = vec!["../index.html".to_owned()]);
    assert!(error(&[odd]).to_string().contains("../index.html"));
    let reserved = served(|files| {
        files.headers = vec![(http::header::CONTENT_LENGTH, http::HeaderValue::from_static("5"))];
    });
    assert!(error(&[reserved]).to_string().contains("content-length"));
    let options = FileOptions { block_bytes: 5000, ..FileOptions::default() };
    assert!(FileStore::new(options).unwrap_err().to_string().contains("block_bytes is 5000"));
}

#[test]
fn a_reload_forgets_the_open_files_of_old_sites() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), "a").unwrap();
    let options = FileOptions { open_file_valid: Duration::from_secs(3600), ..FileOptions::default() };
    let store = FileStore::new(options).unwrap();
    let sites = Sites::new(&[site(FilesConfig::new(directory.path()))], &store).unwrap();
    fetch(&sites, &get("/a"));
    let held = || store.metrics().iter().find(|m| m.name == "open_file_cache_descriptors").unwrap().value;
    assert_eq!(held(), 1);
    drop(sites);
    assert_eq!(held(), 0);
}

/// Whoever asks for what is not there takes nothing from those who ask for what is.
#[test]
fn a_storm_of_missing_paths_evicts_nothing() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), "a").unwrap();
    common::settle();
    for try_on_worker in [true, false] {
        let options = FileOptions {
            open_files: 4,
            open_file_valid: Duration::from_secs(3600),
            try_on_worker,
            ..FileOptions::default()
        };
        let store = FileStore::new(options).unwrap();
        let mut files = FilesConfig::new(directory.path());
        files.precompressed = vec![Encoding::Gzip];
        let sites = Sites::new(&[site(files)], &store).unwrap();
        let metric = |name: &str| store.metrics().iter().find(|m| m.name == name).unwrap().value;
        assert_eq!(status(&sites, "/a"), 200);
        let long = format!("/{}", "n".repeat(255));
        for i in 0..2000 {
            assert_eq!(status(&sites, &format!("/{i}")), 404);
            assert_eq!(status(&sites, &format!("{long}/{i}/../a")), 404);
        }
        assert_eq!(status(&sites, "/a"), 200);
        assert_eq!(metric("open_file_cache_hits"), 1, "it was kept");
        assert_eq!((metric("open_file_cache_descriptors"), metric("open_files")), (1, 1));
    }
}
