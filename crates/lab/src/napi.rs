//! Threaded NAPI: a veth end's receive work in kernel threads of its own, pinned to a core.
//!
//! Without it, what the client's kernel does for a received packet runs on the server's core, inside the
//! server's send call, and a measurement charges it to the server.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::command;
use crate::config::Role;
use crate::error::LabError;

/// The kernel starts the threads during the write to `threaded`; on a loaded machine they appear later.
const START_LIMIT: Duration = Duration::from_secs(5);

/// The NAPI threads that were there before a lab's own started: those of other labs, whose interfaces have
/// the same names.
pub(crate) struct Others(BTreeSet<i32>);

impl Others {
    /// To be taken under the lab lock and before the link of `role` comes up.
    pub(crate) fn of(role: Role) -> Result<Self, LabError> {
        Ok(Self(threads(role.interface())?))
    }

    /// For an interface that no other lab can use.
    pub(crate) fn none() -> Self {
        Self(BTreeSet::new())
    }
}

/// Turns threaded NAPI on for the veth end of `role` and pins its threads. The link must be up: a NAPI
/// instance, and so its thread, exists from then on. Taking the link down ends the threads.
pub(crate) fn pin(namespace: &str, role: Role, core: usize, others: &Others) -> Result<(), LabError> {
    let interface = role.interface();
    let file = format!("/sys/class/net/{interface}/threaded");
    command::run_with_input("ip", &format!("netns exec {namespace} tee {file}"), "1")?;
    let deadline = Instant::now() + START_LIMIT;
    let new = loop {
        let new: Vec<i32> = threads(interface)?.difference(&others.0).copied().collect();
        if !new.is_empty() {
            break new;
        }
        if Instant::now() > deadline {
            return Err(LabError::Config(format!("{namespace}: {interface} did not start a NAPI thread")));
        }
        thread::sleep(Duration::from_millis(5));
    };
    let mut set = CpuSet::new();
    set.set(core);
    for id in new {
        let what = || format!("pin NAPI thread {id} of {namespace} to core {core}");
        sched_setaffinity(Pid::from_raw(id), &set).map_err(|error| LabError::io(what())(error.into()))?;
    }
    Ok(())
}

/// The thread IDs of the NAPI threads of all interfaces of this name, in all namespaces.
fn threads(interface: &str) -> Result<BTreeSet<i32>, LabError> {
    let prefix = format!("napi/{interface}-");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc").map_err(LabError::io("/proc"))? {
        let entry = entry.map_err(LabError::io("/proc"))?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // A process that has ended since is not ours.
        let Ok(name) = fs::read_to_string(entry.path().join("comm")) else { continue };
        if name.starts_with(&prefix) {
            found.insert(id);
        }
    }
    Ok(found)
}
