//! The protocol between client and agent: JSON behind a fixed header ([`super::channel`]). Unknown fields are
//! errors. An incompatible change is a new [`super::channel::VERSION`].

use std::fmt;
use std::net::SocketAddr;

use expressway_netio::device::DeviceFacts;
use expressway_netio::wait::Wait;
use serde::{Deserialize, Serialize};

/// A client's requests. Each gets one reply, except [`Request::Udp`], whose sockets may take several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Opens the session. Answered by [`Reply::Welcome`] or a refusal.
    Hello {
        /// The client's name, for the agent's log.
        client: String,
    },
    /// An rtnetlink socket in the agent's network namespace. Answered by [`Reply::Done`] with it.
    Netlink {
        /// Its purpose.
        usage: Netlink,
    },
    /// The properties of an interface. Answered by [`Reply::Device`].
    Device {
        /// Interface name.
        interface: String,
        /// Its index.
        ifindex: u32,
    },
    /// UDP sockets bound to an address, one per worker. Answered by one or more [`Reply::Sockets`].
    Udp(Udp),
    /// Attach the XDP program to an interface, without pairs. Answered by [`Reply::Program`] with the
    /// bpf_link.
    Attach {
        /// Interface name.
        interface: String,
        /// Receive queues that can have a socket.
        queues: u32,
        /// Generic XDP, on the stack's socket buffers, instead of in the driver.
        generic: bool,
        /// Detach a foreign program first, if the rule allows that.
        replace: bool,
        /// Timestamp packets, where possible.
        timestamps: bool,
    },
    /// Detach the program and forget the interface's sockets.
    Detach {
        /// Interface name.
        interface: String,
    },
    /// An AF_XDP socket on a queue, over the memfd sent with the request. Answered by [`Reply::Bound`] with
    /// it.
    Socket(Socket),
    /// Redirect datagrams for this address and port to the interface's sockets. Answered by [`Reply::Done`].
    AddPair {
        /// Interface name.
        interface: String,
        /// Destination; no wildcard.
        pair: SocketAddr,
    },
    /// Stop redirecting them.
    RemovePair {
        /// Interface name.
        interface: String,
        /// Destination.
        pair: SocketAddr,
    },
    /// The counters of the program on an interface. Answered by [`Reply::Counters`].
    Counters {
        /// Interface name.
        interface: String,
    },
    /// Whether the program is still attached to the interface. Answered by [`Reply::Attached`].
    Attached {
        /// Interface name.
        interface: String,
    },
}

impl Request {
    /// The interface it concerns.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Hello { .. } | Self::Netlink { .. } | Self::Udp(_) => None,
            Self::Socket(socket) => Some(&socket.interface),
            Self::Device { interface, .. }
            | Self::Attach { interface, .. }
            | Self::Detach { interface }
            | Self::AddPair { interface, .. }
            | Self::RemovePair { interface, .. }
            | Self::Counters { interface }
            | Self::Attached { interface } => Some(interface),
        }
    }
}

/// Purpose of an rtnetlink socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Netlink {
    /// Requests.
    Requests,
    /// All change notifications.
    Changes,
    /// Link change notifications.
    Links,
}

/// UDP sockets for an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Udp {
    /// Address, wildcard allowed, and port.
    pub listen: SocketAddr,
    /// Sockets, one per worker.
    pub workers: u32,
    /// Offset of the payload byte with the worker number, and the bits of the first byte that must be clear.
    pub steering: Option<(u16, u8)>,
    /// `UDP_GRO`.
    pub gro: bool,
    /// Bytes of SO_RCVBUF, limited by the rule.
    pub receive_buffer: u32,
    /// Bytes of SO_SNDBUF, limited by the rule.
    pub send_buffer: u32,
    /// Prepared for busy polling.
    pub busy_poll: Option<BusyPoll>,
}

/// Busy polling of a socket (SO_BUSY_POLL, SO_BUSY_POLL_BUDGET, and SO_PREFER_BUSY_POLL where appropriate).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusyPoll {
    /// Microseconds of one poll.
    pub microseconds: u32,
    /// Packets of one poll.
    pub budget: u16,
}

impl BusyPoll {
    /// The parameters for that way of waiting.
    pub fn of(wait: Wait) -> Option<Self> {
        let Wait::BusyPoll(poll) = wait else { return None };
        let microseconds = u32::try_from(poll.time.as_micros()).unwrap_or(u32::MAX);
        Some(Self { microseconds, budget: poll.budget })
    }
}

/// How to bind an AF_XDP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Zero-copy if the driver supports it, otherwise copy.
    Auto,
    /// Copy mode.
    Copy,
    /// Zero-copy or an error.
    ZeroCopy,
}

/// An AF_XDP socket for a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Socket {
    /// Interface name.
    pub interface: String,
    /// Queue.
    pub queue: u32,
    /// How to bind.
    pub mode: Mode,
    /// Bytes per frame.
    pub frame_size: u32,
    /// Entries of the fill and RX rings.
    pub rx_ring: u32,
    /// Entries of the TX and completion rings.
    pub tx_ring: u32,
    /// Whether to create a TX ring; without one the socket is receive-only.
    pub sends: bool,
    /// How long to retry while the queue is busy, in milliseconds.
    pub patience_ms: u32,
    /// Prepared for busy polling.
    pub busy_poll: Option<BusyPoll>,
}

/// The agent's replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// The client is accepted.
    Welcome {
        /// Name of the rule that applies.
        rule: String,
    },
    /// Done; what was requested comes with the message.
    Done,
    /// The program is attached; its bpf_link comes with the message, behind the map by which it stamps packets on demand, if
    /// it does.
    Program {
        /// The cookie by which the client recognises descriptions in front of packets, if the program writes
        /// them.
        cookie: Option<u32>,
    },
    /// The properties of an interface.
    Device(Box<Device>),
    /// UDP sockets, with the message; more may follow.
    Sockets {
        /// How many follow in further messages.
        remaining: u32,
    },
    /// An AF_XDP socket, with the message.
    Bound {
        /// Bound in zero-copy mode.
        zero_copy: bool,
        /// Maximum number of frames of a sent packet.
        segments: u32,
    },
    /// Packets by counter, in the order of the program's counters.
    Counters {
        /// One number per counter.
        packets: Vec<u64>,
    },
    /// Whether the program is on the interface.
    Attached {
        /// It is.
        attached: bool,
    },
    /// Refused.
    Refused(Refusal),
}

/// The properties of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The device's facts.
    pub facts: DeviceFacts,
    /// Queues on which the client may have sockets; `None` is all.
    pub allowed: Option<Vec<u32>>,
    /// Whether the client may have sockets that send.
    pub transmits: bool,
}

/// Why a request was refused, as a sentence that names the rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(deny_unknown_fields)]
#[error("{message}")]
pub struct Refusal {
    /// The type of reason.
    pub code: Code,
    /// The sentence.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(code: Code, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }
}

/// Types of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The message was not understood, or out of order.
    Protocol,
    /// Version mismatch.
    Version,
    /// No rule has this user or group.
    Unknown,
    /// Too many clients.
    Clients,
    /// The rule does not allow this address and port.
    Listen,
    /// The rule does not allow this interface.
    Interface,
    /// The rule does not allow this queue.
    Queue,
    /// The rule does not allow this much memory.
    Memory,
    /// The rule does not allow socket buffers this large.
    Buffer,
    /// The rule does not allow sockets that send.
    Transmit,
    /// The rule does not allow zero-copy sockets.
    ZeroCopy,
    /// The rule does not allow this many workers.
    Workers,
    /// The rule does not allow foreign programs to be replaced.
    Replace,
    /// The rule does not allow busy polling.
    BusyPoll,
    /// The address is not the interface's own.
    Address,
    /// Another client has the interface.
    Taken,
    /// The kernel refused.
    Kernel,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Protocol => "protocol",
            Self::Version => "version",
            Self::Unknown => "unknown",
            Self::Clients => "clients",
            Self::Listen => "listen",
            Self::Interface => "interface",
            Self::Queue => "queue",
            Self::Memory => "memory",
            Self::Buffer => "buffer",
            Self::Transmit => "transmit",
            Self::ZeroCopy => "zero-copy",
            Self::Workers => "workers",
            Self::Replace => "replace",
            Self::BusyPoll => "busy-poll",
            Self::Address => "address",
            Self::Taken => "taken",
            Self::Kernel => "kernel",
        })
    }
}
