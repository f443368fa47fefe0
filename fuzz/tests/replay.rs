//! Runs the committed corpus through the bodies of the targets, on any toolchain.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use expressway_fuzz::{TARGETS, seeds};

fn entries(folder: &Path) -> Vec<PathBuf> {
    let listing = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = listing.map(|entry| entry.expect("directory entry").path()).collect();
    paths.sort();
    paths
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_corpus_file_passes() {
    let mut failed = Vec::new();
    for (target, body) in TARGETS {
        let files = entries(&root().join("corpus").join(target));
        assert!(!files.is_empty(), "the corpus of {target} is empty");
        for file in files {
            let bytes = fs::read(&file).expect("corpus file");
            if catch_unwind(AssertUnwindSafe(|| body(&bytes))).is_err() {
                failed.push(file);
            }
        }
    }
    assert!(failed.is_empty(), "inputs that fail: {failed:#?}");
}

#[test]
fn every_seed_is_in_the_corpus() {
    for (target, _) in TARGETS {
        let seeds = seeds::of(target);
        assert!(!seeds.is_empty(), "{target} has no seeds");
        for (name, bytes) in seeds {
            let file = root().join("corpus").join(target).join(name);
            let stored = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert_eq!(stored, bytes, "{} is stale: run `cargo run --bin seed_corpus`", file.display());
        }
    }
}

#[test]
fn targets_binaries_and_corpus_folders_are_the_same_set() {
    let stems = |folder: &str| -> BTreeSet<String> {
        let stem = |path: PathBuf| path.file_stem().expect("a name").to_string_lossy().into_owned();
        entries(&root().join(folder)).into_iter().map(stem).collect()
    };
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(stems("corpus"), targets);
    assert_eq!(stems("fuzz_targets"), targets);
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("manifest");
    for target in &targets {
        assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is no [[bin]]");
    }
}
