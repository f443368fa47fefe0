//! Facts about the machine and about what this process may do.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

use crate::cores;
use crate::limits::{number, own_cgroup};

/// Capabilities that AF_XDP with our program takes, as their names and bits.
pub(super) const NEEDED: [(&str, CapabilitySet); 4] = [
    ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
    ("CAP_BPF", CapabilitySet::BPF),
    ("CAP_PERFMON", CapabilitySet::PERFMON),
    ("CAP_NET_RAW", CapabilitySet::NET_RAW),
];

/// The facts. What cannot be read is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostFacts {
    pub(super) release: String,
    /// Major and minor number of the kernel.
    pub(super) version: (u32, u32),
    /// The socket of the agent that has what this process lacks.
    pub(super) agent: Option<PathBuf>,
    /// Needed capabilities that this process lacks.
    pub(super) missing: Vec<&'static str>,
    /// It may lock any memory (CAP_IPC_LOCK).
    pub(super) locks_freely: bool,
    /// Bytes that it may lock; `None`: any number.
    pub(super) memlock: Option<u64>,
    /// Files that it may have open; `None`: any number.
    pub(super) files: Option<u64>,
    /// Cores that it may run on.
    pub(super) cores: usize,
    /// CPU time that its cgroup may take, in thousandths of a core.
    pub(super) quota: Option<u64>,
    /// Bytes of memory that its cgroup may have.
    pub(super) memory: Option<u64>,
    /// What it runs in, such as `docker`.
    pub(super) container: Option<String>,
    /// A seccomp filter is in force.
    pub(super) filtered: bool,
    /// `net.core.bpf_jit_enable`.
    pub(super) jit: Option<u64>,
    /// `net.core.rmem_max`, `net.core.wmem_max`.
    pub(super) buffers: [Option<u64>; 2],
}

impl HostFacts {
    /// Needed capabilities that nobody has who could use them here.
    pub(super) fn lacks(&self) -> &[&'static str] {
        if self.agent.is_some() { &[] } else { &self.missing }
    }

    /// Reads the facts of this machine and process.
    pub(crate) fn read() -> Self {
        let (version, release) = expressway_dataplane::negotiate::kernel();
        let effective =
            rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        // CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON (`bpf_token_capable`, `perfmon_capable`).
        let has = |bit: CapabilitySet| {
            let by_admin = CapabilitySet::BPF | CapabilitySet::PERFMON;
            effective.contains(bit)
                || (by_admin.contains(bit) && effective.contains(CapabilitySet::SYS_ADMIN))
        };
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let group = own_cgroup();
        Self {
            release,
            version,
            agent: None,
            missing: NEEDED.iter().filter(|(_, bit)| !has(*bit)).map(|(name, _)| *name).collect(),
            locks_freely: has(CapabilitySet::IPC_LOCK),
            memlock: getrlimit(Resource::Memlock).current,
            files: getrlimit(Resource::Nofile).maximum,
            cores: cores::allowed().len(),
            quota: group.iter().filter_map(|folder| quota(&read(&folder.join("cpu.max"))?)).min(),
            memory: group.iter().filter_map(|folder| number(&folder.join("memory.max"))).min(),
            container: container(),
            filtered: status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])),
            jit: number(Path::new("/proc/sys/net/core/bpf_jit_enable")),
            buffers: ["rmem_max", "wmem_max"].map(|name| number(&Path::new("/proc/sys/net/core").join(name))),
        }
    }
}

fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok()
}

/// Thousandths of a core that `cpu.max` ("QUOTA PERIOD", or "max PERIOD") gives.
fn quota(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let (quota, period): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (quota * 1000).checked_div(period)
}

/// What container this is, if it is one: by the marks that runtimes leave.
fn container() -> Option<String> {
    let marked = [("/run/.containerenv", "podman"), ("/.dockerenv", "docker")];
    let by_file =
        marked.iter().find(|(file, _)| Path::new(file).exists()).map(|(_, name)| (*name).to_owned());
    let by_environment = || std::env::var("container").ok().filter(|name| !name.is_empty());
    let by_cluster = || std::env::var_os("KUBERNETES_SERVICE_HOST").map(|_| "kubernetes".to_owned());
    by_file.or_else(by_environment).or_else(by_cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_facts() {
        let facts = HostFacts::read();
        assert!(facts.version.0 >= 5 && facts.cores >= 1, "{facts:?}");
    }

    #[test]
    fn quotas_are_thousandths_of_a_core() {
        assert_eq!(quota("150000 100000\n"), Some(1500));
        assert_eq!(quota("max 100000\n"), None);
        assert_eq!(quota("5 0"), None);
    }
}
