//! CPU time as the scheduler accounts it: nanoseconds on a core, by process and by NAPI thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::process::Command;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

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

/// Nanoseconds that each kernel worker bound to a core has run, including those that send what the kernel forwards and any
/// other work queued there.
pub(crate) fn of_kworkers(core: usize) -> Result<BTreeMap<u32, u64>, BenchError> {
    let prefix = format!("kworker/{core}:");
    let workers = named(|name| name.starts_with(&prefix))?;
    Ok(workers.into_iter().map(|worker| (worker, run_time(&format!("/proc/{worker}/schedstat")))).collect())
}

/// The first number of a schedstat file (Documentation/scheduler/sched-stats.rst); 0 if the task has ended.
fn run_time(file: &str) -> u64 {
    fs::read_to_string(file).ok().and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0)
}

/// A process and its descendants.
pub(crate) fn tree(root: u32) -> Result<Vec<u32>, BenchError> {
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

/// The NAPI threads of all interfaces of this name, in all namespaces.
pub(crate) fn napi_threads(interface: &str) -> Result<BTreeSet<u32>, BenchError> {
    let prefix = format!("napi/{interface}-");
    named(|name| name.starts_with(&prefix))
}

/// Pins the NAPI threads of the interface of this name, except `others`, to the cores in turn and returns them. Their order
/// is that of the NAPI instances, and so of the queues.
pub(crate) fn pin_in_turn(
    interface: &str,
    others: &BTreeSet<u32>,
    cores: Range<usize>,
) -> Result<BTreeSet<u32>, BenchError> {
    let threads: BTreeSet<u32> = napi_threads(interface)?.difference(others).copied().collect();
    let mut in_order: Vec<(u32, u32)> =
        threads.iter().map(|thread| (napi_id(&comm(*thread)), *thread)).collect();
    in_order.sort_unstable();
    for ((_, thread), core) in in_order.iter().zip(cores.cycle()) {
        pin(&BTreeSet::from([*thread]), core)?;
    }
    Ok(threads)
}

fn comm(task: u32) -> String {
    fs::read_to_string(format!("/proc/{task}/comm")).unwrap_or_default()
}

/// The number of the NAPI instance in the name of its thread, `napi/IFACE-ID` (net/core/dev.c, napi_kthread_create).
fn napi_id(name: &str) -> u32 {
    name.trim_end().rsplit('-').next().and_then(|id| id.parse().ok()).unwrap_or(0)
}

/// The tasks whose name matches.
fn named(wanted: impl Fn(&str) -> bool) -> Result<BTreeSet<u32>, BenchError> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").map_err(io_error("/proc"))?.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if fs::read_to_string(entry.path().join("comm")).is_ok_and(|name| wanted(name.trim_end())) {
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

/// Gives threads priority over every ordinary one on their core (SCHED_FIFO), as the softirqs that they replace have.
pub(crate) fn run_first(threads: &BTreeSet<u32>) -> Result<(), BenchError> {
    for thread in threads {
        let mut chrt = Command::new("chrt");
        let output = chrt.args(["--fifo", "--pid", "1", &thread.to_string()]).output();
        let output = output.map_err(io_error("chrt"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(BenchError::Missing(format!("chrt: NAPI thread {thread}: {said}")));
        }
    }
    Ok(())
}

/// CPU by who ran it, in nanoseconds, as the scheduler accounts it; softirq time as the tick accounts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Account {
    /// The measured processes, user and kernel, softirqs on top of their system calls included.
    pub(crate) process_ns: u64,
    /// The NAPI threads of the measured side's interface.
    pub(crate) napi_ns: u64,
    /// The measured side's ksoftirqd threads.
    pub(crate) ksoftirqd_ns: u64,
    /// Softirq time of the measured side's cores, to the tick (10 ms). Part of it is also in `process_ns`.
    pub(crate) core_softirq_ns: u64,
    /// On given NICs: everything that this host's cores ran, since interrupts run on top of any process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host_ns: Option<u64>,
}

impl Account {
    /// Reads all of it now.
    pub(crate) fn now(root: u32, napi: &BTreeSet<u32>, cores: Range<usize>) -> Result<Self, BenchError> {
        Ok(Self {
            process_ns: of_tree(root)?,
            napi_ns: of_threads(napi),
            ksoftirqd_ns: of_threads(&named(|name| {
                cores.clone().any(|core| name == format!("ksoftirqd/{core}"))
            })?),
            core_softirq_ns: softirq_time(&fs::read_to_string("/proc/stat").unwrap_or_default(), cores),
            host_ns: None,
        })
    }

    /// The same, with everything that this host's cores ran.
    pub(crate) fn with_host(self) -> Self {
        Self { host_ns: Some(busy()), ..self }
    }

    /// The difference to an earlier account.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            process_ns: self.process_ns.saturating_sub(before.process_ns),
            napi_ns: self.napi_ns.saturating_sub(before.napi_ns),
            ksoftirqd_ns: self.ksoftirqd_ns.saturating_sub(before.ksoftirqd_ns),
            core_softirq_ns: self.core_softirq_ns.saturating_sub(before.core_softirq_ns),
            host_ns: self.host_ns.zip(before.host_ns).map(|(now, before)| now.saturating_sub(before)),
        }
    }

    /// CPU charged to the measured side: its processes and NAPI threads; on given NICs the whole host.
    pub(crate) fn charged_ns(self) -> u64 {
        self.host_ns.unwrap_or(self.process_ns + self.napi_ns)
    }
}

/// Non-idle nanoseconds of all cores of this host: time since boot minus idle time. The kernel keeps idle time to the
/// nanosecond while ticks are stopped (kernel/time/tick-sched.c) and shows it to 10 ms a core.
fn busy() -> u64 {
    let passed = clock_gettime(ClockId::Boottime);
    let passed = passed.tv_sec as u64 * 1_000_000_000 + passed.tv_nsec as u64;
    let (cores, idle) = idle_time(&fs::read_to_string("/proc/stat").unwrap_or_default());
    (passed * cores).saturating_sub(idle)
}

/// The cores of /proc/stat, and the nanoseconds that they have been idle, waiting for disks included.
fn idle_time(stat: &str) -> (u64, u64) {
    let of_core = |line: &str| {
        let mut words = line.split_whitespace();
        let number = words.next()?.strip_prefix("cpu")?;
        number.parse::<u32>().ok()?;
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        Some(ticks.get(3)? + ticks.get(4)?)
    };
    stat.lines().filter_map(of_core).fold((0, 0), |(cores, all), idle| (cores + 1, all + idle * 10_000_000))
}

/// The softirq column of `cpuN` lines (Documentation/filesystems/proc.rst, 1.7), whose unit is 10 ms on every Linux
/// that is in use (USER_HZ).
fn softirq_time(stat: &str, cores: Range<usize>) -> u64 {
    let of_core = |core: usize| {
        let line = stat.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")))?;
        line.split_whitespace().nth(6)?.parse::<u64>().ok()
    };
    cores.filter_map(of_core).sum::<u64>() * 10_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirq_time_is_that_of_the_given_cores() {
        let stat =
            "cpu  1 2 3 4 5 6 70 8\ncpu0 1 2 3 4 5 6 30 8\ncpu1 1 2 3 4 5 6 40 8\ncpu10 0 0 0 0 0 0 9 0\n";
        assert_eq!(softirq_time(stat, 0..1), 300_000_000);
        assert_eq!(softirq_time(stat, 0..2), 700_000_000);
        assert_eq!(softirq_time(stat, 2..10), 0);
    }

    #[test]
    fn napi_threads_are_in_the_order_of_their_instances() {
        assert!(napi_id("napi/server0-9\n") < napi_id("napi/server0-8201\n"));
        assert_eq!(napi_id("napi/server0"), 0);
    }

    #[test]
    fn idle_time_is_that_of_all_cores() {
        let stat = "cpu  1 2 3 90 15 6 7 8\ncpu0 1 2 3 40 5 6 7 8\ncpu1 1 2 3 50 10 6 7 8\nintr 5\n";
        assert_eq!(idle_time(stat), (2, 1_050_000_000));
        assert!(Account::default().with_host().host_ns > Some(0));
    }

    #[test]
    fn this_process_has_run() {
        let account = Account::now(std::process::id(), &BTreeSet::new(), 0..1).unwrap();
        assert!(account.process_ns > 0);
        assert_eq!(account.since(account), Account::default());
        assert!(anonymous_memory(std::process::id()).unwrap() > 0);
    }
}
