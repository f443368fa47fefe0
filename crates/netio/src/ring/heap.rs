//! Rings in ordinary memory, for tests: both sides hold them. Under `--cfg loom` words and slots are loom's, so that a
//! model test sees every ordering and every race.

#![allow(unsafe_code)] // The slots of a ring are shared by the index protocol, here as in the kernel.

use std::sync::Arc;

#[cfg(loom)]
use loom::{cell::UnsafeCell, sync::atomic::AtomicU32};
#[cfg(not(loom))]
use std::{cell::UnsafeCell, sync::atomic::AtomicU32};

#[cfg(not(loom))]
use super::RingKind;
use super::RingMemory;

/// A ring on the heap.
#[derive(Debug)]
pub(crate) struct HeapRing<T> {
    producer: AtomicU32,
    consumer: AtomicU32,
    flags: AtomicU32,
    slots: Box<[UnsafeCell<T>]>,
}

// SAFETY: slots are touched only through `RingMemory`, whose contract gives each to one side at a time.
unsafe impl<T: Send> Sync for HeapRing<T> {}

impl<T: Copy + Default> HeapRing<T> {
    /// An empty ring whose indices start at `start`, to let tests cross the wrap.
    pub(crate) fn starting_at(capacity: u32, start: u32) -> Arc<Self> {
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

/// Rings on the heap.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Heap;

#[cfg(not(loom))]
impl RingKind for Heap {
    type Ring<T: Copy> = Arc<HeapRing<T>>;
}
