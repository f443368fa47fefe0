//! Facts about one interface: its link, its device, what is on it.

use std::collections::BTreeSet;
use std::fs;

use expressway_dataplane::Provider;
use expressway_netio::device::DeviceFacts;
use expressway_netio::route::{Link, LinkKind, Snapshot};
use expressway_xbpf::{AttachMode, ForeignProgram};

/// The XDP program on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(super) program: ForeignProgram,
    pub(super) mode: AttachMode,
    /// Processes that hold it, as `name (pid)`; empty where that cannot be seen.
    pub(super) owners: Vec<String>,
}

impl Program {
    /// True for a dispatcher of libxdp, which takes other programs beside it.
    pub(super) fn is_dispatcher(&self) -> bool {
        self.program.name == "xdp_dispatcher"
    }
}

/// The facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InterfaceFacts {
    pub(super) link: Link,
    pub(super) device: DeviceFacts,
    /// VLANs on it.
    pub(super) vlans: Vec<String>,
    /// Its members, if it is a bond.
    pub(super) members: Vec<String>,
    /// It is a member of a bond.
    pub(super) is_member: bool,
    pub(super) program: Option<Program>,
}

impl InterfaceFacts {
    /// Reads the facts of an interface where `provider` is. What program is on one of an agent's cannot be seen from here.
    ///
    /// # Errors
    /// A sentence that names the interface.
    pub(super) fn read(link: &Link, provider: &Provider, snapshot: &Snapshot) -> Result<Self, String> {
        let attached = || expressway_xbpf::attached(link.index).ok().flatten();
        let program = if provider.is_here() { attached() } else { None };
        let over = |other: &&Link| matches!(other.kind, LinkKind::Vlan { lower: Some(lower), .. } if lower == link.index);
        let names = |links: Vec<&Link>| links.into_iter().map(|link| link.name.clone()).collect();
        let is_bond = |link: &Link| link.kind == LinkKind::Other("bond".into());
        let controller = link.controller.and_then(|index| snapshot.link(index));
        Ok(Self {
            device: provider.device(link).map_err(|reason| reason.to_string())?.facts,
            vlans: names(snapshot.links().iter().filter(over).collect()),
            members: names(
                snapshot.links().iter().filter(|one| one.controller == Some(link.index)).collect(),
            ),
            is_member: controller.is_some_and(is_bond),
            program: program.map(|(program, mode)| Program { owners: owners(program.id), program, mode }),
            link: link.clone(),
        })
    }
}

/// The processes with a descriptor of a BPF program or of a link to it, by what `/proc/PID/fdinfo` says. As far as
/// this process may see them.
fn owners(program: u32) -> Vec<String> {
    let wanted = program.to_string();
    let mut found = BTreeSet::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = process.path();
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let holds = fs::read_dir(path.join("fdinfo")).into_iter().flatten().flatten().any(|file| {
            let text = fs::read_to_string(file.path()).unwrap_or_default();
            text.lines().any(|line| line.split_whitespace().eq(["prog_id:", wanted.as_str()]))
        });
        if holds {
            let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
            found.insert((pid, format!("{} ({pid})", name.trim())));
        }
    }
    found.into_iter().map(|(_, text)| text).collect()
}
