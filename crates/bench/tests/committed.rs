//! BENCHMARKS.md is what the committed raw files say, and nothing else.

use std::path::{Path, PathBuf};

use expressway_bench::{MADE_BY, PICTURE, RawRun, markdown, picture};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn benchmarks_md_is_made_from_the_committed_raw_files() {
    let page = std::fs::read_to_string(root().join("BENCHMARKS.md")).unwrap();
    let Ok(folder) = std::fs::read_dir(root().join("benchmarks")) else {
        assert!(
            !page.contains(MADE_BY),
            "BENCHMARKS.md says that it was made from benchmarks/*.jsonl, and there are none"
        );
        return;
    };
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    let raw = RawRun::read(&files).unwrap_or_else(|error| panic!("{error}"));
    assert!(
        raw.environments.iter().all(|one| one.build == "release"),
        "a raw file of a debug build was committed"
    );
    let made =
        markdown(&raw, "Benchmarks").replace(&format!("({PICTURE})"), &format!("(benchmarks/{PICTURE})"));
    let drawn = std::fs::read_to_string(root().join("benchmarks").join(PICTURE)).ok();
    if page != made || drawn != picture(&raw) {
        panic!(
            "BENCHMARKS.md differs from what benchmarks/*.jsonl say: run scripts/tour --report and commit both"
        );
    }
}
