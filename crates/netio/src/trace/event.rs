//! What is recorded: an event for each hop.

use std::fmt::Write;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Bytes of a request's method and target that are kept.
pub const MAX_REQUEST: usize = 256;

/// Bytes of a connection ID that are kept.
pub const ID: usize = 20;

/// What a datagram came into the process by, or left it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    /// An AF_XDP socket, by its index within the worker's backend.
    Xsk(u16),
    /// The kernel's UDP socket.
    Kernel,
    /// Another worker, which had received it.
    Worker,
    /// A TCP connection.
    Tcp,
    /// The simulated network.
    Simulated,
}

/// A request's text as a trace has it, and as the access log does: `"`, `\\`, controls and everything beyond ASCII as `\\xXX`,
/// because a client may send anything, and an operator's terminal shows it. No longer than [`MAX_REQUEST`].
pub fn escaped(text: &str) -> Box<str> {
    let mut out = String::new();
    for byte in text.bytes() {
        let before = out.len();
        match byte {
            // Writing into a string does not fail.
            b'"' | b'\\' | ..0x20 | 0x7f.. => _ = write!(out, "\\x{byte:02X}"),
            _ => out.push(byte.into()),
        }
        if out.len() > MAX_REQUEST {
            out.truncate(before);
            break;
        }
    }
    out.into()
}

/// One hop, at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    /// The connection's number, which no other has while the process lives; 0: none.
    pub connection: u64,
    /// What happened.
    #[serde(flatten)]
    pub hop: Hop,
}

/// What happened. Times are nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "hop", rename_all = "snake_case")]
pub enum Hop {
    /// A connection is followed from now on.
    Connection {
        /// Where the client is.
        remote: SocketAddr,
        /// The first connection ID that the server gave it, in hexadecimal.
        id: Box<str>,
    },
    /// A datagram was taken from an RX ring or a socket.
    Taken {
        /// Where from.
        way: Channel,
        /// Who sent it.
        remote: SocketAddr,
        /// Octets of UDP payload.
        bytes: u32,
        /// When the XDP program or the kernel received it, if known.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        arrived: Option<u64>,
    },
    /// The connection has decrypted it.
    Opened,
    /// The head of a request is complete.
    Request {
        /// Its stream.
        stream: u64,
        /// Method and target, cut to [`MAX_REQUEST`] bytes. What a service writes here is printable ASCII, escaped where a client
        /// sent anything else.
        request: Box<str>,
        /// The datagram that the connection got last before.
        #[serde(flatten)]
        datagram: Arrival,
    },
    /// The handler has taken it: what answers is found.
    Started {
        /// Its stream.
        stream: u64,
    },
    /// The head of the response is ready.
    Answered {
        /// Its stream.
        stream: u64,
        /// Status code.
        status: u16,
        /// Who answered: `here` (files, errors), `cache` and what that did, or the address of another server.
        source: Box<str>,
    },
    /// QUIC has taken the first bytes of the response's body.
    Body {
        /// Its stream.
        stream: u64,
    },
    /// QUIC has taken the end of the response, or it has ended early.
    Written {
        /// Its stream.
        stream: u64,
        /// Octets of the body that QUIC has taken.
        bytes: u64,
        /// It is complete.
        complete: bool,
    },
    /// The client has acknowledged all of the stream, its end included.
    Acknowledged {
        /// Its stream.
        stream: u64,
    },
    /// TCP: the first octets of the connection since heads of responses were ready were encrypted and given to the kernel.
    Sent {
        /// When that began.
        began: u64,
    },
    /// TCP: all of a response has been taken from it. When the client has it is not known.
    Ended {
        /// Its stream.
        stream: u64,
    },
    /// The connection is over, or its client is now where it is not followed. Its number does not come again.
    Closed,
    /// Packets of the connection were built where they leave from.
    Burst {
        /// Its number on the worker, ascending.
        mark: u64,
        /// When that began.
        began: u64,
        /// Which way they leave.
        way: Channel,
        /// How many.
        packets: u32,
        /// Octets of UDP payload.
        bytes: u32,
    },
    /// The worker has given the kernel all that was built: TX rings kicked, messages sent.
    Flushed {
        /// The last burst among that.
        mark: u64,
        /// When that began.
        began: u64,
    },
    /// The frames of a burst came back by the completion ring.
    Completed {
        /// The burst.
        mark: u64,
    },
}

/// What is known of a datagram on its way to a connection. 0: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// When the XDP program or the kernel received it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub arrived: Option<u64>,
    /// When the worker took it.
    pub taken: u64,
    /// When the connection had decrypted it.
    pub opened: u64,
    /// Which way it came.
    pub way: Option<Channel>,
}
