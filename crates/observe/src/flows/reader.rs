//! Reads the kernel's counters of one interface into samples.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use expressway_xbpf::{
    DropCounts, DropKind, Error, FlowCounts, FlowEntry, FlowOptions, FlowPrograms, XdpDrop, drop_reasons,
};

use super::conversation::Conversation;
use super::cpus::Cpus;
use super::devices::Devices;
use super::queues::Queues;
use super::sample::{Drop, Flow, Paths, Sample, Totals};
use crate::Verdict;
use crate::drops::{DropReason, EGRESS, Layer};
use crate::sockets::{Socket, Sockets};

/// Why an interface cannot be observed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlowsError {
    /// There is no such interface.
    #[error("interface {0}: no such interface in this network namespace; see `ip link`")]
    NoInterface(String),
    /// What the kernel says of the interface or the namespace cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The interfaces cannot be listed.
    #[error("rtnetlink: reading the interfaces: {0}")]
    Devices(std::io::Error),
    /// Loading, attaching or reading failed.
    #[error(transparent)]
    Programs(#[from] Error),
}

/// What is observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The interface's name, in the caller's network namespace.
    pub interface: String,
    /// Octets of the connection IDs in short headers of QUIC that are received, at most 20; 0: not looked at.
    pub short_cid: u32,
}

/// A flow's tenure of its place, as read last.
#[derive(Clone, Copy)]
struct Seen {
    born: u64,
    counts: FlowCounts,
    dropped: u64,
}

/// An interface that is observed. Dropping it, or the end of the process, detaches everything.
pub struct Flows {
    options: Options,
    index: u32,
    devices: Devices,
    programs: FlowPrograms,
    sockets: Sockets,
    cpus: Cpus,
    reasons: BTreeMap<u32, String>,
    /// By place.
    seen: HashMap<u32, Seen>,
    queues: Queues,
    read: Instant,
}

impl std::fmt::Debug for Flows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flows").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Flows {
    /// Attaches to the interface's hooks.
    ///
    /// # Errors
    /// [`FlowsError`]: no interface, no privileges, a kernel without BTF.
    pub fn open(options: Options) -> Result<Self, FlowsError> {
        let index = index(&options.interface)?;
        let kind = number(&format!("/sys/class/net/{}/type", options.interface))?;
        let path = "/proc/thread-self/ns/net";
        let netns = std::fs::metadata(path)
            .map_err(|source| FlowsError::Read { path: path.to_owned(), source })?
            .ino();
        let devices = Devices::of(index).map_err(|error| FlowsError::Devices(error.source))?;
        let programs = FlowPrograms::load(FlowOptions {
            interface: index,
            devices: devices.below().to_vec(),
            sent_queues: devices.sent_queues(),
            tags: devices.tags(),
            netns: u32::try_from(netns).unwrap_or(0),
            // ARPHRD_ETHER and ARPHRD_LOOPBACK of linux/if_arp.h.
            ethernet: matches!(kind, 1 | 772),
            short_cid: options.short_cid.min(20),
        })?;
        let mut flows = Self {
            options,
            index,
            devices,
            programs,
            sockets: Sockets::open(),
            cpus: Cpus::default(),
            reasons: drop_reasons(),
            seen: HashMap::new(),
            queues: Queues::default(),
            read: Instant::now(),
        };
        flows.devices.follow(&mut flows.programs, true);
        flows.cpus.read();
        Ok(flows)
    }

    /// The interface's index.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Follows the interface's program if another one has come: to be called between readings too, for until then only what
    /// a program redirects and passes is counted.
    pub fn look(&mut self) {
        self.devices.follow(&mut self.programs, false);
    }

    /// Whether its packets pass other devices by now, which only another [`Flows::open`] counts on.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.devices.have_changed()
    }

    /// Follows the interface's program if another one has come, and reads everything. Linear in the size of the kernel's
    /// table, which is bounded.
    ///
    /// # Errors
    /// [`FlowsError::Programs`]. That the interface is gone is none: [`Sample::present`] is false.
    pub fn read(&mut self) -> Result<Sample, FlowsError> {
        // Flows first: what is counted meanwhile is in the totals, and not the other way round.
        let flows = self.flows()?;
        let queues = self.queues.read(&self.programs, self.devices.below())?;
        let totals = self.programs.totals()?;
        let sockets = self.sockets.list().unwrap_or_default();
        let mut drops = self.drops()?;
        drops.extend(socket_drops(&sockets, self.devices.below()));
        let present = index(&self.options.interface).is_ok_and(|index| index == self.index);
        let program = self.devices.follow(&mut self.programs, false);
        let now = Instant::now();
        let elapsed = now.duration_since(self.read);
        self.read = now;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Sample {
            time: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            elapsed: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            interface: self.options.interface.clone(),
            present,
            program,
            notes: self.notes(),
            totals: Totals {
                received: Paths::from(&totals.received),
                sent: Paths::from(&totals.sent),
                not_held: totals.not_held,
                evictions: totals.evictions,
            },
            flows,
            queues,
            drops,
            sockets,
            cpus: self.cpus.read(),
        })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.programs.notes().to_vec();
        notes.extend(self.devices.notes());
        if !self.sockets.has_levels() {
            notes.push("not known: how full the rings of AF_XDP sockets are".to_owned());
        }
        notes
    }

    /// What each conversation had since the reading before.
    fn flows(&mut self) -> Result<Vec<Flow>, FlowsError> {
        let entries = self.programs.flows()?;
        let mut flows: HashMap<Conversation, Flow> = HashMap::new();
        for entry in &entries {
            let before = self.seen.get(&entry.place).filter(|seen| seen.born == entry.born);
            let (counts, dropped) = match before {
                Some(seen) => (entry.counts.since(&seen.counts), entry.dropped.saturating_sub(seen.dropped)),
                None => (entry.counts, entry.dropped),
            };
            if !counts.is_zero() || dropped > 0 {
                add(&mut flows, entry, &counts, dropped);
            }
        }
        self.seen = entries
            .iter()
            .map(|entry| {
                (entry.place, Seen { born: entry.born, counts: entry.counts, dropped: entry.dropped })
            })
            .collect();
        Ok(flows.into_values().collect())
    }

    /// What programs and the kernel dropped, by reason: several errors may have the same.
    fn drops(&self) -> Result<Vec<Drop>, FlowsError> {
        let mut drops: Vec<Drop> = Vec::new();
        for counts in self.programs.drops()? {
            let drop = self.name(&counts);
            match drops.iter_mut().find(|one| one.by == drop.by && one.reason == drop.reason) {
                Some(same) => {
                    same.packets += drop.packets;
                    same.bytes += drop.bytes;
                }
                None => drops.push(drop),
            }
        }
        Ok(drops)
    }

    fn name(&self, drop: &DropCounts) -> Drop {
        let (by, reason) = match drop.kind {
            DropKind::Verdict | DropKind::Redirect => {
                let verdict = match (drop.kind, drop.reason) {
                    (DropKind::Redirect, error) => Verdict::Redirect { error: Some(error.cast_signed()) },
                    (_, 1) => Verdict::Drop,
                    // XDP_ABORTED, or what the kernel takes for it.
                    _ => Verdict::Aborted,
                };
                let reason = DropReason::of_verdict(verdict).expect("neither goes on");
                (reason.layer.name(), reason.name.to_owned())
            }
            DropKind::Program => {
                let drop = u16::try_from(drop.reason).ok().and_then(XdpDrop::from_number);
                let of_verdict = || DropReason::of_verdict(Verdict::Drop).expect("it does not go on");
                let reason = drop.map_or_else(of_verdict, DropReason::of_program);
                (reason.layer.name(), reason.name.to_owned())
            }
            DropKind::Egress => (Layer::Xdp.name(), EGRESS.to_owned()),
            DropKind::Kernel => {
                let name = self.reasons.get(&drop.reason).cloned();
                ("kernel", name.unwrap_or_else(|| format!("reason {}", drop.reason)))
            }
        };
        Drop { by: by.to_owned(), reason, packets: drop.packets, bytes: drop.bytes }
    }
}

fn add(flows: &mut HashMap<Conversation, Flow>, entry: &FlowEntry, counts: &FlowCounts, dropped: u64) {
    let conversation = Conversation::of(&entry.key);
    let flow = flows.entry(conversation).or_insert_with(|| Flow {
        conversation,
        received: Paths::default(),
        sent: Paths::default(),
        dropped: 0,
        cid: String::new(),
        quic: false,
    });
    let direction = if entry.key.out { &mut flow.sent } else { &mut flow.received };
    *direction += Paths::from(counts);
    flow.dropped += dropped;
    flow.quic |= entry.quic;
    if !entry.key.out && !entry.cid.is_empty() {
        flow.cid = HEX.encode(&entry.cid);
    }
}

/// What the sockets of the interface's devices lost, by XDP_STATISTICS.
fn socket_drops(sockets: &[Socket], devices: &[u32]) -> Vec<Drop> {
    let mut drops = Vec::new();
    let is_on = |socket: &&Socket| {
        socket.own_namespace && socket.interface.is_some_and(|interface| devices.contains(&interface))
    };
    for socket in sockets.iter().filter(is_on) {
        let statistics = &socket.statistics;
        for (what, packets) in [
            ("rx-full", statistics.rx_ring_full),
            ("no-frame", statistics.rx_dropped),
            ("rx-descriptor", statistics.rx_invalid_descriptors),
            ("tx-descriptor", statistics.tx_invalid_descriptors),
        ] {
            if packets > 0 {
                let reason = DropReason::find(Layer::Ring, what).expect("it is in the list");
                let reason = format!("{}, queue {}", reason.name, socket.queue);
                drops.push(Drop { by: "xsk".to_owned(), reason, packets, bytes: 0 });
            }
        }
    }
    drops
}

fn index(interface: &str) -> Result<u32, FlowsError> {
    let missing = || FlowsError::NoInterface(interface.to_owned());
    // The name becomes a part of a path below.
    if interface.is_empty() || interface.contains('/') || interface == "." || interface == ".." {
        return Err(missing());
    }
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .and_then(|socket| netdevice::name_to_index(&socket, interface))
        .map_err(|_| missing())
}

fn number(path: &str) -> Result<u32, FlowsError> {
    let failed = |source| FlowsError::Read { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    text.trim().parse().map_err(|error| failed(std::io::Error::other(error)))
}
