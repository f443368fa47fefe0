//! The system's allocator with a count of what each thread asks of it, for tests that say that a turn asks for nothing.
//! Tests of other crates take this file by its path.
#![allow(unsafe_code)] // A global allocator is an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static OCTETS: Cell<u64> = const { Cell::new(0) };
}

/// Times that this thread has asked for memory, or for more or less in its place.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Octets that this thread has asked for, whether or not it has given them back.
#[allow(dead_code)] // Not every test asks.
pub(crate) fn allocated_octets() -> u64 {
    OCTETS.get()
}

fn count(size: usize) {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    OCTETS.set(OCTETS.get() + size as u64);
}

// SAFETY: everything is passed on to the system's allocator; counting touches a constant-initialised
// thread-local, which does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
