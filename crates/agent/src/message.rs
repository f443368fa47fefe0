//! What client and agent say to each other. JSON behind a fixed header ([`super::channel`]); unknown fields
//! are errors, and a change of meaning is a new [`super::channel::VERSION`].

use std::fmt;
use std::net::SocketAddr;

use expressway_netio::device::DeviceFacts;
use expressway_netio::wait::Wait;
use serde::{Deserialize, Serialize};

/// What a client asks for. One reply follows each, except [`Request::Udp`], whose sockets may take several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Opens the conversation. Answered by [`Reply::Welcome`] or a refusal.
    Hello {
        /// What the client calls itself, for the agent's log.
        client: String,
    },
    /// An rtnetlink socket in the agent's network namespace. Answered by [`Reply::Done`] with it.
    Netlink {
        /// What for.
        usage: Netlink,
    },
    /// What an interface has. Answered by [`Reply::Device`].
    Device {
        /// Interface name.
        interface: String,
        /// Its index.
        ifindex: u32,
    },
    /// UDP sockets bound to an address, one a worker. Answered by one or more [`Reply::Sockets`].
    Udp(Udp),
    /// The XDP program on an interface, with no pairs. Answered by [`Reply::Program`] with the bpf_link.
    Attach {
        /// Interface name.
        interface: String,
        /// Receive queues that can have a socket.
        queues: u32,
        /// On the socket buffers of the stack, instead of in the driver.
        generic: bool,
        /// Take a foreign program off first, if the rule allows that.
        replace: bool,
        /// Have it stamp packets, where it can.
        timestamps: bool,
    },
    /// The program off again, and the sockets of the interface forgotten.
    Detach {
        /// Interface name.
        interface: String,
    },
    /// An AF_XDP socket on a queue, over the memfd that comes with the request. Answered by [`Reply::Bound`]
    /// with it.
    Socket(Socket),
    /// Datagrams to this address and port go to the sockets of the interface. Answered by [`Reply::Done`].
    AddPair {
        /// Interface name.
        interface: String,
        /// Destination; no wildcard.
        pair: SocketAddr,
    },
    /// They no longer do.
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
    /// Whether the program still is on the interface. Answered by [`Reply::Attached`].
    Attached {
        /// Interface name.
        interface: String,
    },
}

impl Request {
    /// The interface that it is about.
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

/// What an rtnetlink socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Netlink {
    /// To ask.
    Requests,
    /// To hear of all changes.
    Changes,
    /// To hear of changes of links.
    Links,
}

/// UDP sockets for an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Udp {
    /// Address, wildcard allowed, and port.
    pub listen: SocketAddr,
    /// Sockets, one a worker.
    pub workers: u32,
    /// Offset of the payload byte that names the worker, and the bits of the first byte that must be clear.
    pub steering: Option<(u16, u8)>,
    /// `UDP_GRO`.
    pub gro: bool,
    /// Bytes of SO_RCVBUF, which the rule bounds.
    pub receive_buffer: u32,
    /// Bytes of SO_SNDBUF, which the rule bounds.
    pub send_buffer: u32,
    /// Prepared for busy polling.
    pub busy_poll: Option<BusyPoll>,
}

/// Busy polling of a socket (SO_BUSY_POLL, SO_BUSY_POLL_BUDGET, and SO_PREFER_BUSY_POLL where that is right).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BusyPoll {
    /// Microseconds of one poll.
    pub microseconds: u32,
    /// Packets of one poll.
    pub budget: u16,
}

impl BusyPoll {
    /// What that way of waiting takes.
    pub fn of(wait: Wait) -> Option<Self> {
        let Wait::BusyPoll(poll) = wait else { return None };
        let microseconds = u32::try_from(poll.time.as_micros()).unwrap_or(u32::MAX);
        Some(Self { microseconds, budget: poll.budget })
    }
}

/// How an AF_XDP socket is to be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Zero-copy where the driver has it, else copy.
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
    /// Bytes of a frame.
    pub frame_size: u32,
    /// Entries of the fill and RX rings.
    pub rx_ring: u32,
    /// Entries of the TX and completion rings.
    pub tx_ring: u32,
    /// Whether it is to have a TX ring, without which it only receives.
    pub sends: bool,
    /// How long to go on trying while the queue is busy, in milliseconds.
    pub patience_ms: u32,
    /// Prepared for busy polling.
    pub busy_poll: Option<BusyPoll>,
}

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// The client is known.
    Welcome {
        /// Name of the rule that it is under.
        rule: String,
    },
    /// Done; what was asked for is with the message.
    Done,
    /// The program is on the interface; its bpf_link is with the message.
    Program {
        /// By which the client knows descriptions in front of packets, where the program writes them.
        cookie: Option<u32>,
    },
    /// What an interface has.
    Device(Box<Device>),
    /// UDP sockets, with the message; more of them follow.
    Sockets {
        /// How many, in further messages.
        remaining: u32,
    },
    /// An AF_XDP socket, with the message.
    Bound {
        /// Bound in zero-copy mode.
        zero_copy: bool,
        /// Frames that a sent packet may take.
        segments: u32,
    },
    /// Packets by counter, in the order of the program's counters.
    Counters {
        /// One number a counter.
        packets: Vec<u64>,
    },
    /// Whether the program is on the interface.
    Attached {
        /// It is.
        attached: bool,
    },
    /// Not done.
    Refused(Refusal),
}

/// What an interface has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// What the device is and offers.
    pub facts: DeviceFacts,
    /// Queues that the client may have sockets on, if not all.
    pub allowed: Option<Vec<u32>>,
    /// Whether the client may have sockets that send.
    pub transmits: bool,
}

/// Why something was not done, in a sentence that names the rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(deny_unknown_fields)]
#[error("{message}")]
pub struct Refusal {
    /// The kind of reason.
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

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The message was not understood, or came out of order.
    Protocol,
    /// Another version of the protocol.
    Version,
    /// No rule has this user or group.
    Unknown,
    /// Too many clients.
    Clients,
    /// The rule has not this address and port.
    Listen,
    /// The rule has not this interface.
    Interface,
    /// The rule has not this queue.
    Queue,
    /// The rule has not this much memory.
    Memory,
    /// The rule has no socket buffers as large.
    Buffer,
    /// The rule has no sockets that send.
    Transmit,
    /// The rule has no zero-copy sockets.
    ZeroCopy,
    /// The rule has not this many workers.
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
