//! Giving up privilege before anything is opened: the server becomes an ordinary user that can get nothing back.
//! What takes privilege it asks of an agent: one that runs already, or a child of its own, started while it was
//! still root.
//!
//! ```text
//!   root:    read the configuration ─ start the agent ─┐ socketpair
//!                                                      ├── child: expressway agent --own ADDR…, root
//!   user:    drop ─ check files ─ open, serve, reload ─┘         ends when its client does
//! ```
//!
//! `serve` has one way to become an ordinary user: it starts its own agent, then drops everything before the first
//! thread starts and before anything is opened, so that start and reload read files with the same rights. Sockets that
//! fail and interfaces that appear later are opened by the agent.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use expressway_agent::Client;
use nix::unistd::{Group, User};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{DumpableBehavior, Gid, Uid, getgid, getuid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::config::Config;
use crate::fail::Failure;

/// Whom to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    uid: Uid,
    gid: Gid,
}

impl Identity {
    /// The user and group that the configuration names; `None` if it names none, or they are this process's
    /// already.
    pub(crate) fn of(config: &Config) -> Result<Option<Self>, Failure> {
        let Some(name) = &config.server.user else { return Ok(None) };
        let wrong = |problem: String| Failure::usage(config.user_error(problem));
        let user = match User::from_name(name.get_ref()) {
            Ok(Some(user)) => user,
            Ok(None) => return Err(wrong(format!("no such user: `{}`", name.get_ref()))),
            Err(error) => return Err(wrong(format!("user `{}`: {error}", name.get_ref()))),
        };
        let group = match &config.server.group {
            None => user.gid,
            Some(name) => match Group::from_name(name) {
                Ok(Some(group)) => group.gid,
                Ok(None) => return Err(wrong(format!("no such group: `{name}`"))),
                Err(error) => return Err(wrong(format!("group `{name}`: {error}"))),
            },
        };
        let (uid, gid) = (Uid::from_raw(user.uid.as_raw()), Gid::from_raw(group.as_raw()));
        if (getuid(), getgid()) == (uid, gid) {
            return Ok(None);
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::run_time(format!(
                "[server] user: switching to `{}` needs root: start as root, or as that user with --agent",
                name.get_ref()
            )));
        }
        Ok(Some(Self { uid, gid }))
    }

    /// Becomes that user, for good: no other groups, no capability in any set, no program that gives some.
    /// Called while the process has one thread, for these are settings of threads.
    pub(crate) fn assume(self) -> Result<(), Failure> {
        let failed = |what: &'static str| {
            move |errno: rustix::io::Errno| Failure::run_time(format!("dropping privileges: {what}: {errno}"))
        };
        let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
        if threads != 1 {
            return Err(Failure::run_time(format!(
                "dropping privileges: {threads} threads are already running"
            )));
        }
        for capability in CapabilitySet::all() {
            // Kernels do not know those that are newer than they.
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(errno) => return Err(failed("bounding set")(errno)),
            }
        }
        rustix::thread::clear_ambient_capability_set().map_err(failed("ambient set"))?;
        rustix::thread::set_thread_groups(&[]).map_err(failed("supplementary groups"))?;
        rustix::thread::set_thread_res_gid(self.gid, self.gid, self.gid).map_err(failed("group"))?;
        rustix::thread::set_thread_res_uid(self.uid, self.uid, self.uid).map_err(failed("user"))?;
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).map_err(failed("capabilities"))?;
        rustix::thread::set_no_new_privs(true).map_err(failed("no_new_privs"))?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("dumpable"))?;
        tracing::info!(uid = self.uid.as_raw(), gid = self.gid.as_raw(), "privileges dropped");
        Ok(())
    }
}

/// Starts an agent for this process alone, which keeps the privilege and ends with it. What comes back is asked
/// for the first time after the drop.
pub(crate) fn start_agent(config: &Config) -> Result<OwnedFd, Failure> {
    let failed = |error: std::io::Error| Failure::run_time(format!("starting an agent: {error}"));
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| failed(errno.into()))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg("agent").args(crate::logging::options());
    if config.io.replace {
        command.arg("--own-replace");
    }
    command.arg("--own").args(config.listen().iter().map(ToString::to_string));
    // Its log goes where this one's goes.
    command.stdin(Stdio::from(theirs)).stdout(Stdio::null());
    command.spawn().map_err(failed)?;
    Ok(ours)
}

/// The connection to the agent of [`start_agent`].
pub(crate) fn client(socket: OwnedFd) -> Result<Client, Failure> {
    Client::over(socket, "of this server".to_owned(), "expressway serve").map_err(Failure::run_time)
}
