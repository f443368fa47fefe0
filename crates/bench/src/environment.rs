//! The machine, the programs and the command: what a reader needs to judge the figures.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Tools;
use crate::peers::{self, Program};
use crate::scenario::Scenario;

/// The machine and the programs of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// Version of expressway.
    pub version: String,
    /// Its commit as given in `EXPRESSWAY_COMMIT`, since the binary may be anywhere.
    pub commit: String,
    /// `release`, or `debug`, whose figures mean nothing.
    pub build: String,
    /// The command.
    pub command: String,
    /// Seconds since 1970 (UTC) when it began.
    pub began: u64,
    /// CPU model.
    pub cpu: String,
    /// Cores that the process may use.
    pub cores: usize,
    /// The CPU's `hypervisor` flag: a virtual machine, whose host may run other work.
    pub virtual_machine: bool,
    /// Memory, bytes.
    pub memory: u64,
    /// Kernel release.
    pub kernel: String,
    /// Kernel command line options that change what a packet costs, such as `mitigations=off`.
    pub kernel_options: Vec<String>,
    /// Frequency governors of the cores; empty where the kernel does not scale them.
    pub governors: Vec<String>,
    /// The cpuidle driver with its states; empty where there are none.
    pub idle_states: Vec<String>,
    /// Interrupts of network devices with the cores that they may go to.
    pub network_interrupts: BTreeMap<String, String>,
    /// Load average of the last minute at the start.
    pub load_average: f64,
    /// The servers and other programs that were compared, by name.
    pub programs: BTreeMap<String, Program>,
}

impl Environment {
    /// Reads it now, with the programs that scenarios will measure.
    pub fn read(tools: &Tools, scenarios: &[Scenario]) -> Self {
        Self { programs: programs(tools, scenarios), ..Self::of_this_machine() }
    }

    /// The difference in processor, kernel or version from this machine, if any: such figures do not apply here. The number of
    /// usable cores is not compared.
    pub fn difference(&self) -> Option<String> {
        let here = Self::of_this_machine();
        let name = |one: &Self| format!("{}, Linux {}, version {}", one.cpu, one.kernel, one.version);
        (name(self) != name(&here)).then(|| format!("{}, this machine is {}", name(self), name(&here)))
    }

    /// Reads it now, without programs.
    pub(crate) fn of_this_machine() -> Self {
        let cpuinfo = text("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpuinfo.lines().find_map(|line| line.strip_prefix(name));
            line.map(|rest| rest.trim_start_matches([' ', '\t', ':']).trim().to_owned()).unwrap_or_default()
        };
        let memory = text("/proc/meminfo");
        let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let memory = memory.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        let load = text("/proc/loadavg");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: std::env::var("EXPRESSWAY_COMMIT").unwrap_or_else(|_| "unknown".into()),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            began: now.map_or(0, |now| now.as_secs()),
            cpu: field("model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            virtual_machine: field("flags").split(' ').any(|flag| flag == "hypervisor"),
            memory: memory.unwrap_or(0) * 1024,
            kernel: text("/proc/sys/kernel/osrelease").trim().into(),
            kernel_options: kernel_options(&text("/proc/cmdline")),
            governors: each_core("cpufreq/scaling_governor"),
            idle_states: idle_states(Path::new("/sys/devices/system/cpu")),
            network_interrupts: network_interrupts(&text("/proc/interrupts"), |number| {
                text(&format!("/proc/irq/{number}/smp_affinity_list")).trim().to_owned()
            }),
            load_average: load.split(' ').next().and_then(|one| one.parse().ok()).unwrap_or(0.0),
            programs: BTreeMap::new(),
        }
    }
}

/// The servers and other programs that the scenarios compare.
fn programs(tools: &Tools, scenarios: &[Scenario]) -> BTreeMap<String, Program> {
    let mut programs = peers::programs(tools);
    programs.extend(scenarios.iter().flat_map(|scenario| scenario.programs(tools)));
    programs
}

/// A file's text; empty if the machine lacks it.
fn text(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

fn kernel_options(line: &str) -> Vec<String> {
    const OPTIONS: [&str; 8] = [
        "mitigations",
        "isolcpus",
        "nohz_full",
        "rcu_nocbs",
        "idle",
        "intel_idle.max_cstate",
        "processor.max_cstate",
        "preempt",
    ];
    let wanted = |word: &&str| OPTIONS.iter().any(|option| word.split('=').next() == Some(option));
    line.split_whitespace().filter(wanted).map(str::to_owned).collect()
}

/// The distinct values of a per-core file.
fn each_core(file: &str) -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let mut found: Vec<String> = (0..cores)
        .map(|core| text(&format!("/sys/devices/system/cpu/cpu{core}/{file}")).trim().to_owned())
        .filter(|text| !text.is_empty())
        .collect();
    found.sort();
    found.dedup();
    found
}

/// The driver, then the enabled states of the first core.
fn idle_states(cpus: &Path) -> Vec<String> {
    let read = |file: std::path::PathBuf| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let mut found: Vec<String> = Some(read(cpus.join("cpuidle/current_driver")))
        .into_iter()
        .filter(|driver| !driver.is_empty() && driver != "none")
        .collect();
    for state in 0.. {
        let folder = cpus.join(format!("cpu0/cpuidle/state{state}"));
        if !folder.exists() {
            return found;
        }
        if read(folder.join("disable")) != "1" {
            found.push(read(folder.join("name")));
        }
    }
    found
}

/// Interrupts whose name is that of a network device's queue.
fn network_interrupts(interrupts: &str, affinity: impl Fn(&str) -> String) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let (number, rest) = line.trim_start().split_once(':')?;
        let name = rest.split_whitespace().last()?;
        let queue = ["-rx", "-tx", "-TxRx", "input.", "output.", "mlx5_comp", "eth", "ens", "enp"];
        let is = number.parse::<u32>().is_ok() && queue.iter().any(|part| name.contains(part));
        is.then(|| (name.to_owned(), affinity(number)))
    };
    interrupts.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_and_interrupts_are_those_that_matter() {
        let options = kernel_options("root=/dev/vda mitigations=off quiet isolcpus=2-3 idlefoo=1");
        assert_eq!(options, ["mitigations=off", "isolcpus=2-3"]);
        let text = "           CPU0       CPU1\n  24:   7   0  PCI-MSIX-0000:00:03.0   1-edge      virtio1-input.0\n  25:  1  0  PCI  2-edge  virtio0-req.0\n NMI: 0 0 Non-maskable interrupts\n";
        let found = network_interrupts(text, |number| format!("of {number}"));
        assert_eq!(found, [("virtio1-input.0".to_owned(), "of 24".to_owned())].into());
    }

    #[test]
    fn idle_states_are_listed_without_disabled_ones() {
        let folder = tempfile::tempdir().unwrap();
        let states = folder.path().join("cpu0/cpuidle");
        for (index, (name, disable)) in [("POLL", "0"), ("C1", "0"), ("C6", "1")].iter().enumerate() {
            let state = states.join(format!("state{index}"));
            fs::create_dir_all(&state).unwrap();
            fs::write(state.join("name"), format!("{name}\n")).unwrap();
            fs::write(state.join("disable"), format!("{disable}\n")).unwrap();
        }
        assert_eq!(idle_states(folder.path()), ["POLL", "C1"]);
    }
}
