//! The data path: kernel sockets for every worker and address, and on each interface that supports it an XDP program
//! with AF_XDP sockets for its queues.
//!
//! The order matters. Kernel sockets come first, so that packets which XDP passes are not lost. Then the program is
//! attached without pairs (everything passes), and the sockets are bound and entered into its map. Only then are the
//! pairs added: from that moment on, packets take the AF_XDP path.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use expressway_netio::device::Locality;
use expressway_netio::netdev::NapiGuard;
use expressway_netio::route::{Resolver, RouteMirror, Snapshot};
use expressway_netio::udp::{UdpGroup, UdpIo};
use expressway_netio::xsk::{Backing, BindingSender, XskBinding, XskIo, XskIoConfig};
use expressway_netio::{IoError, PacketIo, Service, Worker, WorkerOptions, mailbox};
use expressway_xbpf::{AttachMode, Counters};

use crate::config::{Config, IoMode};
use crate::devices::{Device, Reason, devices, pairs};
use crate::error::Error;
use crate::handover::{HandedOn, Handover};
use crate::negotiate::{Obtained, StepDown};
use crate::open::{self, InterfaceMode, Opened, QueueMode, napi};
use crate::provider::{Program, Provider};
use crate::upkeep::Upkeep;

/// A worker's packet I/O.
pub enum WorkerIo {
    /// Kernel sockets alone.
    Kernel(Box<UdpIo>),
    /// AF_XDP sockets with kernel sockets behind.
    Xsk(Box<XskIo<UdpIo, Resolver>>),
}

impl WorkerIo {
    /// The kernel sockets: all there is, or those behind the AF_XDP sockets.
    pub fn kernel(&self) -> &UdpIo {
        match self {
            Self::Kernel(io) => io,
            Self::Xsk(io) => io.kernel(),
        }
    }

    /// Runs a service on this thread, as the only worker, until it is finished.
    ///
    /// # Errors
    /// What stops packet I/O.
    pub fn run<S: Service>(self, service: S, options: WorkerOptions) -> Result<(), Error> {
        let (mailbox, inbox) =
            mailbox(1).map_err(|source| IoError::Socket { what: "mailbox".into(), source })?;
        let (now, peers) = (Instant::now(), Arc::from([mailbox]));
        let result = match self {
            Self::Kernel(io) => Worker::new(options, now, service, *io, inbox, peers).run(),
            Self::Xsk(io) => Worker::new(options, now, service, *io, inbox, peers).run(),
        };
        Ok(result?)
    }
}

/// What all workers share of the data path; dropping it detaches the XDP programs.
pub struct DataPath {
    pub(crate) config: Config,
    pub(crate) provider: Provider,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) mirror: RouteMirror,
    /// Of the addresses that the interfaces take; `None` until they do.
    pub(crate) generation: Option<u64>,
    pub(crate) interfaces: Vec<Interface>,
    /// Where each worker takes sockets from; none when the mode is kernel UDP.
    pub(crate) senders: Vec<BindingSender>,
    pub(crate) upkeep: Upkeep,
    /// Puts the interfaces' NAPI settings back.
    pub(crate) napi: Option<NapiGuard>,
    /// For another process; see [`crate::Handover`].
    pub(crate) handed_on: HandedOn,
    left: Left,
}

/// An interface with our program on it.
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    mode: InterfaceMode,
    /// Receive channels when it was opened.
    pub(crate) queues: u32,
    pairs: HashSet<SocketAddr>,
    pub(crate) program: Program,
    /// Its program was taken off by somebody.
    pub(crate) detached: bool,
}

/// Interfaces that were tried and left to the kernel, with the steps down.
type Left = BTreeMap<String, Vec<StepDown>>;

impl Interface {
    fn new(device: &Device, opened: Opened) -> (Self, Vec<(usize, XskBinding)>) {
        let Opened { program, queues, bindings, mode } = opened;
        let (index, name) = (device.link.index, device.link.name.clone());
        let pairs = HashSet::new();
        (Self { index, name, mode, queues, pairs, program, detached: false }, bindings)
    }

    /// Has the program take these pairs and no others.
    fn take_pairs(&mut self, wanted: &HashSet<SocketAddr>) -> Result<(), Error> {
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
    /// Opens everything for `workers` workers, with what takes privilege from `provider`.
    ///
    /// # Errors
    /// An address cannot be bound; the mode is not `auto` and an interface does not have it; the agent is gone.
    pub fn open(config: Config, provider: Provider, workers: usize) -> Result<(Self, Vec<WorkerIo>), Error> {
        Self::open_with_handover(config, provider, workers, &Handover::default())
    }

    /// The same with the kernel sockets of the process that this one succeeds, and so that another can succeed this one.
    ///
    /// # Errors
    /// As [`DataPath::open`]; the sockets are not those that the configuration asks for.
    pub fn open_with_handover(
        config: Config,
        provider: Provider,
        workers: usize,
        handover: &Handover,
    ) -> Result<(Self, Vec<WorkerIo>), Error> {
        let mut tries = 0;
        provider.persist(|| {
            tries += 1;
            Self::open_all(&config, &provider, (workers, handover), tries > 1)
        })
    }

    /// One try of that.
    fn open_all(
        config: &Config,
        provider: &Provider,
        (workers, handover): (usize, &Handover),
        again: bool,
    ) -> Result<(Self, Vec<WorkerIo>), Error> {
        let listen = config.udp.listen.clone();
        let kernel = match handover.inherited(workers)? {
            Some(sockets) => UdpGroup::adopt(&config.udp, sockets)?,
            None => provider.kernel_sockets(&config.udp, workers)?,
        };
        let kernel = kernel.into_workers();
        let mut handed_on = HandedOn::default();
        if handover.hands_on {
            handed_on.keep(&kernel)?;
        }
        let mirror = provider.mirror()?;
        let snapshot = mirror.snapshot();
        let mut bindings: Vec<Vec<XskBinding>> = (0..workers).map(|_| Vec::new()).collect();
        let (mut interfaces, mut left) = (Vec::new(), Left::new());
        let mut upkeep = Upkeep::default();
        for device in devices(config.io.mode, &listen, config.groups_on(&snapshot), &snapshot)? {
            match open_interface(config, provider, &device, &snapshot, workers, &mut left)? {
                Some(opened) => {
                    let (mode, sockets) = (opened.mode.obtained(), opened.bindings.len());
                    let again = if again { " again" } else { "" };
                    tracing::info!(interface = device.link.name, %mode, sockets, "AF_XDP path opened{again}");
                    let (interface, sockets) = Interface::new(&device, opened);
                    sockets.into_iter().for_each(|(worker, binding)| bindings[worker].push(binding));
                    interfaces.push(interface);
                }
                None => upkeep.leave(&device.link.name, device.link.index),
            }
        }
        let (mut ios, mut senders) = (Vec::new(), Vec::new());
        for (sockets, bindings) in kernel.into_iter().zip(bindings) {
            let mut kernel = UdpIo::new(&config.udp, sockets)?;
            handed_on.pauses.push(kernel.pause());
            kernel.set_resolver(mirror.resolver()?);
            kernel.set_sending(&config.sending)?;
            let wait = config.io.wait;
            if config.io.mode == IoMode::Udp {
                // The worker does this too, but an error should come before `ready`.
                kernel.set_wait(wait)?;
                ios.push(WorkerIo::Kernel(Box::new(kernel)));
                continue;
            }
            let mut resolver = mirror.resolver()?;
            if let Some(egress) = config.sending.multicast_interface {
                resolver.set_multicast_egress(egress);
            }
            let plain = XskIoConfig::default();
            let xsk = XskIoConfig { ttl: config.sending.ttl.unwrap_or(plain.ttl), ..plain };
            let mut io = XskIo::new(bindings, kernel, resolver, xsk)?;
            io.set_wait(wait)?;
            senders.push(io.sender());
            ios.push(WorkerIo::Xsk(Box::new(io)));
        }
        let napi = napi::defer(&config.io, &interfaces)?;
        let mut path = Self {
            napi,
            handed_on,
            config: config.clone(),
            provider: provider.clone(),
            listen,
            mirror,
            generation: None,
            interfaces,
            senders,
            upkeep,
            left,
        };
        path.follow_addresses()?;
        Ok((path, ios))
    }

    /// The mode of each listen address.
    pub fn modes(&self) -> Vec<(SocketAddr, Obtained)> {
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
            self.interfaces.iter().find(serves).map_or(Obtained::Udp, |interface| interface.mode.obtained())
        };
        self.listen.iter().map(|address| (*address, mode(address))).collect()
    }

    /// The mode as one word: that of the first interface, or `udp`.
    pub fn mode(&self) -> Obtained {
        self.interfaces.first().map_or(Obtained::Udp, |interface| interface.mode.obtained())
    }

    /// Whether every open interface stamps what it receives by AF_XDP.
    pub fn stamps(&self) -> bool {
        self.interfaces.iter().all(|interface| interface.program.stamps())
    }

    /// The pages that hold each AF_XDP socket's memory, by interface and queue.
    pub fn pages(&self) -> Vec<(&str, u32, Backing)> {
        let of = |one: &'_ Interface| one.mode.pages();
        self.interfaces
            .iter()
            .flat_map(|one| of(one).into_iter().map(|(queue, backing)| (one.name.as_str(), queue, backing)))
            .collect()
    }

    /// Each open interface with how the program is attached and what its queues with a socket do now.
    pub fn queue_modes(&self) -> Vec<(&str, AttachMode, Vec<QueueMode>)> {
        let modes = |one: &'_ Interface| (one.mode.attach, one.mode.queues());
        let named = self.interfaces.iter().map(|one| (one.name.as_str(), modes(one)));
        named.map(|(name, (attach, queues))| (name, attach, queues)).collect()
    }

    /// Where the devices of the open interfaces are in the machine.
    pub fn localities(&self) -> Vec<Locality> {
        self.interfaces.iter().filter_map(|interface| interface.mode.locality.clone()).collect()
    }

    /// Every step down, of interfaces open and left to the kernel.
    pub fn step_downs(&self) -> Vec<StepDown> {
        let open = self.interfaces.iter().flat_map(|interface| interface.mode.step_downs());
        open.chain(self.left.values().flatten().cloned()).collect()
    }

    /// Each interface's name and the counters of its XDP program.
    pub fn counters(&self) -> Vec<(String, Counters)> {
        let read = |interface: &Interface| Some((interface.name.clone(), interface.program.counters()?));
        self.interfaces.iter().filter_map(read).collect()
    }

    /// Takes the programs off and takes leave of who gave them: before the process ends, also where that is an
    /// agent's work.
    pub fn finish(&mut self) {
        self.interfaces.clear();
        self.handed_on = HandedOn::default();
        self.provider = Provider::Own;
    }

    /// Opens an interface while the workers run, and gives them its sockets.
    pub(crate) fn open_interface(&mut self, device: &Device) -> Result<Obtained, Reason> {
        let workers = self.senders.len();
        let name = &device.link.name;
        let opened = open::open(
            (&self.config.io, &self.config.purpose),
            &self.provider,
            device,
            &self.mirror.snapshot(),
            workers,
        );
        let opened = opened.map_err(|(reason, steps)| {
            self.left.insert(name.clone(), steps);
            reason
        })?;
        self.left.remove(name);
        let (interface, bindings) = Interface::new(device, opened);
        for (worker, binding) in bindings {
            if !self.senders[worker].add(binding) {
                self.take_back(interface.index);
                return Err(Reason(format!("worker {worker} accepts no more sockets")));
            }
        }
        let obtained = interface.mode.obtained();
        self.interfaces.push(interface);
        Ok(obtained)
    }

    /// Has the workers close their sockets on an interface at their next turn.
    pub(crate) fn take_back(&self, index: u32) {
        for sender in &self.senders {
            if !sender.remove(index) {
                tracing::error!("a worker accepts no changes; its AF_XDP sockets stay open");
            }
        }
    }

    /// Makes each interface take the pairs that belong to it now. What could not be done is tried again the next time.
    pub(crate) fn follow_addresses(&mut self) -> Result<(), Error> {
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

/// Opens one interface at start. `None` when `auto` leaves it to the kernel.
fn open_interface(
    config: &Config,
    provider: &Provider,
    device: &Device,
    snapshot: &Snapshot,
    workers: usize,
    left: &mut Left,
) -> Result<Option<Opened>, Error> {
    let (mode, name) = (config.io.mode, &device.link.name);
    match open::open((&config.io, &config.purpose), provider, device, snapshot, workers) {
        Ok(opened) => Ok(Some(opened)),
        Err((reason, steps)) if open::may_leave(mode) => {
            tracing::info!(interface = name, "falling back to kernel UDP on this interface: {reason}");
            left.insert(name.clone(), steps);
            Ok(None)
        }
        Err((reason, _)) => Err(Error::Interface { mode, reason }),
    }
}
