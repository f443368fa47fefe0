//! The unprivileged side: asks an agent for what this process may not create itself.

mod program;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use expressway_netio::IoError;
use expressway_netio::route::{NetlinkSource, NetlinkUse, RouteError, RouteMirror};
use expressway_netio::udp::{Steering, UdpConfig, UdpGroup};

use crate::channel::ChannelError;
use crate::connection::Connection;
use crate::message::{self, Code, Device, Netlink, Refusal, Reply, Request};

pub use program::Program;

/// Time limit for an answer that involves loading a program or waiting for a busy queue.
const SETUP_PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for an answer that only needs reading.
const READ_PATIENCE: Duration = Duration::from_millis(500);

/// Why an agent did not provide what was requested.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// There is no agent.
    #[error(
        "agent {agent}: {source}; check that `expressway agent` is running and that this user may open its socket"
    )]
    Connect {
        /// Path of the socket.
        agent: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The agent refused.
    #[error("agent {agent}: {refusal}")]
    Refused {
        /// Path of the socket.
        agent: String,
        /// Why.
        refusal: Refusal,
    },
    /// The agent is gone, does not answer, or sends invalid answers.
    #[error("agent {agent}: {source}")]
    Channel {
        /// Path of the socket.
        agent: String,
        /// How.
        source: ChannelError,
    },
    /// What the agent sent cannot be used.
    #[error("agent {agent}: {problem}")]
    Answer {
        /// Path of the socket.
        agent: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl AgentError {
    /// Whether the agent was lost without an answer.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Channel { source, .. } if source.ends_the_connection())
    }

    /// Whether the agent refused for that reason.
    pub fn is_refusal(&self, code: Code) -> bool {
        matches!(self, Self::Refused { refusal, .. } if refusal.code == code)
    }
}

/// The connection in use and its generation number.
#[derive(Debug)]
struct Current {
    connection: Connection,
    number: u64,
}

#[derive(Debug)]
struct Inner {
    current: Mutex<Current>,
    /// The agent of the current connection is gone. Set only while holding the lock.
    gone: AtomicBool,
    /// Requests that found no agent, or during which it was lost.
    unanswered: AtomicU64,
    /// Where to look for a successor; `None` if there can be none.
    path: Option<PathBuf>,
    /// The agent's name in messages.
    agent: String,
    /// This client's name.
    name: String,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the agent is gone. Called with the lock held.
    fn lose(&self) {
        if !self.gone.swap(true, Ordering::Relaxed) {
            let agent = &self.agent;
            match self.path {
                Some(_) => tracing::warn!(
                    agent,
                    "agent connection lost: everything it provided keeps working; reconnecting"
                ),
                None => tracing::error!(
                    agent,
                    "agent connection lost: everything it provided keeps working; nothing new can be obtained until a restart"
                ),
            }
        }
    }

    /// An answer, with the agent named in its error.
    fn answer(
        &self,
        result: Result<(Reply, Vec<OwnedFd>), ChannelError>,
    ) -> Result<(Reply, Vec<OwnedFd>), AgentError> {
        let agent = || self.agent.clone();
        match result {
            Ok((Reply::Refused(refusal), _)) => Err(AgentError::Refused { agent: agent(), refusal }),
            Ok(answer) => Ok(answer),
            Err(source) => Err(AgentError::Channel { agent: agent(), source }),
        }
    }

    /// Says hello over a new connection.
    fn greet(&self, connection: &mut Connection, patience: Duration) -> Result<(), AgentError> {
        let hello = Request::Hello { client: self.name.clone() };
        match self.answer(connection.exchange(&hello, &[], patience))? {
            (Reply::Welcome { rule }, _) => {
                tracing::info!(agent = self.agent, rule, "agent found");
                Ok(())
            }
            (reply, _) => Err(self.unexpected(&reply)),
        }
    }

    fn unexpected(&self, reply: &Reply) -> AgentError {
        AgentError::Answer { agent: self.agent.clone(), problem: format!("unexpected answer: {reply:?}") }
    }
}

/// A connection to an agent; clones share it. What was obtained remains usable when the agent is lost, and
/// [`Client::reconnect`] finds its successor. When the last clone is dropped, the agent takes back what it
/// provided.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Connects to the agent at `path`. `name` is for its log.
    ///
    /// # Errors
    /// [`AgentError`], with the agent's own message if it rejects this process.
    pub fn connect(path: &Path, name: &str) -> Result<Self, AgentError> {
        let agent = path.display().to_string();
        let connection = Connection::dial(path, SETUP_PATIENCE)
            .map_err(|source| AgentError::Connect { agent: agent.clone(), source })?;
        Self::new(connection, Some(path.to_owned()), agent, name)
    }

    /// Talks to the agent at the other end of `socket`; `agent` is its name in messages.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn over(socket: OwnedFd, agent: String, name: &str) -> Result<Self, AgentError> {
        let connection = Connection::over(socket, SETUP_PATIENCE)
            .map_err(|source| AgentError::Connect { agent: agent.clone(), source })?;
        Self::new(connection, None, agent, name)
    }

    fn new(
        connection: Connection,
        path: Option<PathBuf>,
        agent: String,
        name: &str,
    ) -> Result<Self, AgentError> {
        let current = Mutex::new(Current { connection, number: 1 });
        let (gone, unanswered) = (AtomicBool::new(false), AtomicU64::new(0));
        let inner = Inner { current, gone, unanswered, path, agent, name: name.to_owned() };
        inner.greet(&mut inner.lock().connection, SETUP_PATIENCE)?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether the agent is connected. The first time it is not is logged.
    pub fn is_connected(&self) -> bool {
        if !self.inner.gone.load(Ordering::Relaxed)
            && let Ok(current) = self.inner.current.try_lock()
            && current.connection.is_closed()
        {
            self.inner.lose();
        }
        !self.inner.gone.load(Ordering::Relaxed)
    }

    /// Disconnects from the agent, for all clones: what it provided remains usable, and nothing new can be had.
    pub fn leave(&self) {
        let current = self.inner.lock();
        // Before the end is seen, which is no loss.
        self.inner.gone.store(true, Ordering::Relaxed);
        current.connection.shut();
    }

    /// Requests so far without an answer because the agent was gone or lost meanwhile.
    pub fn unanswered(&self) -> u64 {
        self.inner.unanswered.load(Ordering::Relaxed)
    }

    /// Whether the agent can have a successor: not if it was started for this process only.
    pub fn may_return(&self) -> bool {
        self.inner.path.is_some()
    }

    /// Connects to the agent that now listens at the path of the lost one. It knows nothing of what its
    /// predecessor provided: programs and the sockets on their interfaces have to be requested again, and
    /// those obtained before send it nothing. UDP and rtnetlink sockets no longer need an agent.
    ///
    /// # Errors
    /// [`AgentError`]; then nothing has changed.
    pub fn reconnect(&self) -> Result<(), AgentError> {
        let agent = || self.inner.agent.clone();
        let Some(path) = &self.inner.path else {
            let problem = "this process's own agent has exited and cannot be reconnected".to_owned();
            return Err(AgentError::Answer { agent: agent(), problem });
        };
        let mut connection = Connection::dial(path, READ_PATIENCE)
            .map_err(|source| AgentError::Connect { agent: agent(), source })?;
        self.inner.greet(&mut connection, READ_PATIENCE)?;
        let mut current = self.inner.lock();
        let number = current.number + 1;
        *current = Current { connection, number };
        self.inner.gone.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The generation number of the connection in use.
    fn connection(&self) -> u64 {
        self.inner.lock().number
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

    /// The properties of an interface.
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

    /// Kernel sockets on the addresses of `config`, for `workers` workers.
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
                return Err(answer(format!("got {} sockets for {workers} workers", sockets.len())));
            }
            by_worker.iter_mut().zip(sockets).for_each(|(sockets, socket)| sockets.push(socket));
        }
        UdpGroup::adopt(config, by_worker).map_err(|error: IoError| answer(error.to_string()))
    }

    /// Attaches the XDP program to an interface, without pairs; with `timestamps` one that timestamps
    /// packets, where available.
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
        Program::attach(self, interface, queues, (generic, replace, timestamps))
    }

    /// Sends a request and waits for the answer with all of its descriptors.
    fn call(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(Reply, Vec<OwnedFd>), AgentError> {
        self.call_over(None, request, fds, patience)
    }

    /// The same over the connection with that generation number, if it is still in use.
    fn call_over(
        &self,
        number: Option<u64>,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(Reply, Vec<OwnedFd>), AgentError> {
        let result = if self.inner.gone.load(Ordering::Relaxed) {
            Err(ChannelError::Closed)
        } else {
            let mut current = self.inner.lock();
            match number {
                Some(number) if number != current.number => Err(ChannelError::Closed),
                _ => {
                    let result = current.connection.exchange(request, fds, patience);
                    if result.as_ref().is_err_and(ChannelError::ends_the_connection) {
                        self.inner.lose();
                    }
                    result
                }
            }
        };
        if result.as_ref().is_err_and(ChannelError::ends_the_connection) {
            self.inner.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.answer(result)
    }

    fn unexpected(&self, reply: &Reply) -> AgentError {
        self.inner.unexpected(reply)
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
