//! Programs pinned to cores, in an end of a lab.

use std::ffi::OsStr;
use std::ops::Range;
use std::process::Command;

use expressway_lab::{Lab, Role};

use crate::core_of;

/// A command that runs `program` in a namespace of the lab on these cores. The child's process ID is the program's:
/// `ip netns exec` and `taskset` replace themselves.
pub(crate) fn on_cores(lab: &Lab, side: Role, cores: Range<usize>, program: impl AsRef<OsStr>) -> Command {
    let mut command = match lab.host() {
        None => lab.command(side, "taskset"),
        // No lab goes that it would go with: it is killed with whoever started it.
        Some(_) => {
            let mut command = lab.command(side, "setpriv");
            command.args(["--pdeathsig", "KILL", "taskset"]);
            command
        }
    };
    command.args(["-c", &format!("{}-{}", cores.start, cores.end - 1)]).arg(program);
    command
}

/// The same on the first core of that side.
pub(crate) fn on_first_core(lab: &Lab, side: Role, program: impl AsRef<OsStr>) -> Command {
    let core = core_of(side);
    on_cores(lab, side, core..core + 1, program)
}
