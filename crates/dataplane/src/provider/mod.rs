//! Who creates what needs privileges (sockets, XDP programs): this process, an agent, or the device plugin of
//! Kubernetes. The rest of the data path does not know which.
//!
//! * `restart` lets a start survive the restart of an agent.

mod restart;

use std::fmt::Display;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use expressway_agent::Client;
use expressway_agent::client::Program as AgentProgram;
use expressway_agent::device_plugin::{DevicePlugin, PluginError};
use expressway_agent::message::Device;
use expressway_netio::device::{Channels, DeviceFacts, channels};
use expressway_netio::route::{Link, RouteMirror};
use expressway_netio::trace::StampSwitch;
use expressway_netio::udp::{UdpConfig, UdpGroup, UdpSockets};
use expressway_netio::wait::Wait;
use expressway_netio::xsk::{OpenError, XskBinding, XskConfig};
use expressway_xbpf::{AttachMode, Attachment, Counters, Existing, Options, Redirect};

use crate::config::{Dispatcher, IoSection};
use crate::devices::Reason;
use crate::error::Error;

/// Who makes what takes privilege. Clones are the same.
#[derive(Clone)]
pub enum Provider {
    /// This process.
    Own,
    /// An agent at the other end of a unix socket.
    Agent(Client),
    /// This process, but for the XDP program: that one is of the device plugin.
    Plugin(Arc<DevicePlugin>),
}

/// An XDP program on an interface; dropped, it is off.
pub(crate) enum Program {
    Own { redirect: Box<Redirect>, attachment: Box<Attachment>, switch: Option<StampSwitch> },
    Agent(AgentProgram),
    Plugin { plugin: Arc<DevicePlugin>, sockets: OwnedFd },
}

fn reason(error: impl Display) -> Reason {
    Reason(error.to_string())
}

/// How the program is put on an interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attach {
    /// Receive queues.
    pub(crate) queues: u32,
    pub(crate) mode: AttachMode,
    pub(crate) existing: Existing,
    pub(crate) sharing: Dispatcher,
    /// Have it stamp packets, where it can.
    pub(crate) timestamps: bool,
}

impl Provider {
    /// What the `[io]` section names. `command` is what an agent's log calls this process.
    ///
    /// # Errors
    /// There is no agent or device plugin, or it refuses.
    pub fn of(section: &IoSection, command: &str) -> Result<Self, Error> {
        if section.agent.is_some() {
            return Self::agent_or_own(section.agent.as_deref(), command);
        }
        if let Some(path) = &section.device_plugin {
            // The plugin knows pods by their host name.
            let pod = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let plugin = DevicePlugin::connect(path.get_ref(), &pod)?;
            return Ok(Self::Plugin(Arc::new(plugin)));
        }
        Ok(Self::Own)
    }

    /// An agent at this socket if one is named, else this process. `command` is what the agent's log calls it.
    ///
    /// # Errors
    /// There is no agent, or it refuses.
    pub fn agent_or_own(agent: Option<&Path>, command: &str) -> Result<Self, Error> {
        let Some(path) = agent else { return Ok(Self::Own) };
        let name = format!("expressway {command}, process {}", std::process::id());
        restart::connect(path, &name).map(Self::Agent)
    }

    /// Kernel sockets for every worker and address.
    pub(crate) fn kernel_sockets(&self, config: &UdpConfig, workers: usize) -> Result<UdpGroup, Error> {
        match self {
            Self::Agent(client) => Ok(client.udp_group(config, workers)?),
            Self::Own => Ok(UdpGroup::bind(config, workers)?),
            Self::Plugin(plugin) => {
                let plain = UdpConfig { wait: Wait::Interrupt, ..config.clone() };
                let group = UdpGroup::bind(&plain, workers)?;
                let sockets: Vec<Vec<OwnedFd>> =
                    group.into_workers().into_iter().map(UdpSockets::into_fds).collect();
                for socket in sockets.iter().flatten() {
                    prepare(plugin, socket.as_fd(), config.wait)?;
                }
                Ok(UdpGroup::adopt(config, sockets)?)
            }
        }
    }

    /// The tables of the network namespace that the sockets are in.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn mirror(&self) -> Result<RouteMirror, Error> {
        match self {
            Self::Agent(client) => Ok(client.mirror()?),
            Self::Own | Self::Plugin(_) => Ok(RouteMirror::start()?),
        }
    }

    /// What an interface has.
    ///
    /// # Errors
    /// It cannot be read, or the agent's rule has not that interface.
    pub fn device(&self, link: &Link) -> Result<Device, Reason> {
        match self {
            Self::Agent(client) => client.device(&link.name, link.index).map_err(reason),
            Self::Own | Self::Plugin(_) => {
                let facts = DeviceFacts::read(&link.name, link.index)
                    .map_err(|error| Reason(format!("interface {}: {error}", link.name)))?;
                Ok(Device { facts, allowed: None, transmits: true })
            }
        }
    }

    /// The queues that an interface has now, if the driver tells.
    pub(crate) fn channels(&self, link: &Link) -> Option<Channels> {
        match self {
            Self::Agent(client) => client.device(&link.name, link.index).ok()?.facts.channels,
            Self::Own | Self::Plugin(_) => channels(&link.name).ok(),
        }
    }

    /// Puts the program on an interface, without pairs.
    pub(crate) fn attach(&self, link: &Link, wanted: Attach) -> Result<Program, Reason> {
        let Attach { queues, mode, existing, sharing, .. } = wanted;
        match self {
            Self::Agent(_) | Self::Plugin(_) if mode == AttachMode::Offload => Err(Reason(format!(
                "{}: `attach = \"offload\"` is not supported with an agent or a device plugin",
                link.name
            ))),
            Self::Own => {
                let offload = (mode == AttachMode::Offload).then_some(link.index);
                let options = Options { queues, offload, ..Options::default() };
                attach(link, &options, wanted)
            }
            Self::Agent(_) if sharing == Dispatcher::Always => {
                Err(Reason("[io] dispatcher = \"always\": not supported with an agent".into()))
            }
            Self::Agent(client) => {
                let (generic, replace) = (mode == AttachMode::Generic, existing == Existing::Replace);
                client
                    .attach(&link.name, queues, generic, replace, wanted.timestamps)
                    .map(Program::Agent)
                    .map_err(reason)
            }
            Self::Plugin(plugin) => {
                let sockets = plugin.xsk_map(&link.name).map_err(reason)?;
                Ok(Program::Plugin { plugin: Arc::clone(plugin), sockets })
            }
        }
    }

    /// Whether interfaces are those of this process's network namespace, so that it may look at them and send on
    /// them by itself.
    pub fn is_here(&self) -> bool {
        !matches!(self, Self::Agent(_))
    }

    /// Whether this process, once confined, may still write files of its own.
    pub(crate) fn may_write(&self) -> bool {
        matches!(self, Self::Own)
    }

    /// Whether an agent is connected; `None` where none is used.
    pub(crate) fn agent_connected(&self) -> Option<bool> {
        match self {
            Self::Agent(client) => Some(client.is_connected()),
            Self::Own | Self::Plugin(_) => None,
        }
    }
}

/// Loads the program and puts it on the interface, by itself or beside others.
fn attach(link: &Link, options: &Options, wanted: Attach) -> Result<Program, Reason> {
    let Attach { mode, existing, sharing, .. } = wanted;
    Redirect::recover(link.index).map_err(reason)?;
    let beside = match sharing {
        Dispatcher::Always => true,
        Dispatcher::Never => false,
        Dispatcher::Auto if options.offload.is_some() => false,
        Dispatcher::Auto => Redirect::is_dispatched(link.index).map_err(reason)?,
    };
    let (redirect, attachment) = if beside {
        let joined = Redirect::join(options, link.index, mode).map_err(reason)?;
        tracing::info!(interface = link.name, "XDP program added to a dispatcher");
        joined
    } else if wanted.timestamps && options.offload.is_none() {
        Redirect::describe(options, link.index, mode, existing).map_err(reason)?
    } else {
        let redirect = Redirect::load(options).map_err(reason)?;
        let attachment = redirect.attach(link.index, mode, existing).map_err(reason)?;
        (redirect, attachment)
    };
    let switch = redirect.switch().and_then(StampSwitch::map_or_warn);
    Ok(Program::Own { redirect: Box::new(redirect), attachment: Box::new(attachment), switch })
}

/// Has the plugin prepare a socket for busy polling, which takes more privilege than a pod has.
fn prepare(plugin: &DevicePlugin, socket: BorrowedFd<'_>, wait: Wait) -> Result<(), PluginError> {
    let Wait::BusyPoll(poll) = wait else { return Ok(()) };
    let microseconds = u32::try_from(poll.time.as_micros()).unwrap_or(u32::MAX);
    plugin.busy_poll(socket, microseconds, poll.budget.into())
}

impl Program {
    /// An AF_XDP socket on a queue.
    pub(crate) fn bind(&self, config: XskConfig) -> Result<XskBinding, OpenError> {
        match self {
            Self::Own { redirect, switch, .. } => {
                let config = XskConfig { description: redirect.cookie(), switch: switch.clone(), ..config };
                XskBinding::open(config, redirect.xsk_map())
            }
            Self::Agent(program) => program.bind(config),
            Self::Plugin { plugin, sockets } => {
                let wait = config.wait;
                let binding = XskBinding::open(config, sockets.as_fd())?;
                if let Some(socket) = binding.descriptor() {
                    prepare(plugin, socket, wait).map_err(|error| OpenError::Refused {
                        interface: binding.report().interface.clone(),
                        queue: binding.queue(),
                        reason: error.to_string(),
                        transient: false,
                    })?;
                }
                Ok(binding)
            }
        }
    }

    /// Takes the datagrams to `pair`. The plugin's program takes whatever it takes.
    pub(crate) fn add_pair(&self, pair: SocketAddr) -> Result<(), Error> {
        match self {
            Self::Own { redirect, .. } => Ok(redirect.add_pair(pair).map(|_| ())?),
            Self::Agent(program) => Ok(program.add_pair(pair)?),
            Self::Plugin { .. } => Ok(()),
        }
    }

    /// Leaves them to the kernel.
    pub(crate) fn remove_pair(&self, pair: SocketAddr) -> Result<(), Error> {
        match self {
            Self::Own { redirect, .. } => Ok(redirect.remove_pair(pair).map(|_| ())?),
            Self::Agent(program) => Ok(program.remove_pair(pair)?),
            Self::Plugin { .. } => Ok(()),
        }
    }

    /// Whether packets come with a stamp, of the device or of the program.
    pub(crate) fn stamps(&self) -> bool {
        match self {
            Self::Own { redirect, .. } => redirect.cookie().is_some(),
            Self::Agent(program) => program.stamps(),
            Self::Plugin { .. } => false,
        }
    }

    /// The program's counters, if they can be read: those of a foreign program and of an agent that is gone
    /// cannot.
    pub(crate) fn counters(&self) -> Option<Counters> {
        match self {
            Self::Own { redirect, .. } => redirect.counters().ok(),
            Self::Agent(program) => Counters::from_packets(&program.packets().ok()?),
            Self::Plugin { .. } => None,
        }
    }

    /// Whether the program is on the interface, if that can be known: of an agent that is gone, nobody can be asked.
    pub(crate) fn is_attached(&self) -> Option<bool> {
        match self {
            Self::Own { attachment, .. } => attachment.is_attached().ok(),
            Self::Agent(program) => program.is_attached().ok(),
            Self::Plugin { .. } => None,
        }
    }
}
