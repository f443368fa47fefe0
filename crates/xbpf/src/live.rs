//! Frames sent without a socket: live frames of BPF_PROG_TEST_RUN.
//!
//! The caller builds frames in a ring that it shares with the program; one system call sends up to
//! [`LiveFrames::SLOTS`] of them out of one interface, like XDP redirects. The interface needs no XDP program, but a
//! driver that accepts redirected frames (`ndo_xdp_xmit`).
//!
//! A program on the tracepoint of the device's bulk transmit reports what became of the frames, because
//! nothing else does. Frames are copied completely into the kernel's pages, because these come back as their
//! receivers left them. A test run inserts its program into the kernel's XDP dispatcher and removes it
//! afterwards, at an RCU grace period each; a program that is attached somewhere is already there. So ours is
//! attached to the loopback device of a network namespace created for nothing else, which reduces a call from
//! 25 ms to 6 µs.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use libbpf_rs::libbpf_sys::XDP_FLAGS_SKB_MODE;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::attachment;
use crate::error::{CAPABILITIES, Error, Interface};
use crate::link::Link;
use crate::redirect::{forward_libbpf_messages, is_privileged};
use crate::skeleton::live::LiveSkelBuilder;
use crate::skeleton::live::types::{live_limit, live_ring};
use crate::sys::{self, MappedValue};

/// Frames that go to the device together. The device's own bulks are of 16 (`DEV_MAP_BULK_SIZE`), a veth's ring
/// has 256 places: 64 is what a driver's NAPI poll would bring (`NAPI_POLL_WEIGHT`).
const BATCH: u32 = 64;

/// The least time between two calls of the kernel. Each makes a page pool, whose number is given back when all its
/// pages are back, looked for once a second (`page_pool_release_retry` in net/core/page_pool.c), and there are 65,534
/// numbers (`__mem_id_cyclic_get` in net/core/xdp.c): more calls than that while receivers hold packets end in ENOSPC.
const GAP: Duration = Duration::from_micros(50);

/// The loopback device's index in every network namespace (`loopback_net_init` in drivers/net/loopback.c: it is the
/// first).
const LOOPBACK: u32 = 1;

const _: () = assert!(size_of::<live_ring>() == 48 + LiveFrames::SLOTS * (4 + LiveFrames::MAX_FRAME));

/// The outcome of frames of [`LiveFrames`]. Every field only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// Frames that the device accepted.
    pub sent: u64,
    /// Frames that the device refused: its ring, or that of a veth's peer, was full, or it is down.
    pub dropped: u64,
    /// Frames that never reached the device, because it accepts none from XDP.
    pub refused: u64,
    /// System calls.
    pub calls: u64,
}

/// Keeps the program attached to the loopback device of an otherwise empty network namespace.
///
/// A test run adds its program to the kernel's XDP dispatcher and removes it again, and each change of the
/// dispatcher waits for an RCU grace period (`bpf_dispatcher_update` in kernel/bpf/dispatcher.c): two of 10 ms each
/// call. A program that is attached somewhere is in it already, and a test run only counts one user more.
struct Known {
    _link: Link,
    _namespace: OwnedFd,
}

impl Known {
    fn make(program: BorrowedFd<'_>) -> io::Result<Self> {
        // The namespace is that thread's and is kept by the descriptor.
        let inside = || {
            sys::leave_network_namespace()?;
            let namespace = std::fs::File::open("/proc/thread-self/ns/net")?;
            let link = sys::link_create(program, LOOPBACK, XDP_FLAGS_SKB_MODE)?;
            Ok(Self { _link: link, _namespace: namespace.into() })
        };
        std::thread::scope(|scope| {
            let thread =
                std::thread::Builder::new().name("live-namespace".into()).spawn_scoped(scope, inside)?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
        })
    }
}

/// Sends frames out of one interface.
pub struct LiveFrames {
    interface: Interface,
    program: OwnedFd,
    ring: MappedValue<live_ring>,
    _observer: libbpf_rs::Link,
    _known: Known,
    /// The initial content of the kernel's pages; as long as the longest frame.
    page: Vec<u8>,
    counts: LiveCounts,
    /// When the kernel may be called again.
    next_call: Instant,
}

impl LiveFrames {
    /// The most frames that one call sends.
    pub const SLOTS: usize = live_limit::LIVE_SLOTS.0 as usize;
    /// The longest frame, from its Ethernet header on, in bytes.
    pub const MAX_FRAME: usize = live_limit::LIVE_BYTES.0 as usize;
    /// The shortest.
    pub const MIN_FRAME: usize = 14;

    /// Loads the program for the interface `ifindex` of the caller's network namespace and for frames of up to
    /// `longest` bytes ([`Self::MIN_FRAME`] to [`Self::MAX_FRAME`]). Takes 2 MiB.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::Load`], [`Error::Live`] for a length that cannot be.
    pub fn open(ifindex: u32, longest: usize) -> Result<Self, Error> {
        forward_libbpf_messages();
        let interface = attachment::interface(ifindex);
        if !(Self::MIN_FRAME..=Self::MAX_FRAME).contains(&longest) {
            let text = format!("frames of {longest} bytes: {} to {}", Self::MIN_FRAME, Self::MAX_FRAME);
            let source = io::Error::new(io::ErrorKind::InvalidInput, text);
            return Err(Error::Live { interface, source });
        }
        match Self::open_with(&interface, longest, true) {
            // Before Linux 6.10 XDP programs may not ask for their thread.
            Err(Error::Load { .. }) => Self::open_with(&interface, longest, false),
            result => result,
        }
    }

    fn open_with(interface: &Interface, longest: usize, has_task: bool) -> Result<Self, Error> {
        let load = |source: libbpf_rs::Error| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if !is_privileged() => {
                Error::NotPermitted { action: "live frames".to_owned(), needed: CAPABILITIES }
            }
            _ => Error::Load { source },
        };
        let mut storage = MaybeUninit::uninit();
        let mut open = LiveSkelBuilder::default().open(&mut storage).map_err(load)?;
        if let Some(knobs) = open.maps.rodata_data.as_deref_mut() {
            knobs.ifindex = interface.index;
            knobs.frame_length = longest as u32;
            knobs.has_task = has_task;
        }
        let loaded = open.load().map_err(load)?;
        let descriptor = |source| Error::Descriptor { source };
        let program = loaded.progs.expressway_live.as_fd().try_clone_to_owned().map_err(descriptor)?;
        Ok(Self {
            _known: Known::make(program.as_fd()).map_err(|source| match source.kind() {
                io::ErrorKind::PermissionDenied => Error::NotPermitted {
                    action: "live frames: a network namespace for the program".to_owned(),
                    needed: "CAP_SYS_ADMIN",
                },
                _ => Error::Live { interface: interface.clone(), source },
            })?,
            program,
            ring: MappedValue::map(loaded.maps.ring_map.as_fd()).map_err(descriptor)?,
            _observer: loaded.progs.live_transmitted.attach().map_err(load)?,
            page: vec![0; longest],
            counts: LiveCounts::default(),
            next_call: Instant::now(),
            interface: interface.clone(),
        })
    }

    /// Frames that can be built before they have to be sent.
    pub fn room(&mut self) -> usize {
        Self::SLOTS - self.ring.get().end as usize
    }

    /// Builds a frame behind those that wait: `build` is lent [`Self::MAX_FRAME`] bytes, whose content is that of an
    /// earlier frame, and returns the frame's length, 0 for none. False if there is no room, or the length is none that
    /// [`LiveFrames::open`] allowed.
    #[inline]
    pub fn push(&mut self, build: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let longest = self.page.len();
        let ring = self.ring.get();
        let Some(slot) = ring.slots.get_mut(ring.end as usize) else { return false };
        let length = build(&mut slot.bytes);
        if !(Self::MIN_FRAME..=longest).contains(&length) {
            return false;
        }
        slot.length = length as u32;
        ring.end += 1;
        true
    }

    /// Sends the built frames, up to 50 µs later if it was called just before. Returns when the device has handled all of
    /// them, so that [`LiveFrames::counts`] include them.
    ///
    /// # Errors
    /// [`Error::NoInterface`] once the interface is gone; [`Error::Live`] if the kernel has no live frames (before 5.18) or
    /// no room for frames of that length. Frames that the device refuses are counted, not an error.
    pub fn send(&mut self) -> Result<(), Error> {
        loop {
            let ring = self.ring.get();
            let (next, end) = (ring.next.min(ring.end), ring.end);
            if next == end {
                break;
            }
            while Instant::now() < self.next_call {
                std::hint::spin_loop();
            }
            self.next_call = Instant::now() + GAP;
            self.counts.calls += 1;
            match sys::live_run(self.program.as_fd(), &self.page, self.interface.index, end - next, BATCH) {
                Ok(()) => {}
                // A signal: the next call sends the rest.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                    return Err(Error::NoInterface { interface: self.interface.clone() });
                }
                Err(source) => return Err(Error::Live { interface: self.interface.clone(), source }),
            }
        }
        let ring = self.ring.get();
        let (handed, unfit) = (u64::from(ring.end), std::mem::take(&mut ring.unfit));
        let (sent, dropped) = (std::mem::take(&mut ring.sent), std::mem::take(&mut ring.dropped));
        (ring.next, ring.end, ring.task) = (0, 0, 0);
        self.counts.sent += sent;
        self.counts.dropped += dropped;
        self.counts.refused += handed.saturating_sub(sent + dropped + unfit);
        if unfit > 0 {
            let text =
                format!("{unfit} frames of up to {} bytes do not fit the kernel's buffers", self.page.len());
            return Err(Error::Live { interface: self.interface.clone(), source: io::Error::other(text) });
        }
        Ok(())
    }

    /// The outcome of all frames so far.
    pub fn counts(&self) -> LiveCounts {
        self.counts
    }
}
