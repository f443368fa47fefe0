//! What to capture, and where.

use crate::filter::Filter;

/// What a [`Capture`](super::Capture) takes.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// Indices of interfaces in the caller's network namespace, each once, at most [`CaptureOptions::INTERFACES`].
    pub interfaces: Vec<u32>,
    /// Octets captured of each packet at most; at most [`CaptureOptions::SNAPLEN`].
    pub snaplen: u32,
    /// Which packets; `None` is all.
    pub filter: Option<Filter>,
    /// Where.
    pub points: Points,
    /// Octets of the buffer that each CPU has, rounded up to a power of two of pages.
    pub buffer: usize,
}

impl CaptureOptions {
    /// The most interfaces at once.
    pub const INTERFACES: usize = 64;
    /// The most octets of a packet: a record of the kernel's has a length of 16 bits, headers included.
    pub const SNAPLEN: u32 = 0xfc00;
}

/// The hooks that packets are captured at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Points {
    /// The XDP program of the interface.
    pub xdp: XdpPoints,
    /// What leaves through AF_XDP sockets.
    pub xsk: bool,
    /// What the kernel's stack receives and sends. Received packets are shown once: where an XDP program is captured
    /// at, they are not shown here.
    pub kernel: bool,
    /// What the kernel drops, with its reason: another record of the same packet.
    pub drops: bool,
}

impl Default for Points {
    fn default() -> Self {
        Self { xdp: XdpPoints::Arrival, xsk: true, kernel: true, drops: true }
    }
}

/// How packets are shown that an XDP program sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpPoints {
    /// Not at all; the kernel's path shows those that the program passes.
    None,
    /// Once, as it came, with the program's verdict.
    #[default]
    Arrival,
    /// As it came, without a verdict.
    Entry,
    /// As it left, with the verdict.
    Exit,
    /// Twice, as it came and as it left, under one [`id`](crate::Packet::id).
    Both,
}
