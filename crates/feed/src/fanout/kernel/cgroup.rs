//! The cgroup (version 2) of this process, to which the sockets that it creates belong.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Opens its directory, whether or not the hierarchy is mounted: `ip netns exec`, for one, hides it.
///
/// # Errors
/// One line that says what is missing.
pub(super) fn own() -> Result<OwnedFd, String> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let membership = read("/proc/self/cgroup")?;
    if let Some(path) = folder(&membership, &read("/proc/self/mountinfo")?)
        && let Ok(folder) = File::open(&path)
    {
        return Ok(folder.into());
    }
    let below = own_path(&membership).ok_or("/proc/self/cgroup: no cgroup v2 support in this kernel")?;
    hidden(below).map_err(|error| {
        format!("cgroup2: {error}; mount it (mount -t cgroup2 none /sys/fs/cgroup) or run with CAP_SYS_ADMIN")
    })
}

/// A folder of the hierarchy, by a mount that has no place in any tree and ends with its descriptor.
fn hidden(below: &str) -> Result<OwnedFd, Errno> {
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let below = Path::new(".").join(below.trim_start_matches('/'));
    openat(mount, below, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The path of the cgroup in its hierarchy.
fn own_path(membership: &str) -> Option<&str> {
    membership.lines().find_map(|line| line.strip_prefix("0::"))
}

/// From `/proc/PID/cgroup` (cgroups(7)) and `/proc/PID/mountinfo` (proc(5)) to the folder.
fn folder(membership: &str, mounts: &str) -> Option<PathBuf> {
    let own = own_path(membership)?;
    mounts.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        if filesystem.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        // A container sees a part of the hierarchy.
        let below = Path::new(own).strip_prefix(root).ok()?;
        Some(Path::new(&unescaped(place)).join(below))
    })
}

/// Spaces, tabs, line feeds and backslashes of paths are octal escapes in mountinfo.
fn unescaped(path: &str) -> String {
    path.replace(r"\040", " ").replace(r"\011", "\t").replace(r"\012", "\n").replace(r"\134", r"\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_found_wherever_it_is_mounted() {
        let unified = "29 28 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
        let service = "0::/system.slice/fanout.service\n";
        let found = |membership, mounts| folder(membership, mounts);
        assert_eq!(found(service, unified), Some("/sys/fs/cgroup/system.slice/fanout.service".into()));
        let hybrid = "30 28 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      42 28 0:37 / /sys/fs/cgroup/uni\\040fied rw - cgroup2 cgroup2 rw\n";
        assert_eq!(found("8:pids:/\n0::/\n", hybrid), Some("/sys/fs/cgroup/uni fied/".into()));
        let container = "99 98 0:26 /kubepods/pod1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(found("0::/kubepods/pod1/c1\n", container), Some("/sys/fs/cgroup/c1".into()));
        assert_eq!(found("0::/elsewhere\n", container), None);
        assert_eq!(found("8:pids:/\n", unified), None);
    }
}
