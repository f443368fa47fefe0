//! No request, however spelled, reads a file outside the root.

use std::os::unix::fs::symlink;

use expressway_web::Sites;
use expressway_web::files::{Encoding, FileOptions, FileStore, FilesConfig, Symlinks};
use proptest::prelude::*;

use crate::common::{fetch, request, site};

const SECRET: &[u8] = b"outside the root";

struct World {
    _directory: tempfile::TempDir,
    sites: Vec<Sites>,
}

/// A root full of ways out, beside secrets under every name that the root uses.
fn world() -> World {
    let directory = tempfile::tempdir().unwrap();
    let top = directory.path();
    let root = top.join("root");
    std::fs::create_dir_all(root.join("dir/deep")).unwrap();
    std::fs::create_dir_all(top.join("dir")).unwrap();
    for name in ["a", "a.gz", "index.html", "dir/a", "dir/index.html", "secret"] {
        std::fs::write(top.join(name), SECRET).unwrap();
    }
    for name in ["a", "dir/a", "dir/deep/a"] {
        std::fs::write(root.join(name), "inside").unwrap();
    }
    symlink("..", root.join("up")).unwrap();
    symlink("../..", root.join("dir/up")).unwrap();
    symlink("../secret", root.join("link")).unwrap();
    symlink(top.join("secret"), root.join("absolute")).unwrap();
    symlink("/", root.join("slash")).unwrap();
    symlink("dir", root.join("inner")).unwrap();
    symlink("../secret", root.join("dir/index.html")).unwrap();
    symlink("../a.gz", root.join("a.gz")).unwrap();
    symlink("/proc/self/root", root.join("magic")).unwrap();
    symlink("up", root.join("twice")).unwrap();
    let sites = [
        (Symlinks::Deny, true),
        (Symlinks::Beneath, true),
        (Symlinks::Deny, false),
        (Symlinks::Beneath, false),
    ]
    .map(|(symlinks, try_on_worker)| {
        let options = FileOptions { try_on_worker, ..FileOptions::default() };
        let mut files = FilesConfig::new(&root);
        files.symlinks = symlinks;
        files.precompressed = vec![Encoding::Gzip];
        Sites::new(&[site(files)], &FileStore::new(options).unwrap()).unwrap()
    });
    World { _directory: directory, sites: sites.into() }
}

/// Segments, separators and their disguises.
fn target() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "dir",
        "deep",
        "up",
        "link",
        "absolute",
        "slash",
        "inner",
        "magic",
        "twice",
        "secret",
        "root",
        "tmp",
        "..",
        ".",
        "...",
        "%2e%2e",
        "%2E.",
        ".%2e",
        "%252e%252e",
        "%c0%ae%c0%ae",
        "..\\",
        "%5c..",
        "index.html",
        "",
        "%00",
        "..%00",
        "..;",
        "..%20",
        "proc",
        "self",
        "cwd",
    ]);
    let separator = prop::sample::select(vec!["/", "/", "/", "//", "%2f", "%2F", "\\", "%5c", "%252f"]);
    prop::collection::vec((separator, piece), 0..10).prop_map(|parts| {
        format!("/{}", parts.into_iter().map(|(s, p)| format!("{s}{p}")).collect::<String>())
    })
}

#[test]
fn no_target_leads_out() {
    let world = world();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let mut inside = 0;
    runner
        .run(&target(), |target| {
            for sites in &world.sites {
                let ask = request("GET", "", &target, &[("accept-encoding", "gzip")]);
                let (head, body) = fetch(sites, &ask);
                prop_assert!(
                    !body.windows(SECRET.len()).any(|window| window == SECRET),
                    "{target}: {head:?}"
                );
                prop_assert!(head.status != 200 || body == b"inside", "{target}: {head:?}");
                prop_assert!(head.status != 500);
            }
            Ok(())
        })
        .unwrap();
    for target in ["/a", "/dir/a", "/dir/deep/../a", "//dir//deep/%2e%2e/a"] {
        inside += usize::from(fetch(&world.sites[0], &request("GET", "", target, &[])).1 == b"inside");
    }
    assert_eq!(inside, 4, "what is inside is served");
    for target in [
        "/link",
        "/absolute",
        "/up/secret",
        "/dir/up/secret",
        "/slash/etc/passwd",
        "/dir/",
        "/magic/etc/passwd",
    ] {
        for sites in &world.sites {
            assert_eq!(fetch(sites, &request("GET", "", target, &[])).0.status, 403, "{target}");
        }
    }
}
