//! A program that an agent has attached to an interface, and the sockets on that interface.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use expressway_netio::route::NetlinkSource;
use expressway_netio::trace::StampSwitch;
use expressway_netio::xsk::{
    BindMode, BoundXsk, ObtainedMode, OpenError, RemoteBinder, XskBinding, XskConfig,
};

use super::{AgentError, Client, READ_PATIENCE, SETUP_PATIENCE};
use crate::message::{self, Code, Reply, Request};

/// The XDP program on an interface, created by the agent. Dropping it detaches it. While this process lives
/// it stays attached even if the agent is lost, because its bpf_link is also held here. A successor of the
/// agent does not know it: attach another one through that.
#[derive(Debug)]
pub struct Program {
    lease: Lease,
    interface: String,
    cookie: Option<u32>,
    switch: Option<StampSwitch>,
    _link: OwnedFd,
}

/// A client's claim on what one connection provided. It uses that connection or none, so that nothing said
/// about an interface reaches an agent that has provided that interface again.
#[derive(Clone, Debug)]
struct Lease {
    client: Client,
    connection: u64,
}

impl Lease {
    fn call(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<(Reply, Vec<OwnedFd>), AgentError> {
        self.client.call_over(Some(self.connection), request, fds, patience)
    }
}

impl Program {
    /// Attaches it, without pairs; with `timestamps` one that timestamps packets, where available.
    pub(super) fn attach(
        client: &Client,
        interface: &str,
        queues: u32,
        (generic, replace, timestamps): (bool, bool, bool),
    ) -> Result<Self, AgentError> {
        let interface = interface.to_owned();
        let request = Request::Attach { interface: interface.clone(), queues, generic, replace, timestamps };
        let lease = Lease { client: client.clone(), connection: client.connection() };
        let (reply, mut fds) = lease.call(&request, &[], SETUP_PATIENCE)?;
        match (reply, fds.pop()) {
            (Reply::Program { cookie }, Some(link)) => {
                let switch = fds.pop().and_then(|map| StampSwitch::map_or_warn(map.as_fd()));
                Ok(Self { lease, interface, cookie, switch, _link: link })
            }
            (reply, _) => Err(client.unexpected(&reply)),
        }
    }

    /// An AF_XDP socket on a queue.
    ///
    /// # Errors
    /// [`OpenError::Refused`] with the agent's words.
    pub fn bind(&self, config: XskConfig) -> Result<XskBinding, OpenError> {
        let config = XskConfig { description: self.cookie, switch: self.switch.clone(), ..config };
        XskBinding::open_from(config, Box::new(self.lease.clone()))
    }

    /// Whether packets carry a timestamp, of the device or of the program.
    pub fn stamps(&self) -> bool {
        self.cookie.is_some()
    }

    /// Redirects the datagrams to `pair`.
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
        match self.lease.call(&request, &[], READ_PATIENCE)? {
            (Reply::Counters { packets }, _) => Ok(packets),
            (reply, _) => Err(self.lease.client.unexpected(&reply)),
        }
    }

    /// Whether the program is still attached to the interface.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn is_attached(&self) -> Result<bool, AgentError> {
        let request = Request::Attached { interface: self.interface.clone() };
        match self.lease.call(&request, &[], READ_PATIENCE)? {
            (Reply::Attached { attached }, _) => Ok(attached),
            (reply, _) => Err(self.lease.client.unexpected(&reply)),
        }
    }

    fn done(&self, request: &Request) -> Result<(), AgentError> {
        match self.lease.call(request, &[], SETUP_PATIENCE)? {
            (Reply::Done, _) => Ok(()),
            (reply, _) => Err(self.lease.client.unexpected(&reply)),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Without an agent, closing the descriptor releases the link.
        if let Err(error) = self.done(&Request::Detach { interface: self.interface.clone() }) {
            tracing::debug!(interface = self.interface, %error, "agent did not detach the program");
        }
    }
}

impl RemoteBinder for Lease {
    fn bind(&mut self, config: &XskConfig, memory: BorrowedFd<'_>) -> Result<BoundXsk, OpenError> {
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
            sends: config.sends,
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
            Ok((Reply::Bound { zero_copy, segments }, mut fds)) => {
                let socket = fds.pop().ok_or_else(|| refused("agent sent no socket".into(), true))?;
                let mode = if zero_copy { ObtainedMode::ZeroCopy } else { ObtainedMode::Copy };
                Ok(BoundXsk { socket, mode, segments })
            }
            Ok((reply, _)) => Err(refused(self.client.unexpected(&reply).to_string(), true)),
            Err(error) => {
                let transient = error.is_refusal(Code::Kernel) || self.client.is_connected();
                Err(refused(error.to_string(), transient))
            }
        }
    }

    fn namespace(&self) -> &dyn NetlinkSource {
        &self.client
    }
}
