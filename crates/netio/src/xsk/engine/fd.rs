//! System calls of one AF_XDP socket (XSK): made, fitted with a UMEM and rings, bound, kicked.
//!
//! Drivers need this order: register the UMEM, create and map the rings, fill the fill ring, then bind ([`super::open`]
//! follows it). A zero-copy driver fills its hardware ring from the fill ring inside bind; if that is empty, some
//! drivers never check again. This module knows neither frames nor when to kick ([`super::kick`]).

#![allow(unsafe_code)] // Socket options with structures, bind, sendto and recvfrom of AF_XDP.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Once;
use std::time::{Duration, Instant};

use super::xsk::{Kernel, Rings, Wakeups};
use super::{ObtainedMode, Umem};
use crate::io::IoStats;
use crate::ring::{Mapped, MappedRing};
use crate::xsk::abi::{self, MmapOffsets, Options, SockaddrXdp, Statistics, UmemReg};
use crate::xsk::config::BindMode;

/// Pause between two tries of a bind that answers EBUSY.
const BIND_RETRY: Duration = Duration::from_millis(10);

/// An AF_XDP socket.
#[derive(Debug)]
pub(crate) struct XskFd {
    fd: OwnedFd,
}

impl XskFd {
    /// Makes a socket without rings.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: plain integers; the result is checked below.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor just made, owned by nobody else.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Takes a socket that was bound elsewhere.
    pub(crate) fn bound(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Registers memory as this socket's UMEM. The kernel pins the pages, so the range may be unmapped afterwards.
    pub(crate) fn register(&self, umem: &Umem) -> io::Result<()> {
        let (addr, len) = umem.registration();
        let registration = UmemReg {
            addr,
            len,
            chunk_size: umem.frame_size(),
            // The kernel's 256 bytes are headroom enough: nothing is put in front of received packets.
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        self.set_option(abi::SOL_XDP, abi::XDP_UMEM_REG, &registration)
    }

    /// Makes and maps the four rings; those of a socket that does not send are three. The kernel makes none once it is
    /// bound (`xsk_setsockopt` in `net/xdp/xsk.c`), so that it never will.
    pub(crate) fn rings(&self, rx_ring: u32, tx_ring: u32, sends: bool) -> io::Result<Rings<Mapped>> {
        self.set_option(abi::SOL_XDP, abi::XDP_UMEM_FILL_RING, &rx_ring)?;
        // The kernel binds none without.
        self.set_option(abi::SOL_XDP, abi::XDP_UMEM_COMPLETION_RING, &tx_ring)?;
        self.set_option(abi::SOL_XDP, abi::XDP_RX_RING, &rx_ring)?;
        if sends {
            self.set_option(abi::SOL_XDP, abi::XDP_TX_RING, &tx_ring)?;
        }
        self.map_rings(rx_ring, tx_ring, sends)
    }

    /// Maps the rings, made with so many entries.
    pub(crate) fn map_rings(&self, rx_ring: u32, tx_ring: u32, sends: bool) -> io::Result<Rings<Mapped>> {
        let offsets: MmapOffsets = self.option(abi::XDP_MMAP_OFFSETS)?;
        let fd = self.fd.as_fd();
        Ok(Rings {
            fill: MappedRing::map(fd, abi::XDP_UMEM_PGOFF_FILL_RING, &offsets.fill, rx_ring)?,
            completion: MappedRing::map(
                fd,
                abi::XDP_UMEM_PGOFF_COMPLETION_RING,
                &offsets.completion,
                tx_ring,
            )?,
            rx: MappedRing::map(fd, abi::XDP_PGOFF_RX_RING, &offsets.rx, rx_ring)?,
            tx: match sends {
                true => MappedRing::map(fd, abi::XDP_PGOFF_TX_RING, &offsets.tx, tx_ring)?,
                false => MappedRing::detached(&offsets.tx, tx_ring)?,
            },
        })
    }

    /// Binds to a queue, trying again while it is EBUSY until `patience` is over: closing a socket returns
    /// before the kernel has released its queue (`xp_put_pool` defers to a work item).
    pub(crate) fn bind(
        &self,
        ifindex: u32,
        queue: u32,
        mode: BindMode,
        multi_buffer: bool,
        patience: Duration,
    ) -> io::Result<()> {
        let mode = match mode {
            BindMode::Auto => 0,
            BindMode::Copy => abi::XDP_COPY,
            BindMode::ZeroCopy => abi::XDP_ZEROCOPY,
        };
        let multi_buffer = if multi_buffer { abi::XDP_USE_SG } else { 0 };
        let address = SockaddrXdp {
            family: libc::AF_XDP as u16,
            flags: mode | multi_buffer | abi::XDP_USE_NEED_WAKEUP,
            ifindex,
            queue_id: queue,
            shared_umem_fd: 0,
        };
        self.bind_to(&address, patience)
    }

    /// Binds to a queue that no other socket on this UMEM has, on the UMEM of `other`, which is bound. Mode and
    /// need_wakeup are that socket's. The rings must be made, the UMEM must not be registered here too.
    pub(crate) fn bind_shared(
        &self,
        ifindex: u32,
        queue: u32,
        other: &Self,
        patience: Duration,
    ) -> io::Result<()> {
        let address = SockaddrXdp {
            family: libc::AF_XDP as u16,
            flags: abi::XDP_SHARED_UMEM,
            ifindex,
            queue_id: queue,
            shared_umem_fd: other.fd.as_raw_fd() as u32,
        };
        self.bind_to(&address, patience)
    }

    fn bind_to(&self, address: &SockaddrXdp, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            let length = size_of::<SockaddrXdp>() as libc::socklen_t;
            // SAFETY: an address of AF_XDP, as long as said.
            let result = unsafe {
                libc::bind(self.fd.as_raw_fd(), std::ptr::from_ref(address).cast::<libc::sockaddr>(), length)
            };
            if result == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() + BIND_RETRY > deadline {
                return Err(error);
            }
            std::thread::sleep(BIND_RETRY);
        }
    }

    /// Widens what copy-mode transmission may have under way. `bytes` of socket buffer; `budget` packets a
    /// system call. Both are hints that older kernels or fewer privileges bound. Returns the budget obtained.
    pub(crate) fn widen_transmit(&self, bytes: u32, budget: u32) -> u32 {
        if self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes).is_err() {
            // Without CAP_NET_ADMIN: up to net.core.wmem_max.
            let _ = self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes);
        }
        // Before Linux 6.17 there is no such option and the loop of `kick` makes more calls.
        match self.set_option(abi::SOL_XDP, abi::XDP_MAX_TX_SKB_BUDGET, &budget) {
            Ok(()) => budget,
            Err(error) => {
                static TOLD: Once = Once::new();
                TOLD.call_once(|| {
                    tracing::info!(%error, "XDP_MAX_TX_SKB_BUDGET not supported (needs Linux 6.17): copy mode sends 32 packets per call");
                });
                abi::TX_BATCH_SIZE
            }
        }
    }

    /// The mode that bind obtained.
    pub(crate) fn mode(&self) -> io::Result<ObtainedMode> {
        let options: Options = self.option(abi::XDP_OPTIONS)?;
        let zero_copy = options.flags & abi::XDP_OPTIONS_ZEROCOPY != 0;
        Ok(if zero_copy { ObtainedMode::ZeroCopy } else { ObtainedMode::Copy })
    }

    /// Drops that the kernel counted for this socket.
    pub(crate) fn statistics(&self) -> io::Result<Statistics> {
        self.option(abi::XDP_STATISTICS)
    }

    /// Sets an option to a plain C value.
    fn set_option<T: Copy>(&self, level: i32, name: i32, value: &T) -> io::Result<()> {
        // SAFETY: the value is as long as said, and the kernel copies it during the call.
        let result = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                level,
                name,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Reads an option of AF_XDP into one of the structures of [`abi`], all of which are plain integers.
    fn option<T: Copy + Default>(&self, name: i32) -> io::Result<T> {
        let mut value = T::default();
        let mut length = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, and every bit pattern of `T` is valid.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                abi::SOL_XDP,
                name,
                std::ptr::from_mut(&mut value).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        if length as usize != size_of::<T>() {
            // Kernels before 5.9 have shorter forms; those lack too much else to go on.
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        Ok(value)
    }
}

impl Wakeups for XskFd {
    /// Asks the kernel to send what the TX ring holds. The error is the plain number: several of them are
    /// ordinary answers.
    fn kick(&self) -> Result<(), i32> {
        // SAFETY: no buffer and no address are passed.
        let result = unsafe {
            libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        if result >= 0 { Ok(()) } else { Err(errno()) }
    }

    /// Tells the kernel that the fill ring has entries again.
    fn wake(&self) -> Result<(), i32> {
        // SAFETY: no buffer and no address are passed.
        let result = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        if result >= 0 { Ok(()) } else { Err(errno()) }
    }

    /// Adds them to `stats`. A socket whose device is gone still answers; one that does not has nothing to add.
    fn count(&self, stats: &mut IoStats) {
        if let Ok(kernel) = self.statistics() {
            stats.xdp_rx_dropped += kernel.rx_dropped;
            stats.xdp_rx_invalid_descs += kernel.rx_invalid_descs;
            stats.xdp_tx_invalid_descs += kernel.tx_invalid_descs;
            stats.xdp_rx_ring_full += kernel.rx_ring_full;
            stats.xdp_fill_ring_empty += kernel.rx_fill_ring_empty_descs;
            stats.xdp_tx_ring_empty += kernel.tx_ring_empty_descs;
        }
    }
}

impl Kernel for Mapped {
    type Socket = XskFd;
}

impl From<XskFd> for OwnedFd {
    fn from(socket: XskFd) -> Self {
        socket.fd
    }
}

impl AsFd for XskFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
