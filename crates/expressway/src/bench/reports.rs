//! Reports from raw files.

use std::path::Path;
use std::process::ExitCode;

use expressway_bench::{
    PICTURE, RawRun, Traffic, Verdict, calculate, changes_as_text, compare, html, markdown, needs_as_text,
    picture,
};

use super::failure;
use crate::args::{Bench, BenchCalculate, BenchReport};
use crate::fail::Failure;
use crate::print;

/// Writes the reports of raw files.
pub(crate) fn report(arguments: &Bench, report: &BenchReport) -> Result<ExitCode, Failure> {
    let raw = RawRun::read(&report.raw).map_err(failure)?;
    write(&raw, &report.title, &arguments.out)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what has changed between two raw files.
pub(crate) fn compared(arguments: &Bench, old: &Path, new: &Path) -> Result<ExitCode, Failure> {
    let (old, new) = (RawRun::read(&[old]).map_err(failure)?, RawRun::read(&[new]).map_err(failure)?);
    let changes = compare(&old, &new);
    if changes.is_empty() {
        return Err(Failure::usage("bench: the two files have no Expressway results in common to compare"));
    }
    match arguments.json {
        true => print(&format!("{}\n", serde_json::json!(changes)))?,
        false => print(&changes_as_text(&old, &new, &changes))?,
    }
    let worse = changes.iter().any(|change| change.verdict == Verdict::Worse);
    Ok(if worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints cores and money for somebody's traffic.
pub(crate) fn calculated(arguments: &Bench, wanted: &BenchCalculate) -> Result<ExitCode, Failure> {
    let raw = RawRun::read(&[&wanted.raw]).map_err(failure)?;
    let traffic = Traffic {
        gbps: wanted.gbps,
        hours: wanted.hours,
        core_cost: wanted.core_cost,
        utilisation: f64::from(wanted.utilisation) / 100.0,
    };
    let from = wanted.from.as_deref();
    let needs = calculate(&raw, &traffic, from)
        .map_err(|problem| Failure::usage(format!("{}: {problem}", wanted.raw.display())))?;
    match arguments.json {
        true => print(&format!("{}\n", serde_json::json!({ "traffic": traffic, "needs": needs })))?,
        false => print(&needs_as_text(&raw, &traffic, from, &needs))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes `report.md` with its picture and `report.html` into a folder, creating it.
pub(crate) fn write(raw: &RawRun, title: &str, folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::run_time(format!("{}: {error}", folder.display())))?;
    let mut files = vec![("report.md", markdown(raw, title)), ("report.html", html(raw, title))];
    files.extend(picture(raw).map(|svg| (PICTURE, svg)));
    for (name, text) in files {
        let path = folder.join(name);
        std::fs::write(&path, text)
            .map_err(|error| Failure::run_time(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}
