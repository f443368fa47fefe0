//! A packet as one of the hooks saw it.

/// A captured packet. Its octets are borrowed from the buffer that it came in.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// When it was seen, in nanoseconds since the Unix epoch.
    pub time: u64,
    /// The interface's index.
    pub interface: u32,
    /// The receive or transmit queue.
    pub queue: Option<u32>,
    /// Where it was seen.
    pub point: Point,
    /// The same for the records of one packet at an XDP program's entry and exit, and for no other.
    pub id: Option<u64>,
    /// What the XDP program decided; `None` before its decision, and where there is none.
    pub verdict: Option<Verdict>,
    /// Why it was dropped, in the kernel's words, such as `no_socket`.
    pub drop: Option<&'a str>,
    /// Whose socket it went through.
    pub process: Option<Process<'a>>,
    /// Its length on the wire, in octets.
    pub length: u32,
    /// What was captured of it, from the Ethernet header on.
    pub data: &'a [u8],
}

/// Where a packet was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Point {
    /// Before the XDP program: the packet as it came.
    XdpEntry,
    /// After the XDP program: the packet as it left.
    XdpExit,
    /// Leaving through an AF_XDP socket.
    XskTransmit {
        /// Taken from the socket's UMEM by the driver, with no copy.
        zero_copy: bool,
    },
    /// Received by the kernel's stack.
    KernelReceive,
    /// Sent by the kernel's stack.
    KernelTransmit,
}

/// Which way a packet goes, as seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Into the host.
    In,
    /// Out of it.
    Out,
}

impl Point {
    /// Which way the packets seen here go.
    #[must_use]
    pub const fn direction(self) -> Direction {
        match self {
            Self::XdpEntry | Self::XdpExit | Self::KernelReceive => Direction::In,
            Self::XskTransmit { .. } | Self::KernelTransmit => Direction::Out,
        }
    }
}

/// What an XDP program decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// `XDP_ABORTED`: the program failed, and the packet was dropped.
    Aborted,
    /// `XDP_DROP`.
    Drop,
    /// `XDP_PASS`: on to the kernel's stack.
    Pass,
    /// `XDP_TX`: back out of the interface it came from.
    Tx,
    /// `XDP_REDIRECT`: to an AF_XDP socket, another interface or another processor.
    Redirect {
        /// The error (positive `errno`) with which the redirect failed, if it did.
        error: Option<i32>,
    },
    /// A value that the kernel does not know; it drops such packets.
    Unknown(u32),
}

/// A process that owns a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process<'a> {
    /// Its identifier in the reader's PID namespace.
    pub id: u32,
    /// Its name (`comm`).
    pub name: &'a str,
}
