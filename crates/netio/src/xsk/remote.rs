//! Where bound AF_XDP sockets come from when this process may not make them: another process that may.
//!
//! ```text
//!   unprivileged: XskBinding::open_from           privileged: bind_for
//!   ──────────────────────────────                ───────────────────────────────────────────────
//!   memfd for the UMEM, mapped       ── memfd ──▶ maps it, registers it, makes the rings,
//!                                                 fills the fill ring with frames 0 to rx_ring - 1,
//!                                                 binds, enters the socket into the XSKMAP, unmaps
//!   maps the rings, takes the frames ◀─ socket ── keeps nothing
//!   in the fill ring for the kernel's
//! ```
//!
//! The privileged side binds before it hands the socket over: bind(2) of an AF_XDP socket takes no privilege
//! (`xsk_bind` in `net/xdp/xsk.c`), so whoever holds an unbound one chooses interface and queue. It also
//! registers the memory, because the kernel accounts pinned pages to who registers them (`xdp_umem_account_pages`
//! in `net/xdp/xdp_umem.c`), and most users may pin 8 MiB. A UMEM can be registered once, so the size is fixed.
//!
//! Who gives sockets away learns from the memory when it is free again ([`is_released`]), not from them: they live as
//! long as anybody holds them, and the pages longer where another socket shares the UMEM, in another network namespace
//! if need be. The kernel seals a memfd against writing only when nothing has its pages pinned
//! (`memfd_wait_for_pins` in `mm/memfd.c`); holes, which would hide pinned pages from it, are made impossible before they
//! are pinned, by `F_SEAL_FUTURE_WRITE` (`shmem_fallocate` in `mm/shmem.c`, Linux 5.1).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};

use super::config::{ObtainedMode, XskConfig};
use super::engine::{Bind, Opened, bring_up};
use super::error::{OpenError, Step};
use super::interface::BindTarget;
use crate::route::{NetlinkSource, OwnNamespace};
use crate::sys::mapping::{Backing, Mapping};
use crate::umem::{Umem, XskId};

/// A bound AF_XDP socket of another process's making.
#[derive(Debug)]
pub struct BoundXsk {
    /// The socket, bound and in the XSKMAP; its UMEM is the memory given, its fill ring full.
    pub socket: OwnedFd,
    /// The mode that bind obtained.
    pub mode: ObtainedMode,
    /// Frames that one sent packet may take.
    pub segments: u32,
}

/// Knows who binds AF_XDP sockets for this process.
pub trait RemoteBinder: Send {
    /// Has a socket bound for `config` over `memory`, a memfd of [`umem_len`] bytes sealed against shrinking.
    ///
    /// # Errors
    /// [`OpenError::Refused`] when the other side says no or is gone, whatever [`bind_for`] fails with there.
    fn bind(&mut self, config: &XskConfig, memory: BorrowedFd<'_>) -> Result<BoundXsk, OpenError>;

    /// The network namespace that they are bound in.
    fn namespace(&self) -> &dyn NetlinkSource;
}

/// Bytes of UMEM that a binding takes.
pub fn umem_len(config: &XskConfig) -> u64 {
    (u64::from(config.rx_ring) + u64::from(config.tx_ring)) * u64::from(config.frame_size)
}

/// Frames of a binding's UMEM, without those for readers.
pub(super) fn frames_of(config: &XskConfig) -> u32 {
    config.rx_ring.saturating_add(config.tx_ring)
}

/// Binds a socket for another process, whose memory `memory` is, and enters it into `map`. In the network
/// namespace of the calling thread. Takes CAP_NET_RAW, CAP_IPC_LOCK for memory beyond RLIMIT_MEMLOCK, and
/// CAP_BPF where that is asked for map updates.
///
/// The memory is not trusted: it must be a memfd that cannot shrink and has no other seal, and nothing in it is read or
/// written. From then on nobody can map it writable; the other side has done so.
///
/// # Errors
/// As [`super::XskBinding::open`]. [`OpenError::Config`] for frames that do not fit the interface's MTU, by which the other side
/// has chosen them as [`super::XskBinding::open_from`] does: it has changed meanwhile.
pub fn bind_for(
    config: &XskConfig,
    memory: BorrowedFd<'_>,
    map: BorrowedFd<'_>,
) -> Result<BoundXsk, OpenError> {
    let BindTarget { ifindex, fitted, .. } = BindTarget::find(config, &OwnNamespace)?;
    if fitted.frame_size != config.frame_size {
        let must = "must be 4096 for the interface's current MTU";
        return Err(OpenError::Config { field: "frame_size", value: config.frame_size.into(), must });
    }
    let multi_buffer = fitted.multi_buffer();
    let length = umem_len(config);
    let failed = |source| Step::Memory.failed(&config.interface, config.queue, multi_buffer, source);
    let mapping = map_memory(memory, length).map_err(failed)?;
    let mut umem = Umem::over(mapping, Backing::Shared, config.frame_size, frames_of(config));
    let bind =
        Bind { id: XskId(0), config, ifindex, multi_buffer, map: Some(map), shared: None, wait: config.wait };
    let Opened { xsk, segments, .. } = bring_up(&mut umem, &bind)?;
    let mode = xsk.mode();
    Ok(BoundXsk { socket: xsk.into_fd(), mode, segments })
}

/// Whether the memory of a socket of [`bind_for`] is free again: no socket has it, here or elsewhere, and nobody has it
/// mapped writable. Where one has, the kernel looks several times, for 0.2 s in all.
pub fn is_released(memory: BorrowedFd<'_>) -> bool {
    fcntl_add_seals(memory, SealFlags::WRITE).is_ok()
}

/// Maps memory of the other side's. Refuses what is no memory file, or one that may become smaller than said. Only
/// memfds have seals, so no file system of the other side's answers page faults here.
fn map_memory(memory: BorrowedFd<'_>, length: u64) -> io::Result<Mapping> {
    let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    let seals = fcntl_get_seals(memory).map_err(|_| invalid("the memory is not a memfd"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(invalid("the memfd is not sealed against shrinking (F_SEAL_SHRINK)"));
    }
    let size = fstat(memory)?.st_size;
    if !u64::try_from(size).is_ok_and(|size| size >= length) {
        return Err(invalid("the memfd is smaller than the requested frames"));
    }
    let length = usize::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let mapping = Mapping::file(memory, length)?;
    // After our own mapping, which this would refuse, and before anything is pinned.
    fcntl_add_seals(memory, SealFlags::FUTURE_WRITE)
        .map_err(|_| invalid("the memfd cannot be sealed (F_SEAL_SEAL, or Linux before 5.1)"))?;
    Ok(mapping)
}
