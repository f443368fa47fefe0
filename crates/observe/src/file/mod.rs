//! Capture files: writes pcapng with everything that is known of a packet, and reads pcapng and pcap.
//!
//! A finished file is always valid; a file being written only contains whole blocks.

mod block;
mod names;
mod reader;
mod secrets;
mod sink;
mod writer;

use crate::Packet;

pub use names::{NameError, Rotation};
pub use reader::{ReadError, Reader};
pub use secrets::KeyLog;
pub use sink::{FileError, Target};
pub use writer::{Ended, Writer, WriterOptions, section};

/// An interface, as a file describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// What else is to be said of it; may be empty.
    pub description: String,
    /// The filter in libpcap's words; empty if there is none.
    pub filter: String,
    /// Octets kept of a packet.
    pub snaplen: u32,
    /// Its hardware address.
    pub mac: Option<[u8; 6]>,
}

impl Interface {
    /// An interface of which only that is known.
    #[must_use]
    pub fn named(name: &str, snaplen: u32) -> Self {
        Self { name: name.to_owned(), snaplen, ..Self::default() }
    }
}

/// A packet of a file.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Its interface's name; empty if it has none.
    pub interface: &'a str,
    /// Whether the file says which way it went. If not, its point means nothing.
    pub directed: bool,
    /// The packet. Its interface's index is the file's number of it.
    pub packet: Packet<'a>,
}

/// What was counted of an interface since the capture began; `None` is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets seen.
    pub received: Option<u64>,
    /// Packets that the filter let pass.
    pub accepted: Option<u64>,
    /// Packets lost for want of buffers.
    pub dropped: Option<u64>,
}
