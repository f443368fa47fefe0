//! The system's allocator with a count of what the server has, apart from what the test's clients and network have: each
//! allocation bears the mark of whoever made it.
#![allow(unsafe_code)] // A global allocator is an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Bytes in use, of others and of the server.
static BYTES: [AtomicIsize; 2] = [AtomicIsize::new(0), AtomicIsize::new(0)];

thread_local! {
    // Threads that the test does not start are the server's.
    static SERVES: Cell<bool> = const { Cell::new(true) };
}

/// Bytes that the server has in use.
pub(crate) fn bytes() -> isize {
    BYTES[1].load(Ordering::Relaxed)
}

/// Whether what this thread allocates from now on is the server's.
pub(crate) fn serves(serves: bool) {
    SERVES.set(serves);
}

struct Tagged;

/// Bytes in front of an allocation, the last of which is its mark.
fn front(layout: Layout) -> usize {
    layout.align().max(16)
}

fn extended(layout: Layout, size: usize) -> Layout {
    Layout::from_size_align(front(layout) + size, layout.align().max(16)).unwrap_or(layout)
}

/// Marks an allocation of `size` bytes that begins at `base`.
///
/// # Safety
/// `base` is null or an allocation of [`extended`] size.
unsafe fn mark(base: *mut u8, layout: Layout) -> *mut u8 {
    if base.is_null() {
        return base;
    }
    let tag = u8::from(SERVES.get());
    BYTES[usize::from(tag)].fetch_add(layout.size() as isize, Ordering::Relaxed);
    // SAFETY: both are within the allocation, by the caller's promise.
    unsafe {
        let pointer = base.add(front(layout));
        pointer.sub(1).write(tag);
        pointer
    }
}

// SAFETY: everything is passed on to the system's allocator with room for a mark in front, which keeps the alignment;
// counting touches a constant-initialised thread-local and statics, which does not allocate.
unsafe impl GlobalAlloc for Tagged {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout has a size that is not zero.
        unsafe { mark(System.alloc(extended(layout, layout.size())), layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { mark(System.alloc_zeroed(extended(layout, layout.size())), layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer is one that `mark` gave for this layout.
        unsafe {
            let tag = usize::from(pointer.sub(1).read());
            BYTES[tag].fetch_sub(layout.size() as isize, Ordering::Relaxed);
            System.dealloc(pointer.sub(front(layout)), extended(layout, layout.size()));
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; the mark moves along with what is behind it.
        unsafe {
            let tag = usize::from(pointer.sub(1).read());
            let base = pointer.sub(front(layout));
            let moved = System.realloc(base, extended(layout, layout.size()), front(layout) + size);
            if moved.is_null() {
                return moved;
            }
            BYTES[tag].fetch_add(size as isize - layout.size() as isize, Ordering::Relaxed);
            moved.add(front(layout))
        }
    }
}

#[global_allocator]
static ALLOCATOR: Tagged = Tagged;
