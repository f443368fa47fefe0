//! The kernel's AF_XDP interface: constants and structures, as the system calls want them.
//!
//! Declared here and not taken from the distribution's headers, which are those of Linux 6.1 on Debian 12
//! and do not know multi-buffer packets. Source of every line:
//! `include/uapi/linux/if_xdp.h` of Linux 6.18 unless said otherwise. A test compares the values with the
//! `libc` crate, which has them from another hand.
//!
//! This module makes no system calls and interprets nothing. [`crate::ring`] explains rings.

use crate::ring::RingOffset;

/// Socket option level of AF_XDP sockets (`include/linux/socket.h`).
pub(crate) const SOL_XDP: i32 = 283;

/// `sockaddr_xdp.flags`: on the UMEM of the socket `shared_umem_fd`, which is bound. No other flag may be given:
/// mode and need_wakeup are those of the first socket (`xsk_bind` in `net/xdp/xsk.c`). With rings of its own a
/// socket may be of another queue or interface since Linux 5.10.
pub(crate) const XDP_SHARED_UMEM: u16 = 1 << 0;
/// `sockaddr_xdp.flags`: the kernel copies packets between driver and UMEM.
pub(crate) const XDP_COPY: u16 = 1 << 1;
/// `sockaddr_xdp.flags`: the driver reads and writes the UMEM itself, or bind fails.
pub(crate) const XDP_ZEROCOPY: u16 = 1 << 2;
/// `sockaddr_xdp.flags`: the kernel says by a ring flag when it needs a system call to go on (Linux 5.4).
pub(crate) const XDP_USE_NEED_WAKEUP: u16 = 1 << 3;
/// `sockaddr_xdp.flags`: a packet may span several descriptors (Linux 6.6).
pub(crate) const XDP_USE_SG: u16 = 1 << 4;

/// Socket option: offsets of the rings' parts within their mappings ([`MmapOffsets`]).
pub(crate) const XDP_MMAP_OFFSETS: i32 = 1;
/// Socket option: makes the receive ring of so many entries.
pub(crate) const XDP_RX_RING: i32 = 2;
/// Socket option: makes the transmit ring.
pub(crate) const XDP_TX_RING: i32 = 3;
/// Socket option: registers memory as the UMEM ([`UmemReg`]).
pub(crate) const XDP_UMEM_REG: i32 = 4;
/// Socket option: makes the fill ring.
pub(crate) const XDP_UMEM_FILL_RING: i32 = 5;
/// Socket option: makes the completion ring.
pub(crate) const XDP_UMEM_COMPLETION_RING: i32 = 6;
/// Socket option: drops counted by the kernel ([`Statistics`]).
pub(crate) const XDP_STATISTICS: i32 = 7;
/// Socket option: what bind obtained ([`Options`]).
pub(crate) const XDP_OPTIONS: i32 = 8;
/// Socket option: how many descriptors one `sendto` may take in copy mode (Linux 6.17), 32 to the size of
/// the transmit ring. Older kernels take `TX_BATCH_SIZE`, 32 (`net/xdp/xsk.c`).
pub(crate) const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// [`Options::flags`]: the socket is in zero-copy mode.
pub(crate) const XDP_OPTIONS_ZEROCOPY: u32 = 1 << 0;

/// [`Descriptor::options`]: the packet goes on in the next descriptor (Linux 6.6).
pub(crate) const XDP_PKT_CONTD: u32 = 1 << 0;

/// Page offset to map the receive ring.
pub(crate) const XDP_PGOFF_RX_RING: u64 = 0;
/// Page offset to map the transmit ring.
pub(crate) const XDP_PGOFF_TX_RING: u64 = 0x8000_0000;
/// Page offset to map the fill ring.
pub(crate) const XDP_UMEM_PGOFF_FILL_RING: u64 = 0x1_0000_0000;
/// Page offset to map the completion ring.
pub(crate) const XDP_UMEM_PGOFF_COMPLETION_RING: u64 = 0x1_8000_0000;

/// Bytes that the kernel keeps free in front of every received packet for XDP programs that grow headers
/// (`include/uapi/linux/bpf.h`: `XDP_PACKET_HEADROOM`); they come out of the frame
/// (`xsk_pool_get_rx_frame_size` in `include/net/xdp_sock_drv.h`).
pub(crate) const XDP_PACKET_HEADROOM: u32 = 256;

/// Descriptors that one `sendto` handles in copy mode unless the budget was raised: `TX_BATCH_SIZE`
/// (`net/xdp/xsk.c`).
pub(crate) const TX_BATCH_SIZE: u32 = 32;

/// `struct sockaddr_xdp`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SockaddrXdp {
    pub(crate) family: u16,
    pub(crate) flags: u16,
    pub(crate) ifindex: u32,
    pub(crate) queue_id: u32,
    pub(crate) shared_umem_fd: u32,
}

/// `struct xdp_mmap_offsets`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct MmapOffsets {
    pub(crate) rx: RingOffset,
    pub(crate) tx: RingOffset,
    pub(crate) fill: RingOffset,
    pub(crate) completion: RingOffset,
}

/// `struct xdp_umem_reg`. The kernel takes every prefix that it once had; the last field is of Linux 6.8
/// and read only with a flag that is not set here.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct UmemReg {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) chunk_size: u32,
    pub(crate) headroom: u32,
    pub(crate) flags: u32,
    pub(crate) tx_metadata_len: u32,
}

/// `struct xdp_statistics`, in the form since Linux 5.9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Statistics {
    pub(crate) rx_dropped: u64,
    pub(crate) rx_invalid_descs: u64,
    pub(crate) tx_invalid_descs: u64,
    pub(crate) rx_ring_full: u64,
    pub(crate) rx_fill_ring_empty_descs: u64,
    pub(crate) tx_ring_empty_descs: u64,
}

/// `struct xdp_options`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Options {
    pub(crate) flags: u32,
}

/// `struct xdp_desc`: an entry of the receive and transmit rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Descriptor {
    /// Byte offset of the packet within the UMEM.
    pub(crate) addr: u64,
    /// Bytes of the packet in this frame.
    pub(crate) len: u32,
    /// [`XDP_PKT_CONTD`] or 0.
    pub(crate) options: u32,
}

// The sizes are the ABI: a field too many would be read or written beyond what the kernel means.
const _: () = assert!(size_of::<SockaddrXdp>() == 16);
const _: () = assert!(size_of::<MmapOffsets>() == 128);
const _: () = assert!(size_of::<UmemReg>() == 32);
const _: () = assert!(size_of::<Statistics>() == 48);
const _: () = assert!(size_of::<Options>() == 4);
const _: () = assert!(size_of::<Descriptor>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_match_libc() {
        assert_eq!(SOL_XDP, libc::SOL_XDP);
        assert_eq!(
            [XDP_COPY, XDP_ZEROCOPY, XDP_USE_NEED_WAKEUP, XDP_USE_SG],
            [libc::XDP_COPY, libc::XDP_ZEROCOPY, libc::XDP_USE_NEED_WAKEUP, libc::XDP_USE_SG]
        );
        assert_eq!(
            [XDP_MMAP_OFFSETS, XDP_RX_RING, XDP_TX_RING, XDP_UMEM_REG],
            [libc::XDP_MMAP_OFFSETS, libc::XDP_RX_RING, libc::XDP_TX_RING, libc::XDP_UMEM_REG]
        );
        assert_eq!(
            [XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_STATISTICS, XDP_OPTIONS],
            [
                libc::XDP_UMEM_FILL_RING,
                libc::XDP_UMEM_COMPLETION_RING,
                libc::XDP_STATISTICS,
                libc::XDP_OPTIONS
            ]
        );
        assert_eq!(XDP_SHARED_UMEM, libc::XDP_SHARED_UMEM);
        assert_eq!(XDP_OPTIONS_ZEROCOPY, libc::XDP_OPTIONS_ZEROCOPY);
        assert_eq!(XDP_PKT_CONTD, libc::XDP_PKT_CONTD);
        assert_eq!(XDP_PGOFF_RX_RING, libc::XDP_PGOFF_RX_RING as u64);
        assert_eq!(XDP_PGOFF_TX_RING, libc::XDP_PGOFF_TX_RING as u64);
        assert_eq!(XDP_UMEM_PGOFF_FILL_RING, libc::XDP_UMEM_PGOFF_FILL_RING);
        assert_eq!(XDP_UMEM_PGOFF_COMPLETION_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
    }

    #[test]
    fn layouts_match_libc() {
        assert_eq!(size_of::<SockaddrXdp>(), size_of::<libc::sockaddr_xdp>());
        assert_eq!(size_of::<MmapOffsets>(), size_of::<libc::xdp_mmap_offsets>());
        assert_eq!(size_of::<Statistics>(), size_of::<libc::xdp_statistics>());
        assert_eq!(size_of::<Descriptor>(), size_of::<libc::xdp_desc>());
        assert_eq!(
            std::mem::offset_of!(Statistics, tx_ring_empty_descs),
            std::mem::offset_of!(libc::xdp_statistics, tx_ring_empty_descs)
        );
    }
}
