//! The corpus is what the targets and their seeds say.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use expressway_fuzz::{TARGETS, seeds};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_seed_is_in_the_corpus() {
    for target in TARGETS {
        let seeds = seeds::of(target.name);
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        for (name, bytes) in seeds {
            let file = root().join("corpus").join(target.name).join(name);
            let stored = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert_eq!(stored, bytes, "{} is stale: run `cargo run --bin corpus seeds`", file.display());
        }
    }
}

#[test]
fn targets_and_corpus_folders_are_the_same_set() {
    let listing = fs::read_dir(root().join("corpus")).expect("the corpus");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name().into_string();
    let folders: BTreeSet<String> = listing.map(|entry| name(entry).expect("UTF-8")).collect();
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(folders, targets);
}
