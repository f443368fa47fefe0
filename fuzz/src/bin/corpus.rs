//! What the corpus is made from, and what it costs.
//!
//! * `corpus seeds` writes the seeds of every target into its folder.
//! * `corpus costs [TARGET...]` prints what the inputs of each target cost, and as many mutations of each as the variable
//!   EXPRESSWAY_FUZZ_MUTATIONS says, and the share of the bound that this is.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use expressway_fuzz::cost::{self, Settled};
use expressway_fuzz::{TARGETS, Target, mutate, seeds};

/// As long as scripts/fuzz lets an input become.
const LONGEST: usize = 64 << 10;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.split_first() {
        Some((verb, [])) if verb == "seeds" => TARGETS.iter().try_for_each(write_seeds),
        Some((verb, names)) if verb == "costs" => {
            std::panic::set_hook(Box::new(|_| {}));
            let chosen = |target: &&Target| names.is_empty() || names.iter().any(|name| name == target.name);
            TARGETS.iter().filter(chosen).try_for_each(print_costs)
        }
        _ => Err("say `seeds`, or `costs [TARGET...]`".into()),
    }
}

fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// Inputs in which members of `bytes` are repeated.
fn mutations(bytes: &[u8]) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let count = std::env::var("EXPRESSWAY_FUZZ_MUTATIONS").map_or(Ok(0), |text| text.parse())?;
    let mut room = vec![0; LONGEST];
    let mutate = |seed: u32| {
        let mut size = bytes.len().min(LONGEST);
        room[..size].copy_from_slice(&bytes[..size]);
        for round in 0..1 + seed % 4 {
            size = mutate::mutate(&mut room, size, seed * 4 + round, |data, size| {
                // Without libFuzzer: a byte is another.
                if let Some(byte) = size.checked_sub(1).map(|last| &mut data[seed as usize % (last + 1)]) {
                    *byte = byte.wrapping_add(seed as u8);
                }
                size
            });
        }
        room[..size].to_vec()
    };
    Ok((0..count).map(mutate).collect())
}

fn write_seeds(target: &Target) -> Outcome {
    fs::create_dir_all(folder(target))?;
    for (name, bytes) in seeds::of(target.name) {
        fs::write(folder(target).join(name), bytes)?;
    }
    Ok(())
}

/// For each kind of cost the dearest input by its share of the bound, and the dearest by the byte of those of a KiB or more.
fn print_costs(target: &Target) -> Outcome {
    let mut all: Vec<(String, Settled)> = Vec::new();
    let (mut failed, mut tried) = (0, 0);
    let mut listing: Vec<_> = fs::read_dir(folder(target))?.collect::<Result<_, _>>()?;
    listing.sort_by_key(fs::DirEntry::file_name);
    for entry in listing {
        let name = entry.file_name().to_string_lossy().into_owned();
        let bytes = fs::read(entry.path())?;
        for (number, input) in std::iter::once(bytes.clone()).chain(mutations(&bytes)?).enumerate() {
            cost::take_settled();
            tried += 1;
            if let Err(panic) = std::panic::catch_unwind(|| target.run(&input)) {
                failed += 1;
                let text = panic.downcast_ref::<String>().map_or("a panic", String::as_str);
                println!("{} {name}+{number}: {text}", target.name);
            }
            all.extend(cost::take_settled().into_iter().map(|settled| (format!("{name}+{number}"), settled)));
        }
    }
    println!("{}: {failed} of {tried} inputs fail", target.name);
    for kind in 0..4 {
        let share = |settled: &Settled| settled.kinds()[kind].1 as f64 / settled.limit(kind).max(1) as f64;
        let each = |settled: &Settled| settled.kinds()[kind].1 as f64 / settled.size.max(1) as f64;
        let best = |of: &dyn Fn(&Settled) -> f64, least: u64| {
            let long = all.iter().filter(|(_, settled)| settled.size >= least);
            long.max_by(|(_, one), (_, other)| of(one).total_cmp(&of(other)))
        };
        for (what, found) in [("of the bound", best(&share, 0)), ("a byte", best(&each, 1024))] {
            let Some((name, settled)) = found else { continue };
            let (label, cost, (a, b)) = settled.kinds()[kind];
            println!(
                "  {label:16} {cost:>10} at {:>6} bytes: {:>9.2} a byte, {:>3.0} % of {a} n + {b} (most {what}: {name})",
                settled.size,
                each(settled),
                share(settled) * 100.0
            );
        }
    }
    Ok(())
}
