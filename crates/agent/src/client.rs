//! The unprivileged side: asks an agent for what it may not make itself.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use expressway_netio::IoError;
use expressway_netio::express::{BindMode, Bound, ObtainedMode, OpenError, Port, PortConfig, SocketSource};
use expressway_netio::route::{NetlinkSource, NetlinkUse, RouteError, RouteMirror};
use expressway_netio::udp::{Steering, UdpConfig, UdpGroup};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::channel::{Channel, ChannelError, MAX_FDS, Received};
use crate::message::{self, Code, Device, Netlink, Refusal, Reply, Request};

/// How long an answer may take that loads a program or waits for a busy queue.
const SETUP_PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer may take that is only read.
const READ_PATIENCE: Duration = Duration::from_millis(500);

/// Why an agent did not give what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// There is no agent.
    #[error("agent {agent}: {source}; is `expressway agent` running, and may this user open its socket?")]
    Connect {
        /// Path of the socket.
        agent: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The agent said no.
    #[error("agent {agent}: {refusal}")]
    Refused {
        /// Path of the socket.
        agent: String,
        /// Why.
        refusal: Refusal,
    },
    /// The agent is gone, does not answer, or answers nonsense.
    #[error("agent {agent}: {source}")]
    Channel {
        /// Path of the socket.
        agent: String,
        /// How.
        source: ChannelError,
    },
    /// What the agent gave cannot be used.
    #[error("agent {agent}: {problem}")]
    Answer {
        /// Path of the socket.
        agent: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl AgentError {
    /// Whether the agent refused for that reason.
    pub fn is_refusal(&self, code: Code) -> bool {
        matches!(self, Self::Refused { refusal, .. } if refusal.code == code)
    }
}

#[derive(Debug)]
struct Connection {
    channel: Channel,
    sequence: u32,
}

#[derive(Debug)]
struct Inner {
    connection: Mutex<Connection>,
    gone: AtomicBool,
    agent: String,
}

/// A connection to an agent; clones share it. What was obtained stays usable when the agent goes; when the
/// last clone goes, the agent takes it back.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Connects to the agent at `path`. `name` is for its log.
    ///
    /// # Errors
    /// [`AgentError`], with the agent's own words when it turns this process away.
    pub fn connect(path: &Path, name: &str) -> Result<Self, AgentError> {
        let agent = path.display().to_string();
        let socket = dial(path).map_err(|source| AgentError::Connect { agent: agent.clone(), source })?;
        Self::over(socket, agent, name)
    }

    /// Talks to the agent at the other end of `socket`; `agent` is what messages call it.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn over(socket: OwnedFd, agent: String, name: &str) -> Result<Self, AgentError> {
        let channel = Channel::new(socket, SETUP_PATIENCE)
            .map_err(|source| AgentError::Connect { agent: agent.clone(), source })?;
        let connection = Mutex::new(Connection { channel, sequence: 0 });
        let client = Self { inner: Arc::new(Inner { connection, gone: AtomicBool::new(false), agent }) };
        match client.call(&Request::Hello { client: name.to_owned() }, &[], SETUP_PATIENCE)? {
            (Reply::Welcome { rule }, _) => {
                tracing::info!(agent = client.inner.agent, rule, "agent found");
                Ok(client)
            }
            (reply, _) => Err(client.unexpected(&reply)),
        }
    }

    /// Whether the agent is there. Once it is not, that is for good; the first time is logged.
    pub fn is_connected(&self) -> bool {
        if !self.inner.gone.load(Ordering::Relaxed)
            && self.inner.connection.try_lock().is_ok_and(|connection| connection.channel.is_closed())
        {
            self.lose();
        }
        !self.inner.gone.load(Ordering::Relaxed)
    }

    /// The agent's name in messages: the path of its socket.
    pub fn agent(&self) -> &str {
        &self.inner.agent
    }

    /// Mirrors the tables of the agent's network namespace.
    ///
    /// # Errors
    /// As [`RouteMirror::start`], with the agent's words.
    pub fn mirror(&self) -> Result<RouteMirror, RouteError> {
        RouteMirror::start_from(Arc::new(self.clone()))
    }

    /// What an interface has.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn device(&self, interface: &str, ifindex: u32) -> Result<Device, AgentError> {
        let request = Request::Device { interface: interface.to_owned(), ifindex };
        match self.call(&request, &[], SETUP_PATIENCE)? {
            (Reply::Device(device), _) => Ok(*device),
            (reply, _) => Err(self.unexpected(&reply)),
        }
    }

    /// Kernel sockets on the addresses of `config` for so many workers.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn udp_group(&self, config: &UdpConfig, workers: usize) -> Result<UdpGroup, AgentError> {
        let mut by_worker: Vec<Vec<OwnedFd>> = (0..workers).map(|_| Vec::new()).collect();
        let answer = |problem: String| AgentError::Answer { agent: self.inner.agent.clone(), problem };
        let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        for listen in &config.listen {
            let request = Request::Udp(message::Udp {
                listen: *listen,
                workers: size(workers),
                steering: match config.steering {
                    Steering::Hash => None,
                    Steering::ByteAt { offset, clear_mask } => Some((offset, clear_mask)),
                },
                gro: config.gro,
                receive_buffer: size(config.socket_receive_buffer),
                send_buffer: size(config.socket_send_buffer),
                busy_poll: message::BusyPoll::of(config.wait),
            });
            let (reply, sockets) = self.call(&request, &[], SETUP_PATIENCE)?;
            if !matches!(reply, Reply::Sockets { .. }) {
                return Err(self.unexpected(&reply));
            }
            if sockets.len() != workers {
                return Err(answer(format!("{} sockets came for {workers} workers", sockets.len())));
            }
            by_worker.iter_mut().zip(sockets).for_each(|(sockets, socket)| sockets.push(socket));
        }
        UdpGroup::adopt(config, by_worker).map_err(|error: IoError| answer(error.to_string()))
    }

    /// Attaches the XDP program to an interface, without pairs; with `timestamps` one that stamps packets, where that
    /// can be had.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn attach(
        &self,
        interface: &str,
        queues: u32,
        generic: bool,
        replace: bool,
        timestamps: bool,
    ) -> Result<Program, AgentError> {
        let interface = interface.to_owned();
        let request = Request::Attach { interface: interface.clone(), queues, generic, replace, timestamps };
        let (reply, mut fds) = self.call(&request, &[], SETUP_PATIENCE)?;
        match (reply, fds.pop()) {
            (Reply::Program { cookie }, Some(link)) => {
                Ok(Program { client: self.clone(), interface, cookie, _link: link })
            }
            (reply, _) => Err(self.unexpected(&reply)),
        }
    }

    /// Asks and waits for the answer, with all of its descriptors.
    fn call(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(Reply, Vec<OwnedFd>), AgentError> {
        let result = self.exchange(request, fds, patience);
        if matches!(result, Err(ChannelError::Closed | ChannelError::Io(_))) {
            self.lose();
        }
        let agent = || self.inner.agent.clone();
        match result {
            Ok((Reply::Refused(refusal), _)) => Err(AgentError::Refused { agent: agent(), refusal }),
            Ok(answer) => Ok(answer),
            Err(source) => Err(AgentError::Channel { agent: agent(), source }),
        }
    }

    fn exchange(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(Reply, Vec<OwnedFd>), ChannelError> {
        if self.inner.gone.load(Ordering::Relaxed) {
            return Err(ChannelError::Closed);
        }
        let mut connection = self.inner.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.sequence = connection.sequence.wrapping_add(1).max(1);
        let sequence = connection.sequence;
        connection.channel.set_receive_timeout(Some(patience))?;
        // An agent that turns a client away says why and closes: its words wait to be read all the same.
        let sent = connection.channel.send(sequence, request, fds);
        if !matches!(sent, Ok(()) | Err(ChannelError::Closed)) {
            sent?;
        }
        let mut gathered = Vec::new();
        loop {
            let Received { sequence: of, content, fds } = connection.channel.receive::<Reply>(MAX_FDS)?;
            match content {
                // An answer to a request whose patience was over.
                _ if of != sequence && of != 0 => {}
                Reply::Sockets { remaining } if remaining > 0 => gathered.extend(fds),
                content => {
                    gathered.extend(fds);
                    return Ok((content, gathered));
                }
            }
        }
    }

    fn lose(&self) {
        if !self.inner.gone.swap(true, Ordering::Relaxed) {
            tracing::error!(
                agent = self.inner.agent,
                "the agent has gone: what it gave goes on working, and nothing new can be had until a restart"
            );
        }
    }

    fn unexpected(&self, reply: &Reply) -> AgentError {
        AgentError::Answer {
            agent: self.inner.agent.clone(),
            problem: format!("unexpected answer: {reply:?}"),
        }
    }
}

impl NetlinkSource for Client {
    fn open(&self, usage: NetlinkUse) -> io::Result<OwnedFd> {
        let usage = match usage {
            NetlinkUse::Requests => Netlink::Requests,
            NetlinkUse::Changes => Netlink::Changes,
            NetlinkUse::Links => Netlink::Links,
        };
        let (reply, mut fds) =
            self.call(&Request::Netlink { usage }, &[], SETUP_PATIENCE).map_err(io::Error::other)?;
        fds.pop().ok_or_else(|| io::Error::other(self.unexpected(&reply)))
    }
}

/// The XDP program on an interface, of the agent's making. Dropped, it is off. While this process lives it
/// stays on the interface, also when the agent has gone, for its bpf_link is held here too.
#[derive(Debug)]
pub struct Program {
    client: Client,
    interface: String,
    cookie: Option<u32>,
    _link: OwnedFd,
}

impl Program {
    /// An AF_XDP socket on a queue.
    ///
    /// # Errors
    /// [`OpenError::Refused`] with the agent's words.
    pub fn port(&self, config: PortConfig) -> Result<Port, OpenError> {
        let config = PortConfig { description: self.cookie, ..config };
        Port::open_from(config, Box::new(self.client.clone()))
    }

    /// Whether packets come with a stamp, of the device or of the program.
    pub fn stamps(&self) -> bool {
        self.cookie.is_some()
    }

    /// Takes the datagrams to `pair`.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn add_pair(&self, pair: SocketAddr) -> Result<(), AgentError> {
        self.done(&Request::AddPair { interface: self.interface.clone(), pair })
    }

    /// Leaves them to the kernel.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn remove_pair(&self, pair: SocketAddr) -> Result<(), AgentError> {
        self.done(&Request::RemovePair { interface: self.interface.clone(), pair })
    }

    /// Packets by counter of the program, in its order.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn packets(&self) -> Result<Vec<u64>, AgentError> {
        let request = Request::Counters { interface: self.interface.clone() };
        match self.client.call(&request, &[], READ_PATIENCE)? {
            (Reply::Counters { packets }, _) => Ok(packets),
            (reply, _) => Err(self.client.unexpected(&reply)),
        }
    }

    /// Whether the program still is on the interface.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn is_attached(&self) -> Result<bool, AgentError> {
        let request = Request::Attached { interface: self.interface.clone() };
        match self.client.call(&request, &[], READ_PATIENCE)? {
            (Reply::Attached { attached }, _) => Ok(attached),
            (reply, _) => Err(self.client.unexpected(&reply)),
        }
    }

    fn done(&self, request: &Request) -> Result<(), AgentError> {
        match self.client.call(request, &[], SETUP_PATIENCE)? {
            (Reply::Done, _) => Ok(()),
            (reply, _) => Err(self.client.unexpected(&reply)),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Without an agent the link goes with its descriptor.
        if let Err(error) = self.done(&Request::Detach { interface: self.interface.clone() }) {
            tracing::debug!(interface = self.interface, %error, "program not detached by the agent");
        }
    }
}

impl SocketSource for Client {
    fn bind(&mut self, config: &PortConfig, memory: BorrowedFd<'_>) -> Result<Bound, OpenError> {
        let request = Request::Socket(message::Socket {
            interface: config.interface.clone(),
            queue: config.queue,
            mode: match config.mode {
                BindMode::Auto => message::Mode::Auto,
                BindMode::Copy => message::Mode::Copy,
                BindMode::ZeroCopy => message::Mode::ZeroCopy,
            },
            frame_size: config.frame_size,
            rx_ring: config.rx_ring,
            tx_ring: config.tx_ring,
            patience_ms: u32::try_from(config.bind_patience.as_millis()).unwrap_or(u32::MAX),
            busy_poll: message::BusyPoll::of(config.wait),
        });
        let refused = |reason: String, transient| OpenError::Refused {
            interface: config.interface.clone(),
            queue: config.queue,
            reason,
            transient,
        };
        match self.call(&request, &[memory.as_fd()], SETUP_PATIENCE) {
            Ok((Reply::Bound { zero_copy, ifindex, multi_buffer, segments }, mut fds)) => {
                let socket = fds.pop().ok_or_else(|| refused("the agent sent no socket".into(), true))?;
                let mode = if zero_copy { ObtainedMode::ZeroCopy } else { ObtainedMode::Copy };
                Ok(Bound { socket, mode, ifindex, multi_buffer, segments })
            }
            Ok((reply, _)) => Err(refused(self.unexpected(&reply).to_string(), true)),
            Err(error) => {
                let transient = error.is_refusal(Code::Kernel) || self.is_connected();
                Err(refused(error.to_string(), transient))
            }
        }
    }
}

fn dial(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(SETUP_PATIENCE))?;
    connect(&socket, &address)?;
    Ok(socket)
}
