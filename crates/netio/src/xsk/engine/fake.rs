//! The kernel's side of an XSK's rings, for tests. [`FakeKernel`] moves frames the way the kernel does, or, told to
//! misbehave, in ways that the kernel must not.

use std::sync::Arc;

use super::xsk::{Kernel, Rings, Wakeups};
use super::{Engine, RxFrame, Umem, Xsk, XskId};
use crate::io::IoStats;
pub(crate) use crate::ring::heap::{Heap, HeapRing};
use crate::ring::{Consumer, Producer};
use crate::xsk::abi::{Descriptor, XDP_PKT_CONTD};

/// A socket without system calls.
#[derive(Debug)]
pub(crate) struct NoSocket;

impl Wakeups for NoSocket {
    fn kick(&self) -> Result<(), i32> {
        Ok(())
    }

    fn wake(&self) -> Result<(), i32> {
        Ok(())
    }

    fn count(&self, _stats: &mut IoStats) {}
}

impl Kernel for Heap {
    type Socket = NoSocket;
}

/// The kernel's ends of the four rings, and the frames that it holds.
pub(crate) struct FakeKernel {
    pub(crate) fill: Consumer<Arc<HeapRing<u64>>>,
    pub(crate) rx: Producer<Arc<HeapRing<Descriptor>>>,
    pub(crate) tx: Consumer<Arc<HeapRing<Descriptor>>>,
    pub(crate) completion: Producer<Arc<HeapRing<u64>>>,
    /// Addresses taken from TX and not completed yet.
    pub(crate) sending: Vec<Descriptor>,
    /// Headroom in front of a received packet.
    pub(crate) headroom: u64,
}

/// Four rings of `ring` entries, and the kernel at their other side.
pub(crate) fn rings_and_kernel(ring: u32) -> (Rings<Heap>, FakeKernel) {
    // Indices near the wrap, so that every test crosses it.
    let start = u32::MAX - 2;
    let (fill, completion) = (HeapRing::starting_at(ring, start), HeapRing::starting_at(ring, start));
    let (rx, tx) = (HeapRing::starting_at(ring, start), HeapRing::starting_at(ring, start));
    let kernel = FakeKernel {
        fill: Consumer::new(Arc::clone(&fill)),
        rx: Producer::new(Arc::clone(&rx)),
        tx: Consumer::new(Arc::clone(&tx)),
        completion: Producer::new(Arc::clone(&completion)),
        sending: Vec::new(),
        headroom: 256,
    };
    (Rings { fill, rx, tx, completion }, kernel)
}

/// An XSK of `ring` entries each way on a UMEM with frames of 2048 bytes, and the kernel at its other side.
pub(crate) fn engine_and_kernel(ring: u32, assembly: usize) -> (Engine<Heap>, FakeKernel) {
    let (rings, kernel) = rings_and_kernel(ring);
    let mut umem = Umem::new(2048, 2 * ring, false).expect("test memory");
    let xsk = Xsk::new(XskId(0), &mut umem, NoSocket, rings, assembly);
    (Engine::new(umem, vec![xsk]), kernel)
}

impl Engine<Heap> {
    /// Hands up to `limit` received packets to `handle`. How many there were.
    pub(crate) fn receive_each<F: FnMut(RxFrame<'_, Heap>)>(
        &mut self,
        from: XskId,
        limit: usize,
        mut handle: F,
    ) -> usize {
        let mut batch = self.receive(from, limit);
        while let Some(packet) = batch.next() {
            handle(packet);
        }
        batch.packets()
    }
}

impl FakeKernel {
    /// Receives a packet into as many frames as it needs. False if the kernel had to drop it.
    pub(crate) fn receive(&mut self, engine: &mut Engine<Heap>, packet: &[u8]) -> bool {
        self.receive_into(&mut engine.umem, packet)
    }

    /// The same, into any UMEM.
    pub(crate) fn receive_into(&mut self, umem: &mut Umem, packet: &[u8]) -> bool {
        let room = 2048 - self.headroom as usize;
        let parts = packet.chunks(room).count().max(1) as u32;
        if self.fill.available(u32::MAX) < parts || self.rx.free(parts) < parts {
            return false;
        }
        for (place, part) in packet.chunks(room).enumerate() {
            let Some(frame) = self.fill.pop() else { break };
            let addr = frame + self.headroom;
            umem.kernel_write(addr, part);
            let options = if place as u32 + 1 < parts { XDP_PKT_CONTD } else { 0 };
            self.push_rx(Descriptor { addr, len: part.len() as u32, options });
        }
        self.fill.release();
        true
    }

    /// Puts any descriptor into the RX ring, good or bad, if there is room.
    pub(crate) fn push_rx(&mut self, descriptor: Descriptor) -> bool {
        let pushed = self.rx.push(descriptor).is_ok();
        self.rx.publish();
        pushed
    }

    /// Takes up to `count` packets out of the TX ring.
    pub(crate) fn take(&mut self, count: usize) -> usize {
        let mut taken = 0;
        while taken < count {
            let Some(descriptor) = self.tx.pop() else { break };
            self.sending.push(descriptor);
            taken += 1;
        }
        self.tx.release();
        taken
    }

    /// Completes up to `count` packets that were taken, oldest first.
    pub(crate) fn complete(&mut self, count: usize) -> usize {
        let count = count.min(self.sending.len());
        for descriptor in self.sending.drain(..count) {
            // Fails only when a test has spoiled the ring: an honest kernel always finds room.
            let _ = self.completion.push(descriptor.addr);
        }
        self.completion.publish();
        count
    }
}
