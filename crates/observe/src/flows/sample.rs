//! The counts between two readings.

use expressway_xbpf::FlowCounts;
use serde::{Deserialize, Serialize};

use super::conversation::Conversation;
use crate::packet::Direction;
use crate::sockets::Socket;

/// Packets and their octets on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// How many.
    pub packets: u64,
    /// How long all together, from the Ethernet header on, without FCS.
    pub bytes: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

impl Counts {
    pub(super) fn without(self, other: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(other.packets),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// Packets of one direction by what becomes of them; each is in one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// To or from an AF_XDP socket.
    pub af_xdp: Counts,
    /// To or from the kernel's stack.
    pub kernel: Counts,
    /// Sent back or forwarded by an XDP program.
    pub xdp: Counts,
    /// Dropped by an XDP program, or because its redirect failed.
    pub dropped: Counts,
}

impl Paths {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> Counts {
        let mut all = self.af_xdp;
        all += self.kernel;
        all += self.xdp;
        all += self.dropped;
        all
    }

    pub(super) fn without(&self, other: &Self) -> Self {
        Self {
            af_xdp: self.af_xdp.without(other.af_xdp),
            kernel: self.kernel.without(other.kernel),
            xdp: self.xdp.without(other.xdp),
            dropped: self.dropped.without(other.dropped),
        }
    }
}

impl std::ops::AddAssign for Paths {
    fn add_assign(&mut self, other: Self) {
        self.af_xdp += other.af_xdp;
        self.kernel += other.kernel;
        self.xdp += other.xdp;
        self.dropped += other.dropped;
    }
}

impl From<&FlowCounts> for Paths {
    fn from(counts: &FlowCounts) -> Self {
        let of = |path: usize| Counts { packets: counts.packets[path], bytes: counts.bytes[path] };
        Self { af_xdp: of(0), kernel: of(1), xdp: of(2), dropped: of(3) }
    }
}

/// What one conversation sent and received since the sample before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Whose packets.
    #[serde(flatten)]
    pub conversation: Conversation,
    /// Into the host.
    pub received: Paths,
    /// Out of it.
    pub sent: Paths,
    /// Of both, packets that the kernel's stack dropped.
    pub dropped: u64,
    /// The destination connection ID of a packet received last, in hexadecimal; empty where none was seen.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cid: String,
    /// A long header of QUIC has been seen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quic: bool,
}

/// All packets since the start, whether their flow is known or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Into the host.
    pub received: Paths,
    /// Out of it.
    pub sent: Paths,
    /// Packets whose flow found no place in the kernel's table.
    pub not_held: u64,
    /// Flows that gave way to others there.
    pub evictions: u64,
}

/// What passed a queue since the sample before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The device's name: the interface's, or of one below it.
    pub device: String,
    /// Which way.
    pub direction: Direction,
    /// Its number; none: packets whose queue is not known, as of those that an XDP program sends.
    pub queue: Option<u32>,
    /// By what becomes of its packets.
    pub paths: Paths,
}

/// Drops for one reason since the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    /// `kernel`, `xsk`, or the layer of a [`DropReason`](crate::drops::DropReason).
    pub by: String,
    /// Why: the reason's name, a reason of the kernel or a counter of XDP_STATISTICS with its queue.
    pub reason: String,
    /// How many packets.
    pub packets: u64,
    /// How long all together; 0 where that is not known.
    pub bytes: u64,
}

/// What a CPU did since the sample before, in shares of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// In user space.
    pub user: f64,
    /// In the kernel, on behalf of tasks.
    pub system: f64,
    /// In interrupts and softirqs, where packets are received.
    pub interrupts: f64,
}

/// The XDP program on the interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Kernel-wide id.
    pub id: u32,
    /// Its function's name.
    pub name: String,
    /// `native`, `generic` or `offload`.
    pub mode: String,
    /// Packets are counted where it returns; otherwise what it takes off the stack's way is not seen.
    pub traced: bool,
}

/// What was counted between two readings, and what there was at the second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When, in nanoseconds since the Unix epoch.
    pub time: u64,
    /// Nanoseconds since the sample before.
    pub elapsed: u64,
    /// The interface's name.
    pub interface: String,
    /// The interface is there.
    pub present: bool,
    /// The XDP program on it.
    pub program: Option<Program>,
    /// What is not counted, and why.
    pub notes: Vec<String>,
    /// All packets since the start.
    pub totals: Totals,
    /// Conversations that had packets.
    pub flows: Vec<Flow>,
    /// The queues of the interface's devices.
    #[serde(default)]
    pub queues: Vec<Queue>,
    /// Drops since the start.
    pub drops: Vec<Drop>,
    /// The AF_XDP sockets of the host.
    pub sockets: Vec<Socket>,
    /// By number.
    pub cpus: Vec<Cpu>,
}
