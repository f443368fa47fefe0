//! The processes inside a namespace, and how they are ended.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::command;
use crate::error::LabError;

/// How long a process has to end after SIGTERM, and again after SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// The IDs of the processes in a namespace (`ip netns pids`), this one left out.
pub(crate) fn inside(namespace: &str) -> Result<Vec<u32>, LabError> {
    let text = command::run("ip", &format!("netns pids {namespace}"))?;
    let own = std::process::id();
    Ok(text.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid != own).collect())
}

/// Ends every process in a namespace: SIGTERM, then SIGKILL for those that stay. Returns how many there
/// were, or those that outlived both in `Err`.
pub(crate) fn end(namespace: &str) -> Result<Result<usize, Vec<u32>>, LabError> {
    let found = inside(namespace)?.len();
    for signal in [Signal::TERM, Signal::KILL] {
        for pid in inside(namespace)? {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            // A process that has ended meanwhile is fine.
            let _ = pid.map(|pid| kill_process(pid, signal));
        }
        let deadline = Instant::now() + GRACE;
        while !inside(namespace)?.is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
    }
    let left = inside(namespace)?;
    Ok(if left.is_empty() { Ok(found) } else { Err(left) })
}
