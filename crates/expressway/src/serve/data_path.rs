//! The data path: kernel sockets for every worker and address, and on each interface that takes it an XDP
//! program with AF_XDP sockets for its queues.
//!
//! The order matters. Kernel sockets come first, so that nothing is lost that XDP passes. Then the program is
//! attached with no pairs (everything passes), the sockets are bound and entered into its map, and only then
//! the pairs are added: from that moment packets take the express path.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use expressway_gateway::config::{Config, Io, IoMode, UdpSend};
use expressway_netio::PacketIo;
use expressway_netio::device::{DeviceFacts, GRO_FORWARDING, UDP_SEGMENTATION};
use expressway_netio::express::{
    ExpressConfig, ExpressIo, ObtainedMode, Port, PortConfig, PortInlet, TransmitVia,
};
use expressway_netio::netdev::NapiGuard;
use expressway_netio::route::{Link, Resolver, RouteMirror};
use expressway_netio::udp::{SendMode, Steering, UdpConfig, UdpIo};
use expressway_xbpf::{Counters, Existing};

use super::devices::{Device, Reason, devices, pairs};
use super::mode::{Obtained, Step, steps};
use super::napi;
use super::source::{Program, Source};
use super::upkeep::Upkeep;
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
}

impl PathConfig {
    /// That of a gateway.
    pub(crate) fn of(config: &Config) -> Self {
        Self { io: config.io.clone(), udp: udp_config(config) }
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
    pub(super) generation: u64,
    pub(super) interfaces: Vec<Interface>,
    /// Where each worker takes sockets from; none when the mode is kernel UDP.
    pub(super) inlets: Vec<PortInlet>,
    pub(super) upkeep: Upkeep,
    /// Puts the interfaces' NAPI settings back.
    _napi: Option<NapiGuard>,
}

/// An interface with our program on it.
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    obtained: Obtained,
    /// Receive channels when it was opened.
    pub(super) queues: u32,
    pairs: HashSet<SocketAddr>,
    pub(super) program: Program,
    /// Its program was taken off by somebody.
    pub(super) detached: bool,
}

/// An interface opened, with its sockets by worker.
struct Opened {
    interface: Interface,
    ports: Vec<(usize, Port)>,
}

impl DataPath {
    /// Opens everything for `workers` workers, with what takes privilege from `source`.
    pub(crate) fn start(
        config: PathConfig,
        source: Source,
        workers: usize,
    ) -> Result<(Self, Vec<WorkerIo>), Failure> {
        let udp = &config.udp;
        let listen = udp.listen.clone();
        let kernel = source.kernel_sockets(udp, workers)?.into_workers();
        let mirror = source.mirror()?;
        let snapshot = mirror.snapshot();
        let mut opened = Vec::new();
        let mut upkeep = Upkeep::default();
        for device in devices(config.io.mode, &listen, &snapshot)? {
            match open_interface(&config, &source, &device, workers)? {
                Some(one) => opened.push(one),
                None => upkeep.leave(&device.link.name, device.link.index),
            }
        }
        let mut ports: Vec<Vec<Port>> = (0..workers).map(|_| Vec::new()).collect();
        let mut interfaces = Vec::new();
        for one in opened {
            one.ports.into_iter().for_each(|(worker, port)| ports[worker].push(port));
            interfaces.push(one.interface);
        }
        let (mut ios, mut inlets) = (Vec::new(), Vec::new());
        for (sockets, ports) in kernel.into_iter().zip(ports) {
            let mut kernel = UdpIo::new(udp, sockets).map_err(Failure::run_time)?;
            kernel.set_resolver(mirror.resolver().map_err(Failure::run_time)?);
            let wait = config.io.wait();
            if config.io.mode == IoMode::Udp {
                // The worker does this too, but an error should come before `ready`.
                kernel.set_wait(wait).map_err(Failure::run_time)?;
                ios.push(WorkerIo::Kernel(Box::new(kernel)));
                continue;
            }
            let resolver = mirror.resolver().map_err(Failure::run_time)?;
            let mut io = ExpressIo::new(ports, kernel, resolver, ExpressConfig::default())
                .map_err(Failure::run_time)?;
            io.set_wait(wait).map_err(Failure::run_time)?;
            inlets.push(io.inlet());
            ios.push(WorkerIo::Express(Box::new(io)));
        }
        let napi = napi::defer(&config.io, &interfaces)?;
        let mut path =
            Self { _napi: napi, config, source, listen, mirror, generation: 0, interfaces, inlets, upkeep };
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
            self.interfaces.iter().find(serves).map_or(Obtained::Udp, |interface| interface.obtained)
        };
        self.listen.iter().map(|address| (*address, mode(address))).collect()
    }

    /// The mode as one word: that of the first interface, or `udp`.
    pub(crate) fn mode(&self) -> Obtained {
        self.interfaces.first().map_or(Obtained::Udp, |interface| interface.obtained)
    }

    /// Each interface's name and the counters of its XDP program.
    pub(crate) fn counters(&self) -> Vec<(String, Counters)> {
        let read = |interface: &Interface| Some((interface.name.clone(), interface.program.counters()?));
        self.interfaces.iter().filter_map(read).collect()
    }

    /// Takes the programs off and takes leave of who gave them: before the process ends, also where that is an
    /// agent's work.
    pub(super) fn finish(&mut self) {
        self.interfaces.clear();
        self.source = Source::Own;
    }

    /// Opens an interface while the workers run, and gives them its sockets.
    pub(super) fn open(&mut self, device: &Device) -> Result<Obtained, Reason> {
        let workers = self.inlets.len();
        let Opened { interface, ports } = open_steps(&self.config, &self.source, device, workers)?;
        for (worker, port) in ports {
            if !self.inlets[worker].add(port) {
                return Err(Reason(format!("worker {worker} takes no more sockets")));
            }
        }
        let obtained = interface.obtained;
        self.interfaces.push(interface);
        Ok(obtained)
    }

    /// Makes each interface take the pairs that belong to it now.
    pub(super) fn follow_addresses(&mut self) -> Result<(), Failure> {
        self.generation = self.mirror.generation();
        let snapshot = self.mirror.snapshot();
        for interface in &mut self.interfaces {
            let wanted = pairs(&self.listen, &snapshot, interface.index);
            for gone in interface.pairs.difference(&wanted) {
                interface.program.remove_pair(*gone)?;
            }
            for new in wanted.difference(&interface.pairs) {
                interface.program.add_pair(*new)?;
            }
            interface.pairs = wanted;
        }
        Ok(())
    }
}

fn udp_config(config: &Config) -> UdpConfig {
    let mut udp = UdpConfig::new(config.listen());
    udp.steering = STEERING;
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
    workers: usize,
) -> Result<Option<Opened>, Failure> {
    let (mode, name) = (config.io.mode, &device.link.name);
    for hazard in source.device(&device.link).map_or_else(|_| Vec::new(), |found| hazards(&found.facts)) {
        tracing::warn!(interface = name, "{hazard}");
    }
    match open_steps(config, source, device, workers) {
        Ok(opened) => {
            let (mode, sockets) = (opened.interface.obtained, opened.ports.len());
            tracing::info!(interface = name, %mode, sockets, "express path open");
            Ok(Some(opened))
        }
        Err(reason) if mode == IoMode::Auto => {
            tracing::info!(interface = name, "kernel UDP serves this interface: {reason}");
            Ok(None)
        }
        Err(reason) => Err(Failure::run_time(format!("--io {mode}: {reason}"))),
    }
}

/// Tries the steps of the mode on one interface; the reason is that of the last.
fn open_steps(
    config: &PathConfig,
    source: &Source,
    device: &Device,
    workers: usize,
) -> Result<Opened, Reason> {
    let (mode, name) = (config.io.mode, &device.link.name);
    let found = source.device(&device.link)?;
    let queues = found.facts.channels.map_or(device.link.rx_queues, |channels| channels.rx).max(1);
    let may = |queue: &u32| found.allowed.as_ref().is_none_or(|allowed| allowed.contains(queue));
    let usable: Vec<u32> = wanted(config, name, queues)?.into_iter().filter(may).collect();
    if usable.is_empty() {
        return Err(Reason(format!(
            "{name}: the agent's rule allows none of the queues wanted, of {queues}"
        )));
    }
    let mut last = Reason(format!("{name}: no mode to try"));
    for step in steps(mode, found.facts.has(UDP_SEGMENTATION)) {
        let step = match (device.is_member, step.transmit) {
            (true, TransmitVia::Express) if mode != IoMode::Auto => {
                last = Reason(format!(
                    "{name}: its bond chooses the member that sends: use --io hybrid or auto"
                ));
                continue;
            }
            (true, _) => Step { transmit: TransmitVia::Kernel, ..step },
            (false, _) => step,
        };
        match try_step(config, source, &device.link, (queues, &usable), workers, step) {
            Ok(opened) => return Ok(opened),
            Err(reason) => {
                if mode == IoMode::Auto {
                    tracing::info!(interface = name, bind = %step.bind, "auto steps down: {reason}");
                }
                last = reason;
            }
        }
    }
    Err(last)
}

/// The settings of a device that harm a UDP service on it, each with the command that mends it: GRO that merges
/// datagrams to be forwarded, and receive queues chosen without the ports.
fn hazards(facts: &DeviceFacts) -> Vec<String> {
    let name = &facts.name;
    let mut hazards = Vec::new();
    if facts.has(GRO_FORWARDING) {
        hazards.push(format!(
            "rx-udp-gro-forwarding merges the datagrams of a flow: `ethtool -K {name} rx-udp-gro-forwarding off`"
        ));
    }
    for hash in facts.hashes.iter().filter(|hash| !hash.ports) {
        let flow = &hash.flow;
        hazards.push(format!(
            "{flow} is spread over the receive queues by address alone: `ethtool -N {name} rx-flow-hash {flow} sdfn`"
        ));
    }
    hazards
}

fn try_step(
    config: &PathConfig,
    source: &Source,
    link: &Link,
    (queues, usable): (u32, &[u32]),
    workers: usize,
    step: Step,
) -> Result<Opened, Reason> {
    let reason = |error: &dyn fmt::Display| Reason(error.to_string());
    let existing = if config.io.replace { Existing::Replace } else { Existing::Refuse };
    let program = source.attach(link, queues, step.attach, existing, config.io.dispatcher)?;
    let mut ports = Vec::new();
    let mut zero_copy = true;
    let mut taken = None;
    for &queue in usable {
        let mut port =
            PortConfig { mode: step.bind, transmit: step.transmit, ..PortConfig::new(&link.name, queue) };
        if let Some(frames) = &config.io.frames {
            (port.rx_ring, port.tx_ring) = (frames.get_ref() / 2, frames.get_ref() / 2);
        }
        port.tx_budget = config.io.tx_budget.as_ref().map(|budget| *budget.get_ref());
        if taken.is_some() {
            // Whoever holds one queue for longer than a release takes will hold this one too.
            port.bind_patience = Duration::ZERO;
        }
        match program.port(port) {
            Ok(port) => {
                zero_copy &= port.mode() == Some(ObtainedMode::ZeroCopy);
                ports.push((queue as usize % workers, port));
            }
            // Another server on this interface, most likely: what comes by that queue is the kernel's.
            Err(error) if error.is_taken() && config.io.mode == IoMode::Auto => {
                tracing::warn!(interface = link.name, queue, "kernel UDP serves this queue: {error}");
                taken = Some(error);
            }
            Err(error) => return Err(reason(&error)),
        }
    }
    if let (true, Some(error)) = (ports.is_empty(), taken) {
        return Err(reason(&error));
    }
    let interface = Interface {
        index: link.index,
        name: link.name.clone(),
        obtained: step.obtained(zero_copy),
        pairs: HashSet::new(),
        program,
        queues,
        detached: false,
    };
    Ok(Opened { interface, ports })
}

/// The receive queues to open, of those that the interface has.
fn wanted(config: &PathConfig, name: &str, queues: u32) -> Result<Vec<u32>, Reason> {
    let Some(chosen) = &config.io.queues else { return Ok((0..queues).collect()) };
    match chosen.get_ref().iter().find(|queue| **queue >= queues) {
        Some(queue) => Err(Reason(format!(
            "{name}: [io] queues names queue {queue}, and the interface has {queues}, from 0; see `ethtool -l {name}`"
        ))),
        None => Ok(chosen.get_ref().clone()),
    }
}
