//! What is made of raw files.

use std::path::Path;
use std::process::ExitCode;

use expressway_bench::{RawRun, html, markdown};

use super::failure;
use crate::args::{Bench, BenchReport};
use crate::fail::Failure;

/// Writes the reports of raw files.
pub(crate) fn report(arguments: &Bench, report: &BenchReport) -> Result<ExitCode, Failure> {
    let raw = RawRun::read(&report.raw).map_err(failure)?;
    write(&raw, &report.title, &arguments.out)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `report.md` and `report.html` into a folder, which is made.
pub(crate) fn write(raw: &RawRun, title: &str, folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::run_time(format!("{}: {error}", folder.display())))?;
    for (name, text) in [("report.md", markdown(raw, title)), ("report.html", html(raw, title))] {
        let path = folder.join(name);
        std::fs::write(&path, text)
            .map_err(|error| Failure::run_time(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}
