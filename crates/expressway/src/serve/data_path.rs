//! The data path: kernel sockets for every worker and address, and on each interface that takes it an XDP
//! program with AF_XDP sockets for its queues.
//!
//! The order matters. Kernel sockets come first, so that nothing is lost that XDP passes. Then the program is
//! attached with no pairs (everything passes), the sockets are bound and entered into its map, and only then
//! the pairs are added: from that moment packets take the express path.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;

use expressway_gateway::config::{Config, Io, IoMode, UdpSend};
use expressway_netio::PacketIo;
use expressway_netio::device::Locality;
use expressway_netio::express::{Backing, ExpressConfig, ExpressIo, Port, PortInlet, ShareConfig};
use expressway_netio::netdev::NapiGuard;
use expressway_netio::route::{Resolver, RouteMirror, Snapshot};
use expressway_netio::udp::{SendMode, SendOptions, Steering, UdpConfig, UdpIo};
use expressway_xbpf::{AttachMode, Counters};

use super::devices::{Device, Reason, devices, pairs};
use super::napi;
use super::opening::{self, Opened, QueueWay, Way};
use super::source::{Program, Source};
use super::upkeep::Upkeep;
use crate::choice::{Obtained, StepDown};
use crate::fail::Failure;

/// Where the worker's number stands in a short-header packet: the first byte of the connection ID, behind
/// the first byte of the packet; long headers (0x80) are left to the kernel's hash.
const STEERING: Steering = Steering::ByteAt { offset: 1, clear_mask: 0x80 };

/// What the data path is to be.
#[derive(Clone)]
pub(crate) struct PathConfig {
    /// Mode, and settings of AF_XDP sockets.
    pub(crate) io: Io,
    /// The kernel sockets, and with them the addresses.
    pub(crate) udp: UdpConfig,
    /// What the interfaces are opened for.
    pub(crate) purpose: Purpose,
    /// The interface that multicast groups among the addresses come in on; without one they are the kernel's.
    pub(crate) groups_on: Option<String>,
    /// How datagrams are sent, by AF_XDP too.
    pub(crate) sending: SendOptions,
}

/// What interfaces are opened for.
#[derive(Clone, Debug)]
pub(crate) struct Purpose {
    /// To send too; else no way of sending is tried, and no frames are kept for it.
    pub(crate) sends: bool,
    /// To learn when packets came: from the device where it tells, else from the XDP program. (Of kernel sockets
    /// [`UdpConfig::timestamps`] says it.)
    pub(crate) timestamps: bool,
    /// Who may read packets from other processes. The path is of a folder.
    pub(crate) lend: Option<ShareConfig>,
}

impl Purpose {
    /// Receiving and sending.
    pub(crate) const SERVE: Self = Self { sends: true, timestamps: false, lend: None };
}

impl PathConfig {
    /// That of a gateway.
    pub(crate) fn of(config: &Config) -> Self {
        let udp = udp_config(config);
        Self {
            io: config.io.clone(),
            udp,
            purpose: Purpose::SERVE,
            groups_on: None,
            sending: SendOptions::default(),
        }
    }

    /// Index of the interface that multicast groups come in on now.
    pub(super) fn groups_on(&self, snapshot: &Snapshot) -> Option<u32> {
        snapshot.link_by_name(self.groups_on.as_deref()?).map(|link| link.index)
    }
}

/// A worker's packet I/O.
pub(crate) enum WorkerIo {
    /// Kernel sockets alone.
    Kernel(Box<UdpIo>),
    /// AF_XDP sockets with kernel sockets behind.
    Express(Box<ExpressIo<UdpIo, Resolver>>),
}

/// What all workers share of the data path; dropping it detaches the XDP programs.
pub(crate) struct DataPath {
    pub(super) config: PathConfig,
    pub(super) source: Source,
    pub(super) listen: Vec<SocketAddr>,
    pub(super) mirror: RouteMirror,
    /// Of the addresses that the interfaces take; `None` until they do.
    pub(super) generation: Option<u64>,
    pub(super) interfaces: Vec<Interface>,
    /// Where each worker takes sockets from; none when the mode is kernel UDP.
    pub(super) inlets: Vec<PortInlet>,
    pub(super) upkeep: Upkeep,
    /// Puts the interfaces' NAPI settings back.
    _napi: Option<NapiGuard>,
    left: Left,
}

/// An interface with our program on it.
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    way: Way,
    /// Receive channels when it was opened.
    pub(super) queues: u32,
    pairs: HashSet<SocketAddr>,
    pub(super) program: Program,
    /// Its program was taken off by somebody.
    pub(super) detached: bool,
}

/// Interfaces that were tried and left to the kernel, with the steps down.
type Left = BTreeMap<String, Vec<StepDown>>;

impl Interface {
    fn new(device: &Device, opened: Opened) -> (Self, Vec<(usize, Port)>) {
        let Opened { program, queues, ports, way } = opened;
        let (index, name) = (device.link.index, device.link.name.clone());
        let pairs = HashSet::new();
        (Self { index, name, way, queues, pairs, program, detached: false }, ports)
    }

    /// Has the program take these pairs and no others.
    fn take_pairs(&mut self, wanted: &HashSet<SocketAddr>) -> Result<(), Failure> {
        for gone in self.pairs.difference(wanted).copied().collect::<Vec<_>>() {
            self.program.remove_pair(gone)?;
            self.pairs.remove(&gone);
        }
        for new in wanted.difference(&self.pairs).copied().collect::<Vec<_>>() {
            self.program.add_pair(new)?;
            self.pairs.insert(new);
        }
        Ok(())
    }
}

impl DataPath {
    /// Opens everything for `workers` workers, with what takes privilege from `source`.
    pub(crate) fn start(
        config: PathConfig,
        source: Source,
        workers: usize,
    ) -> Result<(Self, Vec<WorkerIo>), Failure> {
        let mut tries = 0;
        source.persist(|| {
            tries += 1;
            Self::open_all(&config, &source, workers, tries > 1)
        })
    }

    /// One try of that.
    fn open_all(
        config: &PathConfig,
        source: &Source,
        workers: usize,
        again: bool,
    ) -> Result<(Self, Vec<WorkerIo>), Failure> {
        let listen = config.udp.listen.clone();
        let kernel = source.kernel_sockets(&config.udp, workers)?.into_workers();
        let mirror = source.mirror()?;
        let snapshot = mirror.snapshot();
        let mut ports: Vec<Vec<Port>> = (0..workers).map(|_| Vec::new()).collect();
        let (mut interfaces, mut left) = (Vec::new(), Left::new());
        let mut upkeep = Upkeep::default();
        for device in devices(config.io.mode, &listen, config.groups_on(&snapshot), &snapshot)? {
            match open_interface(config, source, &device, &snapshot, workers, &mut left)? {
                Some(opened) => {
                    let (mode, sockets) = (opened.way.obtained(), opened.ports.len());
                    let again = if again { " again" } else { "" };
                    tracing::info!(interface = device.link.name, %mode, sockets, "express path open{again}");
                    let (interface, sockets) = Interface::new(&device, opened);
                    sockets.into_iter().for_each(|(worker, port)| ports[worker].push(port));
                    interfaces.push(interface);
                }
                None => upkeep.leave(&device.link.name, device.link.index),
            }
        }
        let (mut ios, mut inlets) = (Vec::new(), Vec::new());
        for (sockets, ports) in kernel.into_iter().zip(ports) {
            let mut kernel = UdpIo::new(&config.udp, sockets).map_err(Failure::run_time)?;
            kernel.set_resolver(mirror.resolver().map_err(Failure::run_time)?);
            kernel.set_sending(&config.sending).map_err(Failure::run_time)?;
            let wait = config.io.wait();
            if config.io.mode == IoMode::Udp {
                // The worker does this too, but an error should come before `ready`.
                kernel.set_wait(wait).map_err(Failure::run_time)?;
                ios.push(WorkerIo::Kernel(Box::new(kernel)));
                continue;
            }
            let mut resolver = mirror.resolver().map_err(Failure::run_time)?;
            if let Some(egress) = config.sending.multicast_interface {
                resolver.set_multicast_egress(egress);
            }
            let plain = ExpressConfig::default();
            let express = ExpressConfig { ttl: config.sending.ttl.unwrap_or(plain.ttl), ..plain };
            let mut io = ExpressIo::new(ports, kernel, resolver, express).map_err(Failure::run_time)?;
            io.set_wait(wait).map_err(Failure::run_time)?;
            inlets.push(io.inlet());
            ios.push(WorkerIo::Express(Box::new(io)));
        }
        let napi = napi::defer(&config.io, &interfaces)?;
        let mut path = Self {
            _napi: napi,
            config: config.clone(),
            source: source.clone(),
            listen,
            mirror,
            generation: None,
            interfaces,
            inlets,
            upkeep,
            left,
        };
        path.follow_addresses()?;
        Ok((path, ios))
    }

    /// The mode of each listen address.
    pub(crate) fn modes(&self) -> Vec<(SocketAddr, Obtained)> {
        let snapshot = self.mirror.snapshot();
        let mode = |address: &SocketAddr| {
            let carriers = snapshot
                .interface_of(address.ip())
                .map_or(Vec::new(), |link| snapshot.carriers_of(link.index));
            let serves = |interface: &&Interface| {
                !interface.detached
                    && (address.ip().is_unspecified()
                        || carriers.iter().any(|device| device.index == interface.index))
            };
            self.interfaces.iter().find(serves).map_or(Obtained::Udp, |interface| interface.way.obtained())
        };
        self.listen.iter().map(|address| (*address, mode(address))).collect()
    }

    /// The mode as one word: that of the first interface, or `udp`.
    pub(crate) fn mode(&self) -> Obtained {
        self.interfaces.first().map_or(Obtained::Udp, |interface| interface.way.obtained())
    }

    /// Whether every open interface stamps what it receives by AF_XDP.
    pub(crate) fn stamps(&self) -> bool {
        self.interfaces.iter().all(|interface| interface.program.stamps())
    }

    /// The pages that hold each AF_XDP socket's memory, by interface and queue.
    pub(crate) fn pages(&self) -> Vec<(&str, u32, Backing)> {
        let of = |one: &'_ Interface| one.way.pages();
        self.interfaces
            .iter()
            .flat_map(|one| of(one).into_iter().map(|(queue, backing)| (one.name.as_str(), queue, backing)))
            .collect()
    }

    /// Each open interface with how the program is attached and what its queues with a socket do now.
    pub(crate) fn ways(&self) -> Vec<(&str, AttachMode, Vec<QueueWay>)> {
        let way = |one: &'_ Interface| (one.way.attach, one.way.queues());
        let named = self.interfaces.iter().map(|one| (one.name.as_str(), way(one)));
        named.map(|(name, (attach, queues))| (name, attach, queues)).collect()
    }

    /// Where the devices of the open interfaces are in the machine.
    pub(crate) fn localities(&self) -> Vec<Locality> {
        self.interfaces.iter().filter_map(|interface| interface.way.locality.clone()).collect()
    }

    /// Every step down, of interfaces open and left to the kernel.
    pub(crate) fn step_downs(&self) -> Vec<StepDown> {
        let open = self.interfaces.iter().flat_map(|interface| interface.way.step_downs());
        open.chain(self.left.values().flatten().cloned()).collect()
    }

    /// Each interface's name and the counters of its XDP program.
    pub(crate) fn counters(&self) -> Vec<(String, Counters)> {
        let read = |interface: &Interface| Some((interface.name.clone(), interface.program.counters()?));
        self.interfaces.iter().filter_map(read).collect()
    }

    /// Takes the programs off and takes leave of who gave them: before the process ends, also where that is an
    /// agent's work.
    pub(crate) fn finish(&mut self) {
        self.interfaces.clear();
        self.source = Source::Own;
    }

    /// Opens an interface while the workers run, and gives them its sockets.
    pub(super) fn open(&mut self, device: &Device) -> Result<Obtained, Reason> {
        let workers = self.inlets.len();
        let name = &device.link.name;
        let opened = opening::open(
            (&self.config.io, &self.config.purpose),
            &self.source,
            device,
            &self.mirror.snapshot(),
            workers,
        );
        let opened = opened.map_err(|(reason, steps)| {
            self.left.insert(name.clone(), steps);
            reason
        })?;
        self.left.remove(name);
        let (interface, ports) = Interface::new(device, opened);
        for (worker, port) in ports {
            if !self.inlets[worker].add(port) {
                self.take_back(interface.index);
                return Err(Reason(format!("worker {worker} takes no more sockets")));
            }
        }
        let obtained = interface.way.obtained();
        self.interfaces.push(interface);
        Ok(obtained)
    }

    /// Has the workers close their sockets on an interface at their next turn.
    pub(super) fn take_back(&self, index: u32) {
        for inlet in &self.inlets {
            if !inlet.remove(index) {
                tracing::error!("a worker takes no changes; its AF_XDP sockets stay");
            }
        }
    }

    /// Makes each interface take the pairs that belong to it now. What could not be done is tried again the next time.
    pub(super) fn follow_addresses(&mut self) -> Result<(), Failure> {
        let generation = self.mirror.generation();
        let snapshot = self.mirror.snapshot();
        let groups_on = self.config.groups_on(&snapshot);
        let mut result = Ok(());
        for interface in &mut self.interfaces {
            let wanted = pairs(&self.listen, groups_on, &snapshot, interface.index);
            result = result.and(interface.take_pairs(&wanted));
        }
        if result.is_ok() {
            self.generation = Some(generation);
        }
        result
    }
}

fn udp_config(config: &Config) -> UdpConfig {
    let mut udp = UdpConfig::new(config.listen());
    udp.steering = STEERING;
    udp.wait = config.io.wait();
    udp.send = match config.io.udp_send {
        UdpSend::Gso => SendMode::Gso,
        UdpSend::Sendmmsg => SendMode::Sendmmsg,
        UdpSend::Sendmsg => SendMode::Sendmsg,
    };
    if let Some(size) = &config.io.socket_buffer {
        udp.socket_receive_buffer = size.get_ref().0 as usize;
        udp.socket_send_buffer = size.get_ref().0 as usize;
    }
    udp
}

/// Opens one interface at start. `None` when `auto` leaves it to the kernel.
fn open_interface(
    config: &PathConfig,
    source: &Source,
    device: &Device,
    snapshot: &Snapshot,
    workers: usize,
    left: &mut Left,
) -> Result<Option<Opened>, Failure> {
    let (mode, name) = (config.io.mode, &device.link.name);
    match opening::open((&config.io, &config.purpose), source, device, snapshot, workers) {
        Ok(opened) => Ok(Some(opened)),
        Err((reason, steps)) if opening::may_leave(mode) => {
            tracing::info!(interface = name, "kernel UDP serves this interface: {reason}");
            left.insert(name.clone(), steps);
            Ok(None)
        }
        Err((reason, _)) => Err(Failure::run_time(format!("--io {mode}: {reason}"))),
    }
}
