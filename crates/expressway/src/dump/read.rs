//! A capture file, printed or written anew.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use expressway_observe::file::{Interface, Reader, Seen};
use expressway_observe::{Direction, Filter};

use super::is_standard;
use super::live::Job;
use super::output::{End, Output};
use super::privilege;
use crate::args::{Directions, Dump as Arguments};
use crate::fail::Failure;

/// Interfaces of one file.
const INTERFACES: usize = 256;

/// Prints the packets of a file that the filter matches, or writes them to another.
pub(super) fn run(arguments: &Arguments, path: &Path, filter: Option<String>) -> Result<ExitCode, Failure> {
    let compiled = filter.as_deref().map(|text| Filter::compile(text, u32::MAX)).transpose();
    let compiled = compiled.map_err(Failure::usage)?;
    let reader = if is_standard(path) {
        Reader::read(Path::new("standard input"), std::io::stdin())
    } else {
        Reader::open(path)
    };
    let mut reader = reader.map_err(Failure::run_time)?;
    if let Some(output) = &arguments.write
        && is_same_file(path, output)
    {
        return Err(Failure::usage(format!("-w {}: this is the file being read", output.display())));
    }
    if let Some(name) = &arguments.relinquish_privileges {
        privilege::drop_all(name)?;
    }
    let output = Output::open(&arguments.text, &Job::of(arguments, filter))?;
    let mut copy = Copy { output, interfaces: HashMap::new(), left_out: 0, end: None };
    while copy.end.is_none() && arguments.count.is_none_or(|count| copy.output.handed() < count) {
        let more = reader.next(&mut |seen| {
            let wanted = match arguments.direction {
                Directions::Inout => true,
                wanted => seen.directed && is_wanted(wanted, seen.packet.point.direction()),
            };
            let matches = |filter: &Filter| filter.matches(seen.packet.data, seen.packet.length);
            if wanted && compiled.as_ref().is_none_or(matches) {
                copy.packet(seen);
            }
        });
        match more {
            Ok(true) => {}
            Ok(false) => break,
            // What was read before is printed all the same.
            Err(error) => copy.end = Some(End::Failed(Failure::run_time(error))),
        }
    }
    let finished = copy.output.finish().err();
    let left_out = reader.skipped() + copy.left_out;
    if left_out > 0 {
        eprintln!(
            "expressway: {}: {left_out} packets left out: unknown link type, interface or time",
            path.display()
        );
    }
    for end in [copy.end, finished].into_iter().flatten() {
        if let End::Failed(failure) = end {
            return Err(failure);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path| std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    !is_standard(one) && identity(one).is_some_and(|found| identity(other) == Some(found))
}

struct Copy {
    output: Output,
    /// Their numbers in the other file.
    interfaces: HashMap<String, u32>,
    left_out: u64,
    end: Option<End>,
}

impl Copy {
    fn packet(&mut self, seen: &Seen<'_>) {
        let id = match self.interfaces.get(seen.interface) {
            Some(id) => *id,
            None if self.interfaces.len() == INTERFACES => {
                self.left_out += 1;
                return;
            }
            None => {
                let id = self.output.interface(Interface::named(seen.interface, 0));
                self.interfaces.insert(seen.interface.to_owned(), id);
                id
            }
        };
        self.end = self.output.copy(id, seen).err();
    }
}

/// Whether packets of a direction are asked for.
pub(super) fn is_wanted(wanted: Directions, direction: Direction) -> bool {
    match wanted {
        Directions::Inout => true,
        Directions::In => direction == Direction::In,
        Directions::Out => direction == Direction::Out,
    }
}
