//! The single-producer, single-consumer rings that AF_XDP shares between program and kernel.
//!
//! ```text
//!   ring         direction        entry         who owns the frame while its entry is in the ring
//!   ───────────  ───────────────  ────────────  ─────────────────────────────────────────────────
//!   fill         user → kernel    address       the kernel, to receive into
//!   RX           kernel → user    descriptor    the program from the moment it pops the entry
//!   TX           user → kernel    descriptor    the kernel, to send from
//!   completion   kernel → user    address       the program from the moment it pops the entry
//!
//!                consumer            producer          indices run freely modulo 2^32;
//!                   │                   │              slot = index & (capacity - 1);
//!        ┌────┬────┬▼───┬────┬────┬────┬▼───┬────┐     producer - consumer = entries in the ring,
//!        │    │    │ ▒▒ │ ▒▒ │ ▒▒ │ ▒▒ │    │    │     0 to capacity
//!        └────┴────┴────┴────┴────┴────┴────┴────┘
//!          free      entries, readable    free
//! ```
//!
//! The producer alone writes the producer index and free slots; the consumer alone writes the consumer
//! index and reads filled slots. A side stores its index with Release after it has touched the slots, and
//! the other side loads it with Acquire before it does, so a slot is never touched by both. Each side works
//! on a cached copy of both indices and looks at the shared ones once a batch: the shared words bounce
//! between cores.
//!
//! Indices from the other side are not trusted: a distance larger than the ring marks it as corrupt, after which it
//! returns and accepts nothing.
//!
//! The code is written against [`RingMemory`], so that the same lines run over memory mapped from the
//! kernel ([`MappedRing`]), over a fake kernel in tests and under loom. The rings between a UMEM and its readers in other
//! processes ([`crate::readers`]) are of the same kind. What this module does not do: it knows no frames and makes no
//! system calls but those that map.

#![allow(unsafe_code)] // Slots are shared with the other side; exclusive access follows from the indices.

use std::sync::atomic::Ordering;

#[cfg(all(test, loom))]
use loom::sync::atomic::fence;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::fence;

#[cfg(test)]
pub(crate) mod heap;
mod mapped;

pub(crate) use mapped::MappedRing;

/// Ring flag: the kernel sleeps and wants a system call.
pub(crate) const XDP_RING_NEED_WAKEUP: u32 = 1 << 0;

/// `struct xdp_ring_offset`, in the form since Linux 5.4 (with `flags`).
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RingOffset {
    pub(crate) producer: u64,
    pub(crate) consumer: u64,
    pub(crate) desc: u64,
    pub(crate) flags: u64,
}

/// A shared 32-bit word of a ring.
pub(crate) trait AtomicIndex {
    /// Reads the word.
    fn load(&self, ordering: Ordering) -> u32;
    /// Writes the word.
    fn store(&self, value: u32, ordering: Ordering);
}

impl AtomicIndex for std::sync::atomic::AtomicU32 {
    #[inline]
    fn load(&self, ordering: Ordering) -> u32 {
        self.load(ordering)
    }

    #[inline]
    fn store(&self, value: u32, ordering: Ordering) {
        self.store(value, ordering);
    }
}

#[cfg(all(test, loom))]
impl AtomicIndex for loom::sync::atomic::AtomicU32 {
    fn load(&self, ordering: Ordering) -> u32 {
        self.load(ordering)
    }

    fn store(&self, value: u32, ordering: Ordering) {
        self.store(value, ordering);
    }
}

/// The memory of one ring: two indices, a flags word and `capacity` slots.
pub(crate) trait RingMemory {
    /// The type of the shared words.
    type Index: AtomicIndex;
    /// What a slot holds.
    type Entry: Copy;

    /// Slots of the ring, a power of two.
    fn capacity(&self) -> u32;
    /// The index that only the producer writes.
    fn producer(&self) -> &Self::Index;
    /// The index that only the consumer writes.
    fn consumer(&self) -> &Self::Index;
    /// The flags word: of the kernel's rings written by the kernel, of readers' rings by the consumer.
    fn flags(&self) -> &Self::Index;

    /// Reads a slot.
    ///
    /// # Safety
    /// `slot < capacity`, and the slot lies between the consumer and the producer index as the caller, who
    /// is the consumer, has loaded them.
    unsafe fn read(&self, slot: u32) -> Self::Entry;

    /// Writes a slot.
    ///
    /// # Safety
    /// `slot < capacity`, and the slot lies outside the range between the consumer and the producer index
    /// as the caller, who is the producer, has loaded them.
    unsafe fn write(&self, slot: u32, entry: Self::Entry);
}

/// Where a kind of rings lies: mapped from the kernel ([`Mapped`]), or on the heap in tests.
pub(crate) trait RingKind {
    /// The memory of a ring with entries of `T`.
    type Ring<T: Copy>: RingMemory<Entry = T>;
}

/// Rings mapped from an AF_XDP socket or a memfd.
#[derive(Debug)]
pub(crate) struct Mapped;

impl RingKind for Mapped {
    type Ring<T: Copy> = MappedRing<T>;
}

/// The ring was full, or corrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// The side of a ring that adds entries.
#[derive(Debug)]
pub(crate) struct Producer<M> {
    memory: M,
    /// Index of the slot written next.
    next: u32,
    /// What the consumer has been shown.
    published: u32,
    /// The consumer's index when last looked at.
    consumed: u32,
    corrupt: bool,
}

impl<M: RingMemory> Producer<M> {
    /// Takes the producer's side. There must be no other producer on this memory.
    pub(crate) fn new(memory: M) -> Self {
        debug_assert!(memory.capacity().is_power_of_two());
        let next = memory.producer().load(Ordering::Relaxed);
        let consumed = memory.consumer().load(Ordering::Acquire);
        let corrupt = next.wrapping_sub(consumed) > memory.capacity();
        Self { memory, next, published: next, consumed, corrupt }
    }

    /// Free slots, looking at the shared index only when fewer than `wanted` are known to be free.
    #[inline]
    pub(crate) fn free(&mut self, wanted: u32) -> u32 {
        let known = self.memory.capacity().wrapping_sub(self.next.wrapping_sub(self.consumed));
        if known >= wanted && !self.corrupt { known } else { self.reload() }
    }

    #[cold]
    fn reload(&mut self) -> u32 {
        // Acquire: the consumer has finished reading the slots that it gives back.
        let consumed = self.memory.consumer().load(Ordering::Acquire);
        // The consumer can neither overtake what was published nor go back behind what it gave back.
        if self.corrupt || self.published.wrapping_sub(consumed) > self.published.wrapping_sub(self.consumed)
        {
            self.corrupt = true;
            return 0;
        }
        self.consumed = consumed;
        self.memory.capacity() - self.next.wrapping_sub(consumed)
    }

    /// Adds an entry, invisible to the consumer until [`Producer::publish`].
    #[inline]
    pub(crate) fn push(&mut self, entry: M::Entry) -> Result<(), Full> {
        if self.free(1) == 0 {
            return Err(Full);
        }
        let slot = self.next & (self.memory.capacity() - 1);
        // SAFETY: masked, so below capacity; `free` has shown that the consumer is done with this slot,
        // and it is beyond the published producer index, so the consumer does not read it.
        unsafe { self.memory.write(slot, entry) };
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Shows the consumer everything pushed so far.
    #[inline]
    pub(crate) fn publish(&mut self) {
        if self.published != self.next {
            // Release: the entries are written before the index says so.
            self.memory.producer().store(self.next, Ordering::Release);
            self.published = self.next;
        }
    }

    /// Entries that were published and that the consumer has not given back yet.
    pub(crate) fn unconsumed(&mut self) -> u32 {
        self.reload();
        self.published.wrapping_sub(self.consumed)
    }

    /// True if all that was pushed is known to have been consumed, without a look at the shared index.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.next == self.consumed
    }

    /// True when the kernel sleeps and a system call must tell it of what was published.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        // The kernel sets the flag and then looks at the ring again; here the ring is published and then
        // the flag is read. Only a full fence between the two keeps both sides from missing each other.
        fence(Ordering::SeqCst);
        self.memory.flags().load(Ordering::Relaxed) & XDP_RING_NEED_WAKEUP != 0
    }

    /// Slots of the ring.
    pub(crate) fn capacity(&self) -> u32 {
        self.memory.capacity()
    }

    /// True when the consumer's index was impossible; the ring takes nothing any more.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }
}

/// The side of a ring that takes entries.
#[derive(Debug)]
pub(crate) struct Consumer<M> {
    memory: M,
    /// Index of the slot read next.
    next: u32,
    /// What the producer has been given back.
    released: u32,
    /// The producer's index when last looked at.
    produced: u32,
    corrupt: bool,
}

impl<M: RingMemory> Consumer<M> {
    /// Takes the consumer's side. There must be no other consumer on this memory.
    pub(crate) fn new(memory: M) -> Self {
        debug_assert!(memory.capacity().is_power_of_two());
        let next = memory.consumer().load(Ordering::Relaxed);
        Self { memory, next, released: next, produced: next, corrupt: false }
    }

    /// Entries ready to be taken, looking at the shared index only when fewer than `wanted` are known.
    #[inline]
    pub(crate) fn available(&mut self, wanted: u32) -> u32 {
        let known = self.produced.wrapping_sub(self.next);
        if known >= wanted && !self.corrupt { known } else { self.reload() }
    }

    fn reload(&mut self) -> u32 {
        // Acquire: the entries are written before the index says so.
        let produced = self.memory.producer().load(Ordering::Acquire);
        // The slots between `released` and the producer are full: at most the capacity.
        let corrupt = produced.wrapping_sub(self.released) > self.memory.capacity()
            || produced.wrapping_sub(self.released) < self.produced.wrapping_sub(self.released);
        if self.corrupt || corrupt {
            self.corrupt = true;
            return 0;
        }
        self.produced = produced;
        produced.wrapping_sub(self.next)
    }

    /// Takes an entry; its slot is the producer's again after [`Consumer::release`].
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<M::Entry> {
        if self.available(1) == 0 {
            return None;
        }
        let slot = self.next & (self.memory.capacity() - 1);
        // SAFETY: masked, so below capacity; `available` has shown that the producer has published this
        // slot, and it stays behind the released consumer index, so the producer does not write it.
        let entry = unsafe { self.memory.read(slot) };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the slots of all entries taken so far back to the producer.
    #[inline]
    pub(crate) fn release(&mut self) {
        if self.released != self.next {
            // Release: the slots are read before the producer may write them again.
            self.memory.consumer().store(self.next, Ordering::Release);
            self.released = self.next;
        }
    }

    /// Asks the producer for a wake-up, or withdraws that. True if entries wait, so that there is nothing to
    /// sleep for.
    pub(crate) fn want_wakeup(&mut self, wanted: bool) -> bool {
        self.memory.flags().store(if wanted { XDP_RING_NEED_WAKEUP } else { 0 }, Ordering::Relaxed);
        // The other half of `Producer::needs_wakeup`: the flag is seen by a producer whose entry is not seen
        // here.
        fence(Ordering::SeqCst);
        self.available(1) > 0
    }

    /// True when the producer's index was impossible; the ring yields nothing any more.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.corrupt
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }
}

#[cfg(test)]
mod tests;
