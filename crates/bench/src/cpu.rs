//! CPU time as the scheduler accounts it: nanoseconds on a core, of processes and of NAPI threads.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::{BenchError, io_error};

/// Nanoseconds that a process and all its descendants have run, all threads, user and kernel.
///
/// A thread that has ended no longer counts: servers here keep theirs.
pub(crate) fn of_tree(root: u32) -> Result<u64, BenchError> {
    let mut total = 0;
    for process in tree(root)? {
        let tasks = format!("/proc/{process}/task");
        for task in fs::read_dir(&tasks).map_err(io_error(&tasks))?.flatten() {
            total += run_time(&task.path().join("schedstat").to_string_lossy());
        }
    }
    Ok(total)
}

/// Nanoseconds that kernel threads have run.
pub(crate) fn of_threads(threads: &BTreeSet<u32>) -> u64 {
    threads.iter().map(|thread| run_time(&format!("/proc/{thread}/schedstat"))).sum()
}

/// The first number of a schedstat file (Documentation/scheduler/sched-stats.rst); 0 if the task has ended.
fn run_time(file: &str) -> u64 {
    fs::read_to_string(file).ok().and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0)
}

fn tree(root: u32) -> Result<Vec<u32>, BenchError> {
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let process = found[next];
        next += 1;
        let tasks = format!("/proc/{process}/task");
        for task in fs::read_dir(&tasks).map_err(io_error(&tasks))?.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    Ok(found)
}

/// Resident memory of a process tree in bytes, without pages shared with files.
pub(crate) fn anonymous_memory(root: u32) -> Result<u64, BenchError> {
    let mut total = 0;
    for process in tree(root)? {
        let file = format!("/proc/{process}/status");
        let text = fs::read_to_string(&file).map_err(io_error(&file))?;
        let kilobytes = text
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        total += kilobytes.unwrap_or(0) * 1024;
    }
    Ok(total)
}

/// The NAPI threads of all interfaces of this name, in whatever namespace.
pub(crate) fn napi_threads(interface: &str) -> Result<BTreeSet<u32>, BenchError> {
    let prefix = format!("napi/{interface}-");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").map_err(io_error("/proc"))?.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| name.starts_with(&prefix)) {
            found.insert(id);
        }
    }
    Ok(found)
}

/// Pins threads to a core. Attaching an XDP program may have the kernel make new, unpinned NAPI threads.
pub(crate) fn pin(threads: &BTreeSet<u32>, core: usize) -> Result<(), BenchError> {
    let mut set = CpuSet::new();
    set.set(core);
    for thread in threads {
        let pid = Pid::from_raw(*thread as i32);
        sched_setaffinity(pid, &set)
            .map_err(|error| io_error(format!("pin thread {thread}"))(error.into()))?;
    }
    Ok(())
}
