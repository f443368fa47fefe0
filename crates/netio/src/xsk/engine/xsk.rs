//! An XSK: one AF_XDP socket with its four rings.
//!
//! ```text
//!            ┌─────────────── free frames of the UMEM, shared by its sockets ◀───────────────┐
//!            ▼                                                                               │
//!   program ─┤ fill ──▶ kernel ──▶ RX ──▶ program: parse, open in place ──▶ back to fill, at once,
//!            │                                    │                         or free          │
//!            │                                    ▼ forward                                  │
//!            └ seal in place, headers ──────────▶ TX ──▶ kernel ──▶ completion ──────────────┘
//! ```
//!
//! An XSK has a share of the frames: as many receive as its fill ring has entries, so handing one back always finds
//! room; as many transmit as its completion ring has entries, so the kernel can always complete.

use std::os::fd::OwnedFd;

use super::assembly::Assembly;
use super::kick::{self, Outcome};
use super::{ObtainedMode, Umem, XskId};
use crate::io::IoStats;
use crate::ring::{Consumer, Producer, RingKind};
use crate::umem::Owner;
use crate::xsk::abi::Descriptor;

/// Where the rings of an XSK lie, and who answers its system calls: the kernel ([`crate::ring::Mapped`]), or a fake one
/// in tests.
pub(crate) trait Kernel: RingKind {
    /// The socket.
    type Socket: Wakeups;
}

/// The system calls of a socket that move packets. Errors are plain numbers: several of them are ordinary answers.
pub(crate) trait Wakeups {
    /// Asks the kernel to send what the TX ring holds.
    fn kick(&self) -> Result<(), i32>;
    /// Tells the kernel that the fill ring has entries again.
    fn wake(&self) -> Result<(), i32>;
    /// Adds what the kernel dropped at this socket.
    fn count(&self, stats: &mut IoStats);
}

/// Memory of the four rings of one XSK.
pub(crate) struct Rings<R: RingKind> {
    pub(crate) fill: R::Ring<u64>,
    pub(crate) rx: R::Ring<Descriptor>,
    pub(crate) tx: R::Ring<Descriptor>,
    pub(crate) completion: R::Ring<u64>,
}

/// What an XSK has counted of its rings. Every field only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingCounters {
    /// Descriptors or completions that named no frame the kernel had, or overran one.
    pub(crate) bad_descriptor: u64,
    /// Packets larger than the assembly buffer.
    pub(crate) truncated: u64,
    /// Packets put together from several frames.
    pub(crate) gathered: u64,
    /// Frames that came back through the completion ring.
    pub(crate) completed: u64,
}

/// An AF_XDP socket with its rings. `rx.rs` has how it receives, `tx.rs` how it sends.
pub(crate) struct Xsk<K: Kernel> {
    pub(super) id: XskId,
    pub(super) socket: K::Socket,
    pub(super) mode: ObtainedMode,
    pub(super) fill: Producer<K::Ring<u64>>,
    pub(super) rx: Consumer<K::Ring<Descriptor>>,
    pub(super) tx: Producer<K::Ring<Descriptor>>,
    pub(super) completion: Consumer<K::Ring<u64>>,
    /// Frames with the kernel to receive into.
    pub(super) receiving: u32,
    /// Frames with the kernel to send from.
    pub(super) sending: u32,
    pub(super) assembly: Assembly,
    /// Bytes in front of a received packet that belong to it.
    pub(super) prefix: usize,
    /// How the last flush ended.
    pub(super) outcome: Outcome,
    pub(super) counters: RingCounters,
    /// System calls and drops of this socket, and what its user counts.
    pub(crate) stats: IoStats,
}

impl<K: Kernel> Xsk<K> {
    /// Takes rings that nobody has touched yet and fills the fill ring, so that it is full before the socket is bound.
    /// The frames that this may have are reserved. `assembly` is the size of the buffer for packets in several frames,
    /// 0 if there are none.
    pub(crate) fn new(
        id: XskId,
        umem: &mut Umem,
        socket: K::Socket,
        rings: Rings<K>,
        assembly: usize,
    ) -> Self {
        let mut xsk = Self::over(id, umem, socket, rings, assembly);
        xsk.refill(umem);
        xsk
    }

    /// As [`Xsk::new`] where another process has filled the fill ring, with the frames that are free first.
    pub(crate) fn adopt(
        id: XskId,
        umem: &mut Umem,
        socket: K::Socket,
        rings: Rings<K>,
        assembly: usize,
    ) -> Self {
        let mut xsk = Self::over(id, umem, socket, rings, assembly);
        while xsk.receiving < xsk.fill.capacity() {
            let Some(frame) = umem.alloc() else { break };
            umem.give(frame, Owner::Receive(id));
            xsk.receiving += 1;
        }
        xsk
    }

    fn over(id: XskId, umem: &mut Umem, socket: K::Socket, rings: Rings<K>, assembly: usize) -> Self {
        let xsk = Self {
            id,
            socket,
            mode: ObtainedMode::Copy,
            fill: Producer::new(rings.fill),
            rx: Consumer::new(rings.rx),
            tx: Producer::new(rings.tx),
            completion: Consumer::new(rings.completion),
            receiving: 0,
            sending: 0,
            assembly: Assembly::new(assembly),
            prefix: 0,
            outcome: Outcome::Sent,
            counters: RingCounters::default(),
            stats: IoStats::default(),
        };
        umem.reserve(xsk.share());
        xsk
    }

    /// Frames that this XSK may have, both ways.
    fn share(&self) -> usize {
        (self.fill.capacity() + self.tx.capacity()) as usize
    }

    /// Closes an XSK that was never bound: what it had is free. Of one that was bound for a moment, frames and share are
    /// lost to the UMEM: a driver in zero-copy mode may write into them until the kernel has released the queue, which
    /// it tells nobody.
    pub(crate) fn reclaim(self, umem: &mut Umem) {
        umem.unreserve(self.share());
        for owner in [Owner::Receive(self.id), Owner::Transmit(self.id)] {
            for index in 0..umem.count() {
                if let Ok(frame) = umem.take(umem.address(index), owner) {
                    umem.free(frame);
                }
            }
        }
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &K::Socket {
        &self.socket
    }

    /// Gives the descriptor away; rings and frames are left to whoever gets it.
    pub(crate) fn into_fd(self) -> OwnedFd
    where
        K::Socket: Into<OwnedFd>,
    {
        self.socket.into()
    }

    /// The mode that bind obtained.
    pub(crate) fn mode(&self) -> ObtainedMode {
        self.mode
    }

    /// How the last [`Xsk::flush`] ended.
    pub(crate) fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// True if the kernel moved an index where it cannot be: the XSK can no longer be used.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.fill.is_corrupt() || self.rx.is_corrupt() || self.tx.is_corrupt() || self.completion.is_corrupt()
    }

    /// Counts a packet that was put into the TX ring.
    #[inline]
    pub(crate) fn count_sent(&mut self, length: usize) {
        self.stats.tx_xsk_packets += 1;
        self.stats.tx_xsk_bytes += length as u64;
    }

    /// Counters of the rings since they were made.
    pub(crate) fn counters(&self) -> RingCounters {
        self.counters
    }

    /// Everything that was counted for this socket, here and by the kernel.
    pub(crate) fn stats(&self) -> IoStats {
        let mut stats = self.stats;
        stats.dropped_bad_descriptor += self.counters.bad_descriptor;
        stats.dropped_truncated += self.counters.truncated;
        self.socket.count(&mut stats);
        stats
    }

    /// Gives the kernel what was submitted since the last time and makes it send that, as far as the device has room.
    /// Takes completed frames back. `None`: nothing waited.
    pub(crate) fn flush(&mut self, umem: &mut Umem) -> Option<Outcome> {
        self.tx.publish();
        // With frames left, that completions are slow is no one's concern; some drivers reap them only when they send
        // again.
        if !self.is_exhausted() && (self.tx.is_drained() || self.untaken() == 0) {
            self.outcome = Outcome::Sent;
            return None;
        }
        let Self { socket, mode, tx, .. } = self;
        // The flag takes a full fence to read.
        let needs_wakeup = *mode == ObtainedMode::ZeroCopy && tx.needs_wakeup();
        let kicked = kick::transmit(*mode, needs_wakeup, || tx.unconsumed(), || socket.kick());
        self.stats.tx_syscalls += u64::from(kicked.calls);
        self.stats.dropped_send_refused += u64::from(kicked.refused);
        self.complete(umem);
        self.outcome = kicked.outcome;
        Some(kicked.outcome)
    }

    /// Tells the kernel of a filled fill ring, if it asks for that.
    #[inline]
    pub(crate) fn wake_reception(&mut self) -> Outcome {
        if !self.fill.needs_wakeup() {
            return Outcome::Sent;
        }
        self.stats.rx_syscalls += 1;
        match self.socket.wake() {
            Ok(()) => Outcome::Sent,
            // The flag stays set, and the next turn that receives, or is to sleep, tries again.
            Err(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOBUFS) => Outcome::Later,
            Err(error) => kick::permanent(error),
        }
    }

    /// Shows the kernel what was submitted, and makes no system call.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn publish(&mut self) {
        self.tx.publish();
    }

    /// Frames with the kernel, to receive into and to send from.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.receiving as usize, self.sending as usize)
    }
}
