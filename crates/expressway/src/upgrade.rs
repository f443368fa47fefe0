//! `expressway upgrade`: asks a running `serve` by its admin listener to put the binary on disk in its place, and tells what comes of it.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use crate::admin::{Admin, Part};
use crate::args::Upgrade as Arguments;
use crate::fail::Failure;

/// How long one waits for a line at a time; how long all takes is for the process to say.
const PATIENCE: Duration = Duration::from_secs(1);

/// Upgrades.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let admin = Admin::of(&arguments.peer)?;
    let mut lines = admin.order("/upgrade", "{}")?;
    let failed = |error: std::io::Error| {
        admin.failure(&format!("the connection was lost during the upgrade: {error}"))
    };
    lines.set_patience(PATIENCE).map_err(failed)?;
    loop {
        match lines.poll().map_err(failed)? {
            Part::Nothing => {}
            Part::End => {
                return Err(
                    admin.failure("the process did not report the outcome of the upgrade: see its log")
                );
            }
            Part::Line(line) => {
                let line: Value = serde_json::from_str(&line)
                    .map_err(|error| admin.failure(&format!("unexpected answer to /upgrade: {error}")))?;
                if let Some(error) = line["error"].as_str() {
                    return Err(Failure::run_time(format!("upgrade: {error}")));
                }
                if let (Some(generation), Some(pid)) = (line["generation"].as_u64(), line["pid"].as_u64()) {
                    crate::print(&format!("generation={generation} pid={pid}\n"))?;
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
    }
}
