//! A packet as one of the hooks saw it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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
    /// What the XDP program decided; `None` before its decision, and where there is none. At [`Point::XdpTransmit`] a redirect.
    pub verdict: Option<Verdict>,
    /// What the descriptor of an AF_XDP socket asked the device for.
    pub metadata: Option<TxMetadata>,
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
    /// Leaving because an XDP program, of this or another interface, redirected it here.
    XdpTransmit,
}

/// Which way a packet goes, as seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
            Self::XskTransmit { .. } | Self::KernelTransmit | Self::XdpTransmit => Direction::Out,
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

/// What TX metadata asks of a device (Documentation/networking/xsk-tx-metadata.rst in Linux).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TxMetadata {
    /// A checksum: where what it covers begins (`csum_start`), and how far behind that it is put (`csum_offset`).
    pub checksum: Option<(u16, u16)>,
    /// The time of sending.
    pub timestamp: bool,
    /// To be sent at that time of the device's clock, in nanoseconds.
    pub launch_time: Option<u64>,
}

impl fmt::Display for TxMetadata {
    /// `checksum=34+6 timestamp launch=1700000000`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(self.checksum.map(|(start, offset)| format!("checksum={start}+{offset}")));
        words.extend(self.timestamp.then(|| "timestamp".to_owned()));
        words.extend(self.launch_time.map(|time| format!("launch={time}")));
        out.write_str(&words.join(" "))
    }
}

impl FromStr for TxMetadata {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut found = Self::default();
        for word in text.split(' ') {
            match word.split_once('=') {
                None if word == "timestamp" => found.timestamp = true,
                Some(("checksum", place)) => {
                    let (start, offset) = place.split_once('+').ok_or(())?;
                    found.checksum = Some((start.parse().map_err(drop)?, offset.parse().map_err(drop)?));
                }
                Some(("launch", time)) => found.launch_time = Some(time.parse().map_err(drop)?),
                _ => return Err(()),
            }
        }
        Ok(found)
    }
}

/// A process that owns a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process<'a> {
    /// Its identifier in the reader's PID namespace.
    pub id: u32,
    /// Its name (`comm`).
    pub name: &'a str,
}
