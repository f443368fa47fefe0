//! Limits of the process.

use std::fs;
use std::path::{Path, PathBuf};

/// Open files and connections count against RLIMIT_NOFILE: takes what the hard limit allows.
pub(crate) fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "cannot raise RLIMIT_NOFILE; keeping the current limit");
    }
}

/// File descriptors that the process may have.
pub(crate) fn file_limit() -> usize {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Memory of the machine, or what the cgroups of this process may take of it, in bytes.
pub(crate) fn memory() -> u64 {
    let machine = rustix::system::sysinfo();
    let machine = machine.totalram.saturating_mul(u64::from(machine.mem_unit));
    own_cgroup().iter().filter_map(|folder| number(&folder.join("memory.max"))).fold(machine, u64::min)
}

/// The folders of this process's cgroup (version 2) and of all above it.
pub(crate) fn own_cgroup() -> Vec<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    cgroup(Path::new("/sys/fs/cgroup"), &own)
}

fn cgroup(root: &Path, own: &str) -> Vec<PathBuf> {
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    if path.split('/').any(|part| part == "..") {
        // Outside of the cgroup namespace: only the root is ours to see.
        return vec![root.to_owned()];
    }
    root.join(path).ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_owned).collect()
}

/// The number that a file of one line holds.
pub(crate) fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_limits_are_those_of_all_groups_above() {
        let root = Path::new("/sys/fs/cgroup");
        let folders = cgroup(root, "1:cpu:/x\n0::/system.slice/edge.service\n");
        assert_eq!(folders.len(), 3);
        assert_eq!(
            (folders[0].as_path(), folders[2].as_path()),
            (&*root.join("system.slice/edge.service"), root)
        );
        assert_eq!(cgroup(root, "0::/\n"), [root]);
        assert_eq!(cgroup(root, "0::/../other\n"), [root]);
        assert!(cgroup(root, "").is_empty());
    }

    #[test]
    fn there_is_memory() {
        assert!(memory() > 16 << 20);
        assert!(file_limit() > 16);
    }
}
