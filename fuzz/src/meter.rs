//! The counters that cost is read off: allocations, by an allocator that counts, and steps, which are edges between basic
//! blocks that instrumented code has taken. All threads of the process count alike.
//!
//! Both are the same each time, on any machine and under any load, which neither a clock nor the CPU time of a thread is.
//! Not instrumented: C (BoringSSL), the kernel, and the parts of the standard library that come compiled, such as `memcpy`,
//! `memchr` and the check for UTF-8; what is generic there is compiled with the code that calls it, and counts.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn taken(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Relaxed);
    BYTES.fetch_add(bytes as u64, Relaxed);
    let live = LIVE.fetch_add(bytes as u64, Relaxed) + bytes as u64;
    if live > PEAK.load(Relaxed) {
        PEAK.fetch_max(live, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with the same arguments; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller keeps to the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Counted whole, as if it moved, so that growth by a constant shows for the square that it is.
        taken(size);
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, size) }
    }
}

// `__sanitizer_cov_trace_pc`, as build.rs has the linker call it. In assembly, because a function in Rust would be
// instrumented too and call itself. Two threads at once may lose a step, which no bound notices.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .bss.expressway_fuzz_steps,\"aw\",@nobits",
    ".balign 8",
    "expressway_fuzz_steps: .zero 8",
    ".popsection",
    ".globl __wrap___sanitizer_cov_trace_pc",
    "__wrap___sanitizer_cov_trace_pc:",
    "inc qword ptr [rip + expressway_fuzz_steps]",
    "ret",
    ".globl expressway_fuzz_read_steps",
    "expressway_fuzz_read_steps:",
    "mov rax, qword ptr [rip + expressway_fuzz_steps]",
    "ret",
);

// x16 and x17 are free at every call (AAPCS64, 6.1.1).
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .bss.expressway_fuzz_steps,\"aw\",@nobits",
    ".balign 8",
    "expressway_fuzz_steps: .zero 8",
    ".popsection",
    ".globl __wrap___sanitizer_cov_trace_pc",
    "__wrap___sanitizer_cov_trace_pc:",
    "adrp x16, expressway_fuzz_steps",
    "ldr x17, [x16, #:lo12:expressway_fuzz_steps]",
    "add x17, x17, #1",
    "str x17, [x16, #:lo12:expressway_fuzz_steps]",
    "ret",
    ".globl expressway_fuzz_read_steps",
    "expressway_fuzz_read_steps:",
    "adrp x16, expressway_fuzz_steps",
    "ldr x0, [x16, #:lo12:expressway_fuzz_steps]",
    "ret",
);

// SAFETY: defined above; it reads one aligned word.
unsafe extern "C" {
    safe fn expressway_fuzz_read_steps() -> u64;
}

/// Edges taken since the process began. Stays as it is where the build is not instrumented.
pub(crate) fn steps() -> u64 {
    expressway_fuzz_read_steps()
}

/// What the allocator has counted since the process began.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) allocations: u64,
    pub(crate) bytes: u64,
    pub(crate) live: u64,
    /// The most that was live at a time since [`begin_peak`].
    pub(crate) peak: u64,
}

pub(crate) fn memory() -> Memory {
    Memory {
        allocations: ALLOCATIONS.load(Relaxed),
        bytes: BYTES.load(Relaxed),
        live: LIVE.load(Relaxed),
        peak: PEAK.load(Relaxed),
    }
}

/// Lets the peak begin at what is live now.
pub(crate) fn begin_peak() {
    PEAK.store(LIVE.load(Relaxed), Relaxed);
}

/// Counters beside those of coverage: an input that sets one which none before it has set is kept and mutated further.
/// libFuzzer finds them by the name of their section (FuzzerExtraCountersLinux.cpp), clears them before each input, and
/// wants their size to be a multiple of a word.
// SAFETY: the section is named for no other purpose.
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static NOVELTIES: [AtomicU8; NOVELTY_COUNT] = [const { AtomicU8::new(0) }; NOVELTY_COUNT];

/// How many novelties there are.
pub(crate) const NOVELTY_COUNT: usize = 512;

/// Tells libFuzzer, if there is one, that the input has come to something with this number.
pub(crate) fn report_novelty(number: usize) {
    NOVELTIES[number % NOVELTY_COUNT].store(1, Relaxed);
}
