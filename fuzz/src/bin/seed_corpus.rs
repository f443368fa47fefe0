//! Writes the seeds of every target into `corpus/`, beside what fuzzers have found.

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, _) in expressway_fuzz::TARGETS {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in expressway_fuzz::seeds::of(target) {
            fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
