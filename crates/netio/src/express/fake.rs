//! The kernel's side of the rings in ordinary memory, for tests.
//!
//! [`HeapRing`] is ring memory that both sides hold; under `--cfg loom` its words and slots are loom's, so
//! that a model test sees every ordering and every race. [`FakeKernel`] moves frames the way the kernel
//! does, or, told to misbehave, in ways that the kernel must not.

#![allow(unsafe_code)] // The slots of a ring are shared by the index protocol, here as in the kernel.

use std::sync::Arc;

#[cfg(loom)]
use loom::{cell::UnsafeCell, sync::atomic::AtomicU32};
#[cfg(not(loom))]
use std::{cell::UnsafeCell, sync::atomic::AtomicU32};

use super::ring::RingMemory;

/// A ring on the heap.
#[derive(Debug)]
pub(super) struct HeapRing<T> {
    producer: AtomicU32,
    consumer: AtomicU32,
    flags: AtomicU32,
    slots: Box<[UnsafeCell<T>]>,
}

// SAFETY: slots are touched only through `RingMemory`, whose contract gives each to one side at a time.
unsafe impl<T: Send> Sync for HeapRing<T> {}

impl<T: Copy + Default> HeapRing<T> {
    /// An empty ring whose indices start at `start`, to let tests cross the wrap.
    pub(super) fn starting_at(capacity: u32, start: u32) -> Arc<Self> {
        Arc::new(Self {
            producer: AtomicU32::new(start),
            consumer: AtomicU32::new(start),
            flags: AtomicU32::new(0),
            slots: (0..capacity).map(|_| UnsafeCell::new(T::default())).collect(),
        })
    }
}

impl<T: Copy> RingMemory for Arc<HeapRing<T>> {
    type Index = AtomicU32;
    type Entry = T;

    fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    fn producer(&self) -> &AtomicU32 {
        &self.producer
    }

    fn consumer(&self) -> &AtomicU32 {
        &self.consumer
    }

    fn flags(&self) -> &AtomicU32 {
        &self.flags
    }

    #[cfg(not(loom))]
    unsafe fn read(&self, slot: u32) -> T {
        // SAFETY: the caller owns the slot, as the trait demands.
        unsafe { *self.slots[slot as usize].get() }
    }

    #[cfg(not(loom))]
    unsafe fn write(&self, slot: u32, entry: T) {
        // SAFETY: the caller owns the slot, as the trait demands.
        unsafe { *self.slots[slot as usize].get() = entry }
    }

    #[cfg(loom)]
    unsafe fn read(&self, slot: u32) -> T {
        // SAFETY: the caller owns the slot, as the trait demands; loom fails the test if it does not.
        self.slots[slot as usize].with(|entry| unsafe { *entry })
    }

    #[cfg(loom)]
    unsafe fn write(&self, slot: u32, entry: T) {
        // SAFETY: the caller owns the slot, as the trait demands; loom fails the test if it does not.
        self.slots[slot as usize].with_mut(|place| unsafe { *place = entry });
    }
}

#[cfg(not(loom))]
pub(super) use kernel::*;

#[cfg(not(loom))]
mod kernel {
    use super::super::abi::{Descriptor, XDP_PKT_CONTD};
    use super::super::lane::{Memory, Rings};
    use super::super::loan::Loan;
    use super::super::queue::Queue;
    use super::super::ring::{Consumer, Producer};
    use super::super::umem::{Frames, Umem};
    use super::*;

    /// Marks queues whose rings lie on the heap.
    #[derive(Debug)]
    pub(in super::super) struct Heap;

    impl Memory for Heap {
        type Addresses = Arc<HeapRing<u64>>;
        type Descriptors = Arc<HeapRing<Descriptor>>;
        type Loans = Arc<HeapRing<Loan>>;
    }

    /// The kernel's ends of the four rings, and the frames that it holds.
    pub(in super::super) struct FakeKernel {
        pub(in super::super) fill: Consumer<Arc<HeapRing<u64>>>,
        pub(in super::super) rx: Producer<Arc<HeapRing<Descriptor>>>,
        pub(in super::super) tx: Consumer<Arc<HeapRing<Descriptor>>>,
        pub(in super::super) completion: Producer<Arc<HeapRing<u64>>>,
        /// Addresses taken from TX and not completed yet.
        pub(in super::super) sending: Vec<Descriptor>,
        /// Headroom in front of a received packet.
        pub(in super::super) headroom: u64,
    }

    /// Four rings of `ring` entries, and the kernel at their other side.
    pub(in super::super) fn rings_and_kernel(ring: u32) -> (Rings<Heap>, FakeKernel) {
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

    /// A queue of `ring` entries each way with frames of 2048 bytes, and the kernel at its other side.
    pub(in super::super) fn queue_and_kernel(ring: u32, assembly: usize) -> (Queue<Heap>, FakeKernel) {
        let (rings, kernel) = rings_and_kernel(ring);
        let frames = Frames::new(2048, 2 * ring, false).expect("test memory");
        (Queue::new(frames, rings, assembly), kernel)
    }

    impl FakeKernel {
        /// Receives a packet into as many frames as it needs. False if the kernel had to drop it.
        pub(in super::super) fn receive(&mut self, queue: &mut Queue<Heap>, packet: &[u8]) -> bool {
            self.receive_into(queue.umem_mut(), packet)
        }

        /// The same, into any UMEM.
        pub(in super::super) fn receive_into(&mut self, umem: &mut Umem, packet: &[u8]) -> bool {
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
        pub(in super::super) fn push_rx(&mut self, descriptor: Descriptor) -> bool {
            let pushed = self.rx.push(descriptor).is_ok();
            self.rx.publish();
            pushed
        }

        /// Takes up to `count` packets out of the TX ring.
        pub(in super::super) fn take(&mut self, count: usize) -> usize {
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
        pub(in super::super) fn complete(&mut self, count: usize) -> usize {
            let count = count.min(self.sending.len());
            for descriptor in self.sending.drain(..count) {
                // Fails only when a test has spoiled the ring: an honest kernel always finds room.
                let _ = self.completion.push(descriptor.addr);
            }
            self.completion.publish();
            count
        }
    }
}
