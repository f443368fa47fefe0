//! The packet I/O trait and the types that cross it.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Instant;

pub use crate::stats::IoStats;
pub use crate::sys::IoError;
use crate::trace::{Channel, Clock, Tracer};
use crate::wait::Wait;

/// The two ECN bits of the IP header (RFC 3168, section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable transport.
    #[default]
    NotEct = 0b00,
    /// ECN-capable transport, codepoint 1 (L4S, RFC 9331).
    Ect1 = 0b01,
    /// ECN-capable transport, codepoint 0.
    Ect0 = 0b10,
    /// Congestion experienced.
    Ce = 0b11,
}

impl Ecn {
    /// The codepoint in the two low bits of a TOS or traffic-class byte.
    pub fn from_tos(tos: u8) -> Self {
        match tos & 0b11 {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// The way a datagram took into the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    /// An AF_XDP socket, by its index within the backend.
    Xsk(u16),
    /// A kernel UDP socket, by its index within the backend.
    Kernel(u16),
    /// The simulated network.
    Simulated,
}

impl From<Via> for Channel {
    fn from(via: Via) -> Self {
        match via {
            Via::Xsk(index) => Self::Xsk(index),
            Via::Kernel(_) => Self::Kernel,
            Via::Simulated => Self::Simulated,
        }
    }
}

/// Who stamped a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeSource {
    /// The device, by its own clock.
    Device,
    /// The XDP program, by the kernel's TAI clock.
    Program,
    /// The kernel's stack as it took the packet from the driver, by CLOCK_REALTIME (`SO_TIMESTAMPING`). Of datagrams
    /// that GRO put together, all have the stamp of the first.
    Kernel,
}

/// When a packet was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timestamp {
    /// Nanoseconds of the source's clock.
    pub nanoseconds: u64,
    /// Whose clock.
    pub source: TimeSource,
}

impl Timestamp {
    /// In nanoseconds of CLOCK_MONOTONIC, of a packet that the worker had at `taken`. `None` of a device's clock, which is
    /// related to no other, and where the clock was set meanwhile.
    pub fn monotonic(self, clock: &Clock, taken: u64) -> Option<u64> {
        match self.source {
            TimeSource::Device => None,
            TimeSource::Program => clock.of_tai(self.nanoseconds, taken),
            TimeSource::Kernel => clock.of_realtime(self.nanoseconds, taken),
        }
    }
}

/// A VLAN tag that the device took out of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanHint {
    /// Its ethertype: 0x8100 or 0x88a8.
    pub protocol: u16,
    /// Priority, drop eligibility and identifier (IEEE 802.1Q, TCI).
    pub tag: u16,
}

impl VlanHint {
    /// The identifier.
    pub fn id(self) -> u16 {
        self.tag & 0x0fff
    }
}

/// What the device or the XDP program knows of a received packet beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// When it was received.
    pub timestamp: Option<Timestamp>,
    /// The hash by which the device chose the queue.
    pub hash: Option<u32>,
    /// The tag that the device stripped.
    pub vlan: Option<VlanHint>,
}

/// One received UDP datagram, borrowed from the buffer it arrived in.
///
/// The payload is mutable so that a QUIC packet can be opened in place. The borrow ends with the
/// receive callback: whoever needs the bytes longer copies them.
#[derive(Debug)]
pub struct Datagram<'a> {
    /// UDP payload, one datagram (a GRO super-packet is handed over segment by segment).
    pub payload: &'a mut [u8],
    /// The address and port that the peer sent from.
    pub remote: SocketAddr,
    /// The address and port that the peer asked, never a wildcard.
    pub local: SocketAddr,
    /// ECN bits as received.
    pub ecn: Ecn,
    /// How it came in.
    pub via: Via,
    /// What is known of it besides; nothing unless the backend was opened for that.
    pub hints: Hints,
}

/// Where a burst of datagrams goes, and how it is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address and port of what is sent; the address that the peer asked.
    pub local: SocketAddr,
    /// Destination address and port.
    pub remote: SocketAddr,
    /// ECN bits to send with.
    pub ecn: Ecn,
    /// Differentiated-services codepoint to send with, 0 to 63.
    pub dscp: u8,
}

impl Flow {
    /// A flow with neither ECN nor DSCP marks.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        Self { local, remote, ecn: Ecn::NotEct, dscp: 0 }
    }
}

/// What `transmit` accomplished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Datagrams accepted for transmission.
    pub packets: usize,
    /// Payload bytes accepted for transmission.
    pub bytes: usize,
    /// The backend ran out of buffers before `fill` ran out of packets: call again after `flush`
    /// or when the backend becomes writable.
    pub blocked: bool,
}

/// Moves UDP datagrams. One instance belongs to one worker thread.
///
/// Contract, shown by the conformance suite on every implementation:
/// * `receive` hands over each datagram exactly once and never blocks.
/// * `transmit` calls `fill` with successive writable slices of exactly `segment` bytes, each the
///   place that the datagram leaves from. `fill` returns the length it wrote; 0 ends the burst. A
///   datagram shorter than `segment` does not end the burst.
/// * Nothing is promised to be on the wire before `flush`; after `flush` everything accepted is with
///   the kernel, or counted as dropped with its reason.
/// * Neither call allocates per packet in steady state.
pub trait PacketIo {
    /// Receives up to one batch (at most [`PacketIo::batch`] datagrams of a socket) without blocking,
    /// handing each datagram to `sink`. Returns how many were handed over.
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError>;

    /// Builds datagrams of `flow` inside the buffers they leave in.
    ///
    /// # Errors
    /// [`IoError::Socket`] of kind `InvalidInput`, before `fill` is called, when `segment` is 0 or larger than
    /// any UDP payload (65,507 bytes); what stops a socket.
    fn transmit(
        &mut self,
        flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError>;

    /// Builds one datagram, a copy of `payload`. An empty one cannot be built; it and one that finds no free buffer
    /// ([`Sent::blocked`]) are not sent.
    ///
    /// # Errors
    /// As [`PacketIo::transmit`].
    fn send(&mut self, flow: &Flow, payload: &[u8]) -> Result<Sent, IoError> {
        if payload.is_empty() {
            return Ok(Sent::default());
        }
        let mut once = Some(payload);
        self.transmit(flow, payload.len(), &mut |slot| {
            let Some(payload) = once.take() else { return 0 };
            slot[..payload.len()].copy_from_slice(payload);
            payload.len()
        })
    }

    /// Gives everything built so far to the kernel (or the simulated network), and buffers to receive into where it waits for
    /// them: each turn ends with it, though nothing was sent.
    fn flush(&mut self, now: Instant) -> Result<(), IoError>;

    /// Datagrams that were accepted and wait for room in the buffer of a socket, for as long as the backend's patience
    /// lasts. They go with a later flush; whoever must know when a datagram has left waits until there are none.
    fn waiting(&self) -> usize {
        0
    }

    /// The largest UDP payload that one datagram of `flow` may carry on the first hop: MTU less the IP
    /// and UDP headers, bounded by the frame size.
    fn max_payload(&mut self, flow: &Flow) -> usize;

    /// Calls `visit` with each file descriptor that becomes readable when `receive` would return
    /// packets, or when the backend wants a turn (completions, link changes).
    fn descriptors(&self, visit: &mut dyn FnMut(BorrowedFd<'_>));

    /// The kernel's UDP socket that is bound to that address, where there is one: multicast groups are joined on it,
    /// whichever way their datagrams come in.
    fn kernel_socket(&self, _address: IpAddr) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Changes whenever the set that [`PacketIo::descriptors`] visits has changed (a socket was rebuilt),
    /// so that the worker watches the new ones. Read after every turn: keep it a field.
    fn descriptors_generation(&self) -> u64 {
        0
    }

    /// Prepares the sockets for the way that the worker waits; see [`crate::wait`]. Sockets opened anew later are
    /// prepared alike.
    ///
    /// # Errors
    /// What the strategy takes is not permitted, or the kernel has it not.
    fn set_wait(&mut self, _wait: Wait) -> Result<(), IoError> {
        Ok(())
    }

    /// Where to record what becomes of bursts that somebody follows. While a recording is under way, datagrams that the
    /// kernel's sockets receive have its stamp.
    fn set_tracer(&mut self, _tracer: Tracer) {}

    /// Told before the worker sleeps. Returns true if work has arrived meanwhile and the worker must
    /// not sleep.
    fn prepare_sleep(&mut self) -> bool {
        false
    }

    /// The most datagrams that one `receive` hands over for one socket.
    fn batch(&self) -> usize;

    /// Asked after a `receive` that handed over `received` datagrams: whether a socket gave as much as it gives
    /// at once, so that more may wait. Backends whose sockets differ in that override it.
    fn may_have_more(&self, received: usize) -> bool {
        received >= self.batch()
    }

    /// Counters since start.
    fn stats(&self) -> IoStats;
}
