//! Opens one interface: attaches the program, binds a socket to each queue, tries it, and chooses how the queue
//! sends. `auto` steps down queue by queue and keeps a record of each step; any other mode ends at the first
//! failure.
//!
//! There is a driver whose bind succeeds although its transmit queue does nothing, so sending by AF_XDP is tested. One
//! frame of the experimental EtherType 0x88b5, to the interface's own MAC, must come back in the completion ring, and
//! arrive at `[io] probe_peers` if one is given. While running, a socket that completes nothing is replaced. If it
//! fails again within ten minutes, `auto` hands sending to the kernel (after three failures to receive, the whole
//! queue), while explicit modes keep replacing the socket. Each step down is one record, which the log, `/metrics`,
//! `/io` and `doctor --probe` all show, because they open interfaces with the same code.

pub(crate) mod napi;

use std::fmt;
use std::time::Duration;

use expressway_netio::device::{DeviceFacts, Locality};
use expressway_netio::packet::ProbeListener;
use expressway_netio::route::{Link, LinkKind, Snapshot};
use expressway_netio::xsk::{
    Backing, BindMode, BindingStatus, FailurePolicy, OpenError, ReaderAccess, TransmitVia, XskBinding,
    XskConfig,
};
use expressway_xbpf::{AttachMode, Existing};

use crate::config::{IoConfig, IoMode, Purpose};
use crate::devices::{Device, Reason};
use crate::findings::{self, Severity};
use crate::negotiate::{self, Cache, Costs, Obtained, Plan, Receive, Sending, StepDown, Transmit};
use crate::provider::{Attach, Program, Provider};

/// How long a probe frame may take. Drivers complete within their interrupt's delay, milliseconds at most.
const PROBE_PATIENCE: Duration = Duration::from_secs(1);
/// Entries of the rings for sending of a socket that does not send: the fewest that a ring may have.
const SMALLEST_RING: u32 = 64;
/// How long a link that was up may take to be up again after the program came: some drivers restart it.
const LINK_PATIENCE: Duration = Duration::from_secs(5);

/// An interface that was opened.
pub(crate) struct Opened {
    pub(crate) program: Program,
    /// Receive channels.
    pub(crate) queues: u32,
    /// The sockets, each with the number of its worker.
    pub(crate) bindings: Vec<(usize, XskBinding)>,
    pub(crate) mode: InterfaceMode,
}

/// How an interface moves packets: what was chosen, and how its sockets fare.
#[derive(Debug)]
pub(crate) struct InterfaceMode {
    pub(crate) interface: String,
    pub(crate) attach: AttachMode,
    /// How kernel sockets send on it.
    pub(crate) by_kernel: Transmit,
    /// Opened to send too.
    pub(crate) sends: bool,
    pub(crate) bindings: Vec<BindingStatus>,
    /// Where its device is in the machine.
    pub(crate) locality: Option<Locality>,
    /// Steps down on the way here.
    pub(crate) steps: Vec<StepDown>,
}

/// What a queue does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueMode {
    /// The queue's number.
    pub queue: u32,
    /// How it receives.
    pub receive: Receive,
    /// How datagrams are sent that leave by it.
    pub transmit: Transmit,
}

impl InterfaceMode {
    /// What each queue with a socket does now.
    pub(crate) fn queues(&self) -> Vec<QueueMode> {
        let queue = |status: &BindingStatus| {
            let report = status.report();
            let transmit = match (report.mode, report.transmit) {
                (Some(mode), TransmitVia::Xsk) => Transmit::by_socket(mode),
                _ => self.by_kernel,
            };
            let receive = report.mode.map_or(Receive::Kernel, Receive::from);
            QueueMode { queue: report.queue, receive, transmit }
        };
        self.bindings.iter().map(queue).collect()
    }

    /// The interface's mode as one word.
    pub(crate) fn obtained(&self) -> Obtained {
        // What is only received is called by how it is received.
        let transmit = |queue: &QueueMode| match queue.receive {
            _ if self.sends => queue.transmit,
            Receive::ZeroCopy => Transmit::ZeroCopy,
            Receive::Copy | Receive::Kernel => Transmit::Copy,
        };
        let queues: Vec<_> = self.queues().iter().map(|queue| (queue.receive, transmit(queue))).collect();
        Obtained::of(self.attach, &queues)
    }

    /// The pages that hold the memory of each queue's socket.
    pub(crate) fn pages(&self) -> Vec<(u32, Backing)> {
        let of = |status: &BindingStatus| {
            let report = status.report();
            report.backing.map(|backing| (report.queue, backing))
        };
        self.bindings.iter().filter_map(of).collect()
    }

    /// Every step down: those at start, and what sockets gave up since.
    pub(crate) fn step_downs(&self) -> Vec<StepDown> {
        let mut steps = self.steps.clone();
        for status in &self.bindings {
            let report = status.report();
            if let Some(reason) = &report.reason {
                let (from, to) = match report.mode {
                    Some(mode) => (Transmit::by_socket(mode).to_string(), self.by_kernel.to_string()),
                    None => ("af_xdp".to_owned(), "kernel".to_owned()),
                };
                steps.push(StepDown {
                    interface: self.interface.clone(),
                    queue: Some(report.queue),
                    from,
                    to,
                    reason: reason.clone(),
                });
            }
        }
        steps
    }
}

/// Opens `device` for `workers` workers.
///
/// # Errors
/// Why the interface has no AF_XDP path; in `auto` with the steps down, the last of which says the same.
pub(crate) fn open(
    (config, purpose): (&IoConfig, &Purpose),
    provider: &Provider,
    device: &Device,
    snapshot: &Snapshot,
    workers: usize,
) -> Result<Opened, (Reason, Vec<StepDown>)> {
    let plain = |reason| (reason, Vec::new());
    let name = &device.link.name;
    let mut plan = negotiate::plan(config.mode, config.attach)
        .ok_or_else(|| plain(Reason(format!("{name}: no mode to try"))))?;
    if !purpose.sends {
        plan.sending = Sending::Kernel;
    }
    let found = provider.device(&device.link).map_err(plain)?;
    if !found.transmits && plan.sending == Sending::Xsk {
        return Err(plain(Reason(format!(
            "{name}: the agent's rule only allows receive-only sockets (`transmit = false`): use --io hybrid or auto"
        ))));
    }
    if !found.transmits {
        plan.sending = Sending::Kernel;
    }
    let facts = found.facts;
    for finding in findings::settings(&facts, has_vlans(&device.link, snapshot)) {
        if finding.severity >= Severity::Warn {
            let remedy = finding.fix.map_or_else(String::new, |fix| format!(": `{}`", fix.command));
            tracing::warn!(interface = name, "{}{remedy}", finding.text);
        }
    }
    let by_kernel = Transmit::by_kernel(config.udp_send, &facts, negotiate::kernel().0);
    let mut opening = Opening {
        config,
        purpose,
        provider,
        allowed: found.allowed,
        device,
        snapshot,
        facts,
        plan,
        by_kernel,
        first_bind: 0,
        is_taken: false,
        costs: None,
        steps: Vec::new(),
    };
    match opening.open(workers) {
        Ok((program, queues, bindings)) => {
            let mode = InterfaceMode {
                interface: name.clone(),
                attach: plan.attach,
                by_kernel,
                sends: purpose.sends,
                locality: opening.facts.locality.clone(),
                bindings: bindings.iter().map(|(_, binding)| binding.status()).collect(),
                steps: opening.steps,
            };
            Ok(Opened { program, queues, bindings, mode })
        }
        Err(reason) => {
            if plan.steps_down {
                opening.step_down(None, &"af_xdp", &"kernel", reason.to_string());
            }
            Err((reason, opening.steps))
        }
    }
}

/// What an interface obtained, what each queue does, and the steps down on the way.
pub type Tried = (Obtained, Vec<(Receive, Transmit)>, Vec<StepDown>);

/// Opens an interface to receive and send in that configuration, with what takes privilege from `provider`, says what its
/// queues do, and takes all off again.
///
/// # Errors
/// Why it has no AF_XDP path, with the steps down.
pub fn try_mode(
    config: &IoConfig,
    provider: &Provider,
    link: &Link,
    is_member: bool,
    snapshot: &Snapshot,
) -> Result<Tried, (String, Vec<StepDown>)> {
    let device = Device { link: link.clone(), is_member };
    let opened = open((config, &Purpose::SERVE), provider, &device, snapshot, 1)
        .map_err(|(reason, steps)| (reason.to_string(), steps))?;
    let queues = opened.mode.queues().into_iter().map(|queue| (queue.receive, queue.transmit)).collect();
    Ok((opened.mode.obtained(), queues, opened.mode.step_downs()))
}

/// Program, receive channels, and sockets with the numbers of their workers.
type Queues = (Program, u32, Vec<(usize, XskBinding)>);

/// An interface that is being opened.
struct Opening<'a> {
    config: &'a IoConfig,
    purpose: &'a Purpose,
    provider: &'a Provider,
    /// The queues that may be used; `None`: all.
    allowed: Option<Vec<u32>>,
    device: &'a Device,
    snapshot: &'a Snapshot,
    facts: DeviceFacts,
    plan: Plan,
    by_kernel: Transmit,
    /// Of the plan's binds, the first that this driver has at all.
    first_bind: usize,
    /// A queue is held by a socket of somebody else.
    is_taken: bool,
    /// What sending costs, once it is known.
    costs: Option<Costs>,
    steps: Vec<StepDown>,
}

impl Opening<'_> {
    fn open(&mut self, workers: usize) -> Result<Queues, Reason> {
        let link = &self.device.link;
        let name = &link.name;
        if self.device.is_member && self.plan.sending == Sending::Xsk {
            return Err(Reason(format!(
                "{name}: the bond chooses the sending member: use --io hybrid or auto"
            )));
        }
        let listener = self.listener()?;
        let queues = self.facts.channels.map_or(link.rx_queues, |channels| channels.rx).max(1);
        let may = |queue: &u32| self.allowed.as_ref().is_none_or(|allowed| allowed.contains(queue));
        let usable: Vec<u32> = wanted(self.config, name, queues)?.into_iter().filter(may).collect();
        if usable.is_empty() {
            return Err(Reason(format!(
                "{name}: the agent's rule allows none of the requested queues (the interface has {queues})"
            )));
        }
        let existing = if self.config.replace { Existing::Replace } else { Existing::Refuse };
        let wanted = Attach {
            queues,
            mode: self.plan.attach,
            existing,
            sharing: self.config.dispatcher,
            timestamps: self.purpose.timestamps,
        };
        let program = self.provider.attach(link, wanted)?;
        let mut bindings = Vec::new();
        let mut last = None;
        for queue in usable {
            match self.open_queue(&program, queue, listener.as_ref()) {
                Ok(binding) => bindings.push((queue as usize % workers, binding)),
                Err(problem) if self.plan.steps_down => last = Some(problem),
                Err(problem) => return Err(problem),
            }
        }
        match last {
            Some(problem) if bindings.is_empty() => Err(problem),
            _ => Ok((program, queues, bindings)),
        }
    }

    /// Listens at the other end of the link, where the configuration names one.
    fn listener(&self) -> Result<Option<ProbeListener>, Reason> {
        let Some(peer) = self.config.probe_peers.get(&self.device.link.name) else { return Ok(None) };
        let named = |problem: &dyn fmt::Display| {
            Reason(format!("[io] probe_peers: {} = {peer:?}: {problem}", self.device.link.name))
        };
        let link: &Link = self
            .snapshot
            .link_by_name(peer)
            .ok_or_else(|| named(&"no such interface in this network namespace; see `ip link`"))?;
        ProbeListener::open(link.index).map(Some).map_err(|error| named(&error))
    }

    /// A socket on one queue, by the best bind that works.
    fn open_queue(
        &mut self,
        program: &Program,
        queue: u32,
        listener: Option<&ProbeListener>,
    ) -> Result<XskBinding, Reason> {
        let binds = &self.plan.binds[self.first_bind..];
        let mut last = Reason(format!("{} queue {queue}: no mode to try", self.device.link.name));
        for (tried, bind) in binds.iter().enumerate() {
            let (problem, driver_lacks_it) = match program.bind(self.xsk_config(queue, *bind)) {
                Err(error) if error.is_taken() => {
                    // Another server on this interface, most likely: what comes by that queue is the kernel's. Whoever
                    // holds one queue for longer than a release takes will hold the others too.
                    self.is_taken = true;
                    let problem = Reason(error.to_string());
                    if self.plan.steps_down {
                        self.step_down(Some(queue), bind, &"kernel", problem.to_string());
                    }
                    return Err(problem);
                }
                Err(error) => (Reason(error.to_string()), is_unsupported(&error)),
                Ok(binding) => match self.settle(binding, listener) {
                    Ok(binding) => return Ok(binding),
                    Err(problem) => (problem, false),
                },
            };
            if self.plan.steps_down {
                let next = binds.get(tried + 1).map_or("kernel".to_owned(), ToString::to_string);
                if driver_lacks_it && tried + 1 < binds.len() {
                    self.first_bind += 1;
                    self.step_down(None, bind, &next, problem.to_string());
                } else {
                    self.step_down(Some(queue), bind, &next, problem.to_string());
                }
            }
            last = problem;
        }
        Err(last)
    }

    fn xsk_config(&self, queue: u32, mode: BindMode) -> XskConfig {
        let failing = if self.plan.steps_down { FailurePolicy::Demote } else { FailurePolicy::Replace };
        let mut binding = XskConfig { mode, failing, ..XskConfig::new(&self.device.link.name, queue) };
        if let Some(frames) = self.config.frames {
            (binding.rx_ring, binding.tx_ring) = (frames / 2, frames / 2);
        }
        if self.plan.sending == Sending::Kernel {
            (binding.sends, binding.tx_ring) = (false, SMALLEST_RING);
        }
        if self.is_taken {
            binding.bind_patience = Duration::ZERO;
        }
        binding.wait = self.config.wait;
        binding.lend = self.purpose.lend.clone().map(|lend| {
            let path = lend.path.join(format!("{}.{queue}", self.device.link.name));
            ReaderAccess { path, ..lend }
        });
        binding.tx_budget = self.config.tx_budget.filter(|_| binding.sends);
        binding
    }

    /// Chooses how the queue of a bound socket sends, and tries that.
    fn settle(
        &mut self,
        mut binding: XskBinding,
        listener: Option<&ProbeListener>,
    ) -> Result<XskBinding, Reason> {
        let Some(mode) = binding.mode() else {
            return Err(Reason(format!("{}: the socket was lost", self.device.link.name)));
        };
        if self.device.link.has_carrier && self.provider.is_here() {
            // A link that stays down is no failure of the mode: the binding follows the link.
            let _ = binding.wait_for_link(LINK_PATIENCE);
        }
        let socket = Transmit::by_socket(mode);
        let uses_xsk = match self.plan.sending {
            Sending::Kernel => false,
            Sending::Xsk => true,
            Sending::Cheapest => {
                !self.device.is_member
                    && self.costs(&mut binding, socket).prefer_socket(socket, self.by_kernel)
            }
        };
        if !uses_xsk {
            binding.set_transmit(TransmitVia::Kernel);
            return Ok(binding);
        }
        let Some(mac) = self.device.link.mac else { return Ok(binding) };
        match binding.probe(mac, listener, PROBE_PATIENCE) {
            Ok(_) => Ok(binding),
            // In copy mode receiving does not hang on what the device does with frames to send.
            Err(error) if self.plan.sending == Sending::Cheapest && socket == Transmit::Copy => {
                let queue = binding.report().queue;
                self.step_down(Some(queue), &socket, &self.by_kernel.to_string(), error.to_string());
                binding.set_transmit(TransmitVia::Kernel);
                Ok(binding)
            }
            Err(error) => Err(Reason(error.to_string())),
        }
    }

    /// What sending costs on this interface: nothing known where the order is certain, else from the cache, else
    /// measured, once.
    fn costs(&mut self, binding: &mut XskBinding, socket: Transmit) -> Costs {
        // Where the interface may be in another namespace, the kernel's ways cannot be tried.
        if !self.config.calibrate || !self.provider.is_here() || !Costs::are_wanted(socket, self.by_kernel) {
            return Costs::default();
        }
        if let Some(costs) = self.costs {
            return costs;
        }
        let link = &self.device.link;
        let mac = link.mac;
        // A confined server measures at each start: it may not replace files.
        let file = self.config.calibration_cache.as_deref().filter(|_| self.provider.may_write());
        let mut cache = Cache::open(file);
        let (release, processor) = (negotiate::kernel().1, negotiate::processor());
        let key = negotiate::key(&self.facts, &release, &processor, self.plan.attach.name(), link.mtu);
        let costs = cache.costs(&key).unwrap_or_else(|| {
            let measured = mac.and_then(|mac| binding.calibrate(mac, link.mtu)).map(Costs::from);
            match measured {
                Some(costs) => {
                    tracing::info!(interface = link.name, ?costs, "send cost measured, in ns per datagram");
                    cache.keep(key, costs);
                    costs
                }
                None => {
                    tracing::info!(
                        interface = link.name,
                        "send cost not measured: too few datagrams sent in time"
                    );
                    Costs::default()
                }
            }
        });
        self.costs = Some(costs);
        costs
    }

    fn step_down(
        &mut self,
        queue: Option<u32>,
        from: &dyn fmt::Display,
        to: &dyn fmt::Display,
        reason: String,
    ) {
        let interface = self.device.link.name.clone();
        let step = StepDown { interface, queue, from: from.to_string(), to: to.to_string(), reason };
        tracing::info!("auto: {step}");
        self.steps.push(step);
    }
}

/// The receive queues to open, of those that the interface has.
fn wanted(config: &IoConfig, name: &str, queues: u32) -> Result<Vec<u32>, Reason> {
    let Some(chosen) = &config.queues else { return Ok((0..queues).collect()) };
    match chosen.iter().find(|queue| **queue >= queues) {
        Some(queue) => Err(Reason(format!(
            "{name}: [io] queues lists queue {queue}, but the interface has {queues} queues, numbered from 0; see `ethtool -l {name}`"
        ))),
        None => Ok(chosen.clone()),
    }
}

fn has_vlans(link: &Link, snapshot: &Snapshot) -> bool {
    let over =
        |other: &Link| matches!(other.kind, LinkKind::Vlan { lower: Some(lower), .. } if lower == link.index);
    snapshot.links().iter().any(over)
}

/// True if the driver will not do it on any queue.
fn is_unsupported(error: &OpenError) -> bool {
    /// `EOPNOTSUPP` (`errno.h`).
    const NOT_SUPPORTED: i32 = 95;
    matches!(error, OpenError::Socket { source, .. } if source.raw_os_error() == Some(NOT_SUPPORTED))
        || matches!(error, OpenError::Mode { .. })
}

/// True if a mode may leave an interface to the kernel.
pub(crate) fn may_leave(mode: IoMode) -> bool {
    mode == IoMode::Auto
}
