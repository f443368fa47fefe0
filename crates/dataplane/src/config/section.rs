//! `[io]` as configuration files have it, with the place of each value for errors.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use expressway_netio::Wait;
use expressway_netio::netdev::NapiSettings;
use expressway_netio::wait::{BusyPoll, Spin};
use expressway_settings::{Moment, Size};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::IoConfig;
use super::value::{Attach, Dispatcher, IoMode, UdpSend, WaitStrategy};

/// `[io]` in a configuration file: how packets move. [`Self::check`] before use; [`Self::config`] is what it says.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct IoSection {
    /// The mode; `--io` overrides it.
    pub mode: IoMode,
    /// How the XDP program is attached.
    pub attach: Spanned<Attach>,
    /// How the kernel path sends.
    pub udp_send: UdpSend,
    /// In mode `auto`, measure what sending costs where the order is not certain.
    pub calibrate: bool,
    /// Where measurements are kept; empty: nowhere.
    pub calibration_cache: PathBuf,
    /// For each interface, the one of this machine at the other end of its link, which must receive the
    /// self-test's probe frame.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub probe_peers: BTreeMap<String, String>,
    /// UMEM frames of each AF_XDP socket, a power of two; default 8192.
    pub frames: Option<Spanned<u32>>,
    /// Socket buffers of the kernel sockets.
    pub socket_buffer: Option<Spanned<Size>>,
    /// Detach a foreign XDP program from the interface; `--replace` does the same.
    pub replace: bool,
    /// How workers wait for packets.
    pub wait: WaitStrategy,
    /// How long one wait polls the device before it sleeps.
    pub busy_poll: Option<Spanned<Moment>>,
    /// Packets that one poll of the device may take.
    pub busy_poll_budget: Option<Spanned<u16>>,
    /// How long a spinning worker leaves its kernel sockets unasked.
    pub spin_kernel: Option<Spanned<Moment>>,
    /// NAPI settings of the interfaces.
    pub napi: Option<Napi>,
    /// Packets that one system call may send in AF_XDP copy mode; default the TX ring's size.
    pub tx_budget: Option<Spanned<u32>>,
    /// Socket of an agent that prepares what takes privilege; `--agent` overrides it.
    pub agent: Option<PathBuf>,
    /// Socket of the AF_XDP device plugin of Kubernetes, whose XDP program is used.
    pub device_plugin: Option<Spanned<PathBuf>>,
    /// Whether to share interfaces with other XDP programs by a libxdp dispatcher.
    pub dispatcher: Dispatcher,
    /// Receive queues to open AF_XDP sockets on; absent: all. Others are served by the kernel sockets.
    pub queues: Option<Spanned<Vec<u32>>>,
}

impl Default for IoSection {
    fn default() -> Self {
        Self {
            mode: IoMode::default(),
            attach: Spanned::new(0..0, Attach::default()),
            udp_send: UdpSend::default(),
            calibrate: true,
            calibration_cache: PathBuf::from("/var/cache/expressway/calibration.json"),
            probe_peers: BTreeMap::new(),
            frames: None,
            socket_buffer: None,
            replace: false,
            wait: Default::default(),
            busy_poll: None,
            busy_poll_budget: None,
            spin_kernel: None,
            napi: None,
            tx_budget: None,
            agent: None,
            device_plugin: None,
            dispatcher: Dispatcher::default(),
            queues: None,
        }
    }
}

/// `[io.napi]`: settings of the interface's NAPI contexts, put back at the end.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Napi {
    /// Empty polls before the interrupt is armed again.
    pub defer_hard_irqs: Spanned<u32>,
    /// Time between polls while the interrupt is off.
    pub gro_flush_timeout: Spanned<Moment>,
    /// How long a worker that has packets may keep the interrupt off; absent: not at all.
    pub irq_suspend_timeout: Option<Spanned<Moment>>,
}

/// A value that makes no sense: where it stands in the file, and what to give.
pub type ValueError = (Range<usize>, String);

impl IoSection {
    /// What the section says.
    pub fn config(&self) -> IoConfig {
        IoConfig {
            mode: self.mode,
            attach: *self.attach.get_ref(),
            udp_send: self.udp_send,
            calibrate: self.calibrate,
            calibration_cache: Some(self.calibration_cache.clone())
                .filter(|file| !file.as_os_str().is_empty()),
            probe_peers: self.probe_peers.clone(),
            frames: self.frames.as_ref().map(|frames| *frames.get_ref()),
            socket_buffer: self.socket_buffer.as_ref().map(|size| size.get_ref().0 as usize),
            replace: self.replace,
            wait: self.wait(),
            napi: self.napi(),
            tx_budget: self.tx_budget.as_ref().map(|budget| *budget.get_ref()),
            dispatcher: self.dispatcher,
            queues: self.queues.as_ref().map(|queues| queues.get_ref().clone()),
        }
    }

    /// Makes relative paths relative to `base`.
    pub fn resolve_paths(&mut self, base: &Path) {
        self.agent.iter_mut().for_each(|path| *path = base.join(&*path));
        self.device_plugin.iter_mut().for_each(|path| *path.get_mut() = base.join(path.get_ref()));
        if !self.calibration_cache.as_os_str().is_empty() {
            self.calibration_cache = base.join(&self.calibration_cache);
        }
    }

    /// Checks what the values are to each other.
    ///
    /// # Errors
    /// The first value that makes no sense.
    pub fn check(&self) -> Result<(), ValueError> {
        if let Some(plugin) = &self.device_plugin
            && self.agent.is_some()
        {
            return Err((
                plugin.span(),
                "an agent and a device plugin are alternatives: configure only one".into(),
            ));
        }
        if self.mode == IoMode::Generic && matches!(self.attach.get_ref(), Attach::Native | Attach::Offload) {
            return Err((
                self.attach.span(),
                "mode \"generic\" always uses generic XDP; leave attach out, or choose mode \"copy\"".into(),
            ));
        }
        if *self.attach.get_ref() == Attach::Offload && self.dispatcher == Dispatcher::Always {
            return Err((
                self.attach.span(),
                "the dispatcher does not support offload; leave attach or dispatcher = \"always\" out".into(),
            ));
        }
        if let Some(frames) = &self.frames
            && !(frames.get_ref().is_power_of_two() && (512..=1 << 20).contains(frames.get_ref()))
        {
            return Err((frames.span(), "give a power of two between 512 and 1048576".into()));
        }
        let ring = self.frames.as_ref().map_or(2048, |frames| *frames.get_ref() / 2);
        if let Some(budget) = &self.tx_budget
            && !(32..=ring).contains(budget.get_ref())
        {
            return Err((
                budget.span(),
                format!("give 32 to {ring}, the entries of the TX ring (half of frames)"),
            ));
        }
        self.check_wait()?;
        if let Some(queues) = &self.queues {
            let mut sorted = queues.get_ref().clone();
            sorted.sort_unstable();
            sorted.dedup();
            if sorted.is_empty() || sorted.len() != queues.get_ref().len() {
                return Err((
                    queues.span(),
                    "give receive queue numbers, starting at 0, each at most once".into(),
                ));
            }
        }
        Ok(())
    }

    fn wait(&self) -> Wait {
        match self.wait {
            WaitStrategy::Interrupt => Wait::Interrupt,
            WaitStrategy::BusyPoll => {
                let default = BusyPoll::default();
                Wait::BusyPoll(BusyPoll {
                    time: self.busy_poll.as_ref().map_or(default.time, |time| time.get_ref().0),
                    budget: self.busy_poll_budget.as_ref().map_or(default.budget, |one| *one.get_ref()),
                })
            }
            WaitStrategy::Spin => {
                let interval = self.spin_kernel.as_ref().map(|time| time.get_ref().0);
                Wait::Spin(interval.map_or_else(Spin::default, |kernel_interval| Spin { kernel_interval }))
            }
        }
    }

    fn napi(&self) -> Option<NapiSettings> {
        self.napi.as_ref().map(|napi| NapiSettings {
            defer_hard_irqs: *napi.defer_hard_irqs.get_ref(),
            gro_flush_timeout: napi.gro_flush_timeout.get_ref().0,
            irq_suspend_timeout: napi
                .irq_suspend_timeout
                .as_ref()
                .map_or(Duration::ZERO, |time| time.get_ref().0),
        })
    }

    fn check_wait(&self) -> Result<(), ValueError> {
        let short = |time: &Spanned<Moment>, low: u64, high: Duration, range: &str| {
            let fits = (Duration::from_micros(low)..=high).contains(&time.get_ref().0);
            if fits { Ok(()) } else { Err((time.span(), format!("give a time between {range}"))) }
        };
        let only = |span: Option<Range<usize>>, strategy: WaitStrategy| match span {
            Some(span) if self.wait != strategy => {
                Err((span, format!("only allowed with wait = \"{strategy}\"")))
            }
            _ => Ok(()),
        };
        only(self.busy_poll.as_ref().map(Spanned::span), WaitStrategy::BusyPoll)?;
        only(self.busy_poll_budget.as_ref().map(Spanned::span), WaitStrategy::BusyPoll)?;
        only(self.spin_kernel.as_ref().map(Spanned::span), WaitStrategy::Spin)?;
        if let Some(time) = &self.busy_poll {
            short(time, 1, Duration::from_millis(10), "\"1us\" and \"10ms\"")?;
        }
        if let Some(time) = &self.spin_kernel {
            short(time, 1, Duration::from_millis(10), "\"1us\" and \"10ms\"")?;
        }
        if let Some(budget) = &self.busy_poll_budget
            && !(8..=64).contains(budget.get_ref())
        {
            return Err((budget.span(), "give 8 to 64: the packet budget of one device poll".into()));
        }
        let Some(napi) = &self.napi else { return Ok(()) };
        only(Some(napi.defer_hard_irqs.span()), WaitStrategy::BusyPoll)?;
        if !(1..=10_000).contains(napi.defer_hard_irqs.get_ref()) {
            return Err((napi.defer_hard_irqs.span(), "give 1 to 10000 polls".into()));
        }
        short(&napi.gro_flush_timeout, 1, Duration::from_millis(10), "\"1us\" and \"10ms\"")?;
        if let Some(time) = &napi.irq_suspend_timeout {
            short(time, 1, Duration::from_secs(1), "\"1us\" and \"1s\"")?;
            if time.get_ref() < napi.gro_flush_timeout.get_ref() {
                return Err((
                    time.span(),
                    "must be greater than gro_flush_timeout, which it overrides".into(),
                ));
            }
        }
        Ok(())
    }
}
