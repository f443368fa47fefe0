//! The programs that count an interface's packets by flow: loaded, attached, following its XDP program, read.
//!
//! `bpf/flows.bpf.c` describes what they do. Everything is held by descriptors of this process, so its end, for any reason,
//! detaches the programs; nothing is pinned.

mod entry;

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};

use crate::error::{CAPABILITIES, Error};
use crate::redirect::{forward_libbpf_messages, is_privileged};
use crate::skeleton::flows::{FlowsSkelBuilder, OpenFlowsProgs};
use crate::sys;
use crate::target::XdpTarget;
use crate::xdp_drops::DropTables;
pub use entry::{
    DropCounts, DropKind, FLOW_PATHS, FlowCounts, FlowEntry, FlowKey, FlowPath, FlowQueue, FlowTotals,
};
use entry::{QUEUES_OF_DEVICE, SET, WAYS};

/// Sets of all CPUs together at most: 8 flows each, 22 MB.
const SETS: u32 = 16_384;
/// Sets of a CPU at least.
const SETS_OF_CPU: u32 = 64;

/// What is fixed when the programs are loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowOptions {
    /// The interface's index.
    pub interface: u32,
    /// The devices that its packets pass, at most [`FlowPrograms::DEVICES`]: itself, or those below a VLAN or bond.
    pub devices: Vec<u32>,
    /// Those of them, a bit each, that leave in a received packet the queue that it was sent by: veth does.
    pub sent_queues: u32,
    /// The VLAN tags that they have there, outermost first: ethertype and VLAN; zeros where there is none.
    pub tags: [(u16, u16); 2],
    /// The inode of the network namespace that it is in.
    pub netns: u32,
    /// Its frames have Ethernet headers; otherwise they begin with IP.
    pub ethernet: bool,
    /// Octets of connection IDs in short headers of QUIC, at most 20; 0: those are not looked at.
    pub short_cid: u32,
}

/// Programs that stand or fall together.
#[derive(Clone, Copy)]
enum Group {
    /// What the kernel's stack receives, sends and drops.
    Kernel { tells_socket: bool },
    /// How redirects by XDP programs end.
    Redirects,
    /// What programs redirect that are not traced.
    Untraced,
    /// What programs redirect to the interface.
    Forwards,
    /// Only how much that is.
    ForwardCount,
    /// The same in generic mode.
    ForwardsGeneric,
    /// AF_XDP in copy mode.
    Copy,
    /// AF_XDP in zero-copy mode.
    ZeroCopy,
    /// An XDP program.
    Xdp,
}

impl Group {
    fn what(self) -> &'static str {
        match self {
            Self::Kernel { .. } => "the kernel's packets",
            Self::Redirects => "redirects",
            Self::Untraced => "redirects by XDP programs that cannot be traced",
            Self::Forwards => "flows of what XDP programs forward here",
            Self::ForwardCount => "what XDP programs forward here",
            Self::ForwardsGeneric => "what XDP programs in generic mode forward here",
            Self::Copy => "packets sent by AF_XDP in copy mode",
            Self::ZeroCopy => "packets sent by AF_XDP in zero-copy mode",
            Self::Xdp => "the XDP program",
        }
    }

    fn select(self, programs: &mut OpenFlowsProgs<'_>) {
        match self {
            Self::Kernel { tells_socket } => {
                programs.flows_receive.set_autoload(true);
                programs.flows_send.set_autoload(true);
                programs.flows_sent.set_autoload(true);
                programs.flows_free.set_autoload(tells_socket);
                programs.flows_free_older.set_autoload(!tells_socket);
            }
            Self::Redirects => {
                programs.flows_redirect.set_autoload(true);
                programs.flows_redirect_error.set_autoload(true);
            }
            Self::Forwards => {
                programs.flows_forwarding.set_autoload(true);
                programs.flows_forwarded.set_autoload(true);
            }
            Self::ForwardCount => programs.flows_forward.set_autoload(true),
            Self::ForwardsGeneric => {
                programs.flows_forwarding_generic.set_autoload(true);
                programs.flows_forwarded_generic.set_autoload(true);
                programs.flows_forward_generic.set_autoload(true);
            }
            Self::Untraced => {
                programs.flows_redirecting.set_autoload(true);
                programs.flows_redirecting_generic.set_autoload(true);
            }
            Self::Copy => {
                programs.flows_direct.set_autoload(true);
                programs.flows_directed.set_autoload(true);
            }
            Self::ZeroCopy => {
                programs.flows_peek.set_autoload(true);
                programs.flows_batch_begin.set_autoload(true);
                programs.flows_batch.set_autoload(true);
            }
            Self::Xdp => {
                programs.flows_enter.set_autoload(true);
                programs.flows_leave.set_autoload(true);
            }
        }
    }
}

/// The maps, which all loads share.
struct Maps {
    flows: MapHandle,
    totals: MapHandle,
    drops: MapHandle,
    follow: MapHandle,
    pending: MapHandle,
    queues: MapHandle,
    drop_tables: MapHandle,
    drops_seen: MapHandle,
}

/// What is the same for all loads.
struct Load {
    options: FlowOptions,
    sets: u32,
    cpus: u32,
    seed: u64,
}

/// The loaded programs with their maps.
pub struct FlowPrograms {
    load: Load,
    maps: Maps,
    links: Vec<Link>,
    /// XDP programs that are followed, by id, and what hangs on them.
    followed: HashMap<u32, Vec<Link>>,
    /// The program of each device whose program is followed.
    on: HashMap<u32, u32>,
    notes: Vec<String>,
}

impl fmt::Debug for FlowPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowPrograms").field("notes", &self.notes).finish_non_exhaustive()
    }
}

impl FlowPrograms {
    /// Loads and attaches those for the kernel's hooks. What else this kernel does not let be attached is a note.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::Observe`].
    pub fn load(options: FlowOptions) -> Result<Self, Error> {
        forward_libbpf_messages();
        let cpus = libbpf_rs::num_possible_cpus()
            .map_err(|source| Error::Observe { what: "number of CPUs".to_owned(), source })?;
        let cpus = u32::try_from(cpus).unwrap_or(1).max(1);
        let sets = (SETS / cpus).max(SETS_OF_CPU);
        // Rounded down to a power of two.
        let sets = 1 << sets.ilog2();
        // Unguessable by who sends packets: each `RandomState` has keys of its own.
        let load = Load { options, sets, cpus, seed: RandomState::new().build_hasher().finish() };
        let mut links = Vec::new();
        let kernel = load.group(Group::Kernel { tells_socket: true }, None, None, &mut links);
        let maps = match kernel {
            Ok(maps) => maps,
            Err(error @ Error::NotPermitted { .. }) => return Err(error),
            // Before Linux 6.11 a drop does not tell the socket.
            Err(_) => load.group(Group::Kernel { tells_socket: false }, None, None, &mut links)?,
        };
        let mut notes = Vec::new();
        let groups = [
            Group::Redirects,
            Group::Untraced,
            Group::Forwards,
            Group::ForwardsGeneric,
            Group::Copy,
            Group::ZeroCopy,
        ];
        for group in groups {
            match load.group(group, Some(&maps), None, &mut links) {
                Ok(_) => {}
                // Those that can be traced are counted all the same, and others are told by themselves.
                Err(error) if matches!(group, Group::Untraced) => tracing::debug!(%error, "not attached"),
                Err(error) => {
                    notes.push(format!("not counted: {}: {error}", group.what()));
                    if matches!(group, Group::Forwards)
                        && let Err(error) = load.group(Group::ForwardCount, Some(&maps), None, &mut links)
                    {
                        notes.push(format!("not counted: {}: {error}", Group::ForwardCount.what()));
                    }
                }
            }
        }
        Ok(Self { load, maps, links, followed: HashMap::new(), on: HashMap::new(), notes })
    }

    /// What is not counted, and why.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Hooks of the kernel that are attached.
    pub fn hooks(&self) -> usize {
        self.links.len()
    }

    /// The most devices of an interface.
    pub const DEVICES: usize = 16;

    /// Queues of a device and direction that are told apart: `FLOWS_QUEUES` of `bpf/include/flows_shared.h`.
    pub const QUEUES: usize = 256;

    /// Whether the packets of this program are counted where it returns.
    pub fn follows(&self, program: u32) -> bool {
        self.followed.contains_key(&program)
    }

    /// Counts what a device receives where this program returns, and no longer where another one does; with `None`, where it
    /// is redirected and where the stack receives it. `above`: it is the program of the bond above.
    ///
    /// # Errors
    /// [`Error::Observe`]: it cannot be traced; it is as with `None`.
    pub fn follow(&mut self, device: u32, above: bool, target: Option<&XdpTarget>) -> Result<(), Error> {
        let id = target.map(|target| target.id);
        if self.on.get(&device).copied() == id {
            return Ok(());
        }
        let attached = match target {
            Some(target) if !self.follows(target.id) => {
                let mut links = Vec::new();
                let made = self.load.group(Group::Xdp, Some(&self.maps), Some(target), &mut links).map(drop);
                if made.is_ok() {
                    self.followed.insert(target.id, links);
                }
                made
            }
            _ => Ok(()),
        };
        let id = id.filter(|_| attached.is_ok());
        let value = [id.unwrap_or(0), u32::from(above)].map(u32::to_ne_bytes);
        self.maps
            .follow
            .update(&device.to_ne_bytes(), value.as_flattened(), MapFlags::ANY)
            .map_err(|source| Error::Map { map: "follow_map", source })?;
        match id {
            Some(id) => self.on.insert(device, id),
            None => self.on.remove(&device),
        };
        self.followed.retain(|id, _| self.on.values().any(|on| on == id));
        attached
    }

    /// What has been counted, all CPUs together.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn totals(&self) -> Result<FlowTotals, Error> {
        const MAP: &str = "totals_map";
        let values = self
            .maps
            .totals
            .lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error::Map { map: MAP, source })?
            .ok_or(Error::Layout { map: MAP })?;
        let mut totals = FlowTotals::default();
        for value in values {
            totals.add(&value).ok_or(Error::Layout { map: MAP })?;
        }
        Ok(totals)
    }

    /// What passed each queue, of those that had any packets.
    ///
    /// # Errors
    /// [`Error::List`].
    pub fn queues(&self) -> Result<Vec<FlowQueue>, Error> {
        let devices = self.load.options.devices.get(..Self::DEVICES).unwrap_or(&self.load.options.devices);
        let cpus = self.load.cpus as usize;
        let count = (devices.len() * QUEUES_OF_DEVICE) as u32;
        let values = sys::array_values(self.maps.queues.as_fd(), FlowCounts::SIZE * cpus, count)
            .map_err(|source| Error::List { what: "queues", source })?;
        Ok(entry::queues(&values, devices, cpus))
    }

    /// The flows that are held; one that several CPUs see is there once for each.
    ///
    /// # Errors
    /// [`Error::List`].
    pub fn flows(&self) -> Result<Vec<FlowEntry>, Error> {
        let values = sys::array_values(self.maps.flows.as_fd(), SET, self.load.sets * self.load.cpus)
            .map_err(|source| Error::List { what: "flows", source })?;
        Ok(entry::entries(&values))
    }

    /// Flows that can be held at once, all CPUs together.
    pub fn capacity(&self) -> usize {
        self.load.sets as usize * self.load.cpus as usize * WAYS
    }

    /// Drops by their reason, all CPUs together.
    ///
    /// # Errors
    /// [`Error::Map`], [`Error::Layout`].
    pub fn drops(&self) -> Result<Vec<DropCounts>, Error> {
        const MAP: &str = "drops_map";
        let mut drops = Vec::new();
        for key in self.maps.drops.keys() {
            let values = self
                .maps
                .drops
                .lookup_percpu(&key, MapFlags::ANY)
                .map_err(|source| Error::Map { map: MAP, source })?;
            let Some(values) = values else { continue };
            drops.push(DropCounts::from_values(&key, &values).ok_or(Error::Layout { map: MAP })?);
        }
        drops.sort();
        Ok(drops)
    }
}

impl Load {
    /// Loads and attaches a group, with the maps of the first one.
    fn group(
        &self,
        group: Group,
        maps: Option<&Maps>,
        target: Option<&XdpTarget>,
        links: &mut Vec<Link>,
    ) -> Result<Maps, Error> {
        let failed = |source: libbpf_rs::Error| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if !is_privileged() => {
                Error::NotPermitted { action: "observing an interface".to_owned(), needed: CAPABILITIES }
            }
            _ => Error::Observe { what: group.what().to_owned(), source },
        };
        let mut storage = MaybeUninit::uninit();
        let mut open = FlowsSkelBuilder::default().open(&mut storage).map_err(failed)?;
        group.select(&mut open.progs);
        if let Some(knobs) = open.maps.rodata_data.as_deref_mut() {
            knobs.ifindex = self.options.interface;
            for (place, device) in knobs.devices.iter_mut().zip(&self.options.devices) {
                *place = *device;
            }
            let tag = |(kind, vlan): (u16, u16)| u32::from(kind) << 16 | u32::from(vlan);
            (knobs.vlan_outer, knobs.vlan_inner) = (tag(self.options.tags[0]), tag(self.options.tags[1]));
            knobs.netns = self.options.netns;
            knobs.sent_queues = self.options.sent_queues;
            knobs.ethernet = self.options.ethernet;
            knobs.short_cid = self.options.short_cid;
            knobs.sets = self.sets;
            knobs.seed = self.seed;
            knobs.traced_program = target.map_or(0, |target| target.id);
        }
        match maps {
            None => {
                open.maps.flows_map.set_max_entries(self.sets * self.cpus).map_err(failed)?;
                let queues = self.options.devices.len().clamp(1, FlowPrograms::DEVICES) * QUEUES_OF_DEVICE;
                open.maps.queues_map.set_max_entries(queues as u32).map_err(failed)?;
            }
            Some(maps) => {
                open.maps.flows_map.reuse_fd(maps.flows.as_fd()).map_err(failed)?;
                open.maps.totals_map.reuse_fd(maps.totals.as_fd()).map_err(failed)?;
                open.maps.drops_map.reuse_fd(maps.drops.as_fd()).map_err(failed)?;
                open.maps.follow_map.reuse_fd(maps.follow.as_fd()).map_err(failed)?;
                open.maps.pending_map.reuse_fd(maps.pending.as_fd()).map_err(failed)?;
                open.maps.queues_map.reuse_fd(maps.queues.as_fd()).map_err(failed)?;
                // What is for an XDP program has its own.
                if target.is_none() {
                    open.maps.drop_tables_map.reuse_fd(maps.drop_tables.as_fd()).map_err(failed)?;
                    open.maps.drops_seen_map.reuse_fd(maps.drops_seen.as_fd()).map_err(failed)?;
                }
            }
        }
        if let Some(target) = target {
            let program = target.program.as_raw_fd();
            for tracer in [&mut open.progs.flows_enter, &mut open.progs.flows_leave] {
                tracer.set_attach_target(program, Some(target.function.clone())).map_err(failed)?;
            }
        }
        let loaded = open.load().map_err(failed)?;
        let programs = &loaded.progs;
        let drop_tables = MapHandle::try_from(&loaded.maps.drop_tables_map).map_err(failed)?;
        let drops_seen = MapHandle::try_from(&loaded.maps.drops_seen_map).map_err(failed)?;
        if let Some(target) = target {
            let handle = |map: &MapHandle| MapHandle::try_from(map).map_err(failed);
            DropTables::new(handle(&drop_tables)?, handle(&drops_seen)?).follow(target.program.as_fd());
        }
        let chosen = match group {
            Group::Kernel { tells_socket } => vec![
                &programs.flows_receive,
                &programs.flows_send,
                &programs.flows_sent,
                if tells_socket { &programs.flows_free } else { &programs.flows_free_older },
            ],
            Group::Redirects => vec![&programs.flows_redirect, &programs.flows_redirect_error],
            Group::Forwards => vec![&programs.flows_forwarded, &programs.flows_forwarding],
            Group::ForwardCount => vec![&programs.flows_forward],
            Group::ForwardsGeneric => vec![
                &programs.flows_forward_generic,
                &programs.flows_forwarded_generic,
                &programs.flows_forwarding_generic,
            ],
            Group::Untraced => vec![&programs.flows_redirecting, &programs.flows_redirecting_generic],
            Group::Copy => vec![&programs.flows_direct, &programs.flows_directed],
            Group::ZeroCopy => {
                vec![&programs.flows_batch_begin, &programs.flows_peek, &programs.flows_batch]
            }
            Group::Xdp => vec![&programs.flows_leave, &programs.flows_enter],
        };
        let attached: Result<Vec<Link>, _> = chosen.into_iter().map(|program| program.attach()).collect();
        links.extend(attached.map_err(failed)?);
        Ok(Maps {
            flows: MapHandle::try_from(&loaded.maps.flows_map).map_err(failed)?,
            totals: MapHandle::try_from(&loaded.maps.totals_map).map_err(failed)?,
            drops: MapHandle::try_from(&loaded.maps.drops_map).map_err(failed)?,
            follow: MapHandle::try_from(&loaded.maps.follow_map).map_err(failed)?,
            pending: MapHandle::try_from(&loaded.maps.pending_map).map_err(failed)?,
            queues: MapHandle::try_from(&loaded.maps.queues_map).map_err(failed)?,
            drop_tables,
            drops_seen,
        })
    }
}
