//! Giving up what is not needed once everything is attached.
//!
//! Counters are read, hooks attached, and the processes of sockets looked for as long as it runs: for that some capabilities
//! stay.

use nix::unistd::{Uid as NixUid, User};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::fail::Failure;

/// What a capture goes on to need, whoever runs it.
const KEPT: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON).union(CapabilitySet::NET_ADMIN);

/// Whom to become.
pub(super) struct Identity {
    uid: Uid,
    gid: Gid,
}

impl Identity {
    /// The user of that name.
    pub(super) fn of(name: &str) -> Result<Self, Failure> {
        match User::from_name(name) {
            Ok(Some(_)) if !NixUid::effective().is_root() => {
                Err(Failure::run_time(format!("-Z {name}: needs root")))
            }
            Ok(Some(user)) => {
                Ok(Self { uid: Uid::from_raw(user.uid.as_raw()), gid: Gid::from_raw(user.gid.as_raw()) })
            }
            Ok(None) => Err(Failure::usage(format!("-Z: no such user: `{name}`"))),
            Err(error) => Err(Failure::run_time(format!("-Z {name}: {error}"))),
        }
    }
}

/// Gives up everything for that user, where files are only read.
pub(super) fn drop_all(name: &str) -> Result<(), Failure> {
    drop_to(CapabilitySet::empty(), Some(Identity::of(name)?))
}

/// Keeps what a capture needs. With an identity it becomes that user, to whom /proc does not say whose a socket is. Without one
/// its files stay those that root may write, and it keeps CAP_SYS_ADMIN, which would give root back to another user: only with that may one open programs that come
/// later (`bpf_prog_get_fd_by_id` in kernel/bpf/syscall.c).
pub(super) fn drop(identity: Option<Identity>) -> Result<(), Failure> {
    let mut kept = KEPT;
    if identity.is_none() {
        kept |= CapabilitySet::DAC_OVERRIDE | CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE;
    }
    drop_to(kept, identity)
}

fn drop_to(kept: CapabilitySet, identity: Option<Identity>) -> Result<(), Failure> {
    let failed = |what: &'static str| {
        move |errno: Errno| Failure::run_time(format!("dropping privileges: {what}: {errno}"))
    };
    if let Some(Identity { uid, gid }) = identity {
        // These are settings of threads.
        let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
        if threads != 1 {
            return Err(Failure::run_time(format!(
                "dropping privileges: {threads} threads are already running"
            )));
        }
        rustix::thread::set_keep_capabilities(true).map_err(failed("keep capabilities"))?;
        rustix::thread::set_thread_groups(&[]).map_err(failed("supplementary groups"))?;
        rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed("group"))?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed("user"))?;
    }
    let now = rustix::thread::capabilities(None).map_err(failed("capabilities"))?;
    let permitted = now.permitted & kept;
    let sets = CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(failed("capabilities"))?;
    rustix::thread::set_no_new_privs(true).map_err(failed("no_new_privs"))
}
