//! Runs the committed corpus through the targets. Alone in its process, for all threads count towards cost.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use expressway_fuzz::{TARGETS, cost};

#[test]
fn every_corpus_file_passes_and_costs_no_more_than_it_may() {
    assert!(cost::counts_steps(), "no steps are counted: run in fuzz/, whose .cargo/config.toml instruments");
    let mut failed = Vec::new();
    for target in TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        let listing = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut files: Vec<_> = listing.map(|entry| entry.expect("directory entry").path()).collect();
        assert!(!files.is_empty(), "the corpus of {} is empty", target.name);
        files.sort();
        for file in files {
            let bytes = fs::read(&file).expect("corpus file");
            if catch_unwind(AssertUnwindSafe(|| target.run(&bytes))).is_err() {
                failed.push(file);
            }
        }
    }
    assert!(failed.is_empty(), "inputs that fail: {failed:#?}");
}
