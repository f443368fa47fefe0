//! Configuration of an AF_XDP binding and of the backend over it.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::abi::{TX_BATCH_SIZE, XDP_PACKET_HEADROOM};
use super::error::OpenError;
use crate::readers::{ReaderAccess, ReaderAccessError};
use crate::trace::StampSwitch;
use crate::wait::Wait;

/// Bytes in front of a payload that is built in a frame. The longest headers take 70 (Ethernet with two VLAN
/// tags, IPv6, UDP); 128 puts every payload at the start of a cache line, where AEADs work fastest.
pub(super) const HEADER_SPACE: usize = 128;

const _: () = assert!(expressway_wire::MAX_HEADER_LEN <= HEADER_SPACE);

/// Ethernet header and two VLAN tags: what an MTU does not count.
pub(super) const LINK_HEADERS: u32 = 22;

/// How to bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BindMode {
    /// Zero-copy where the driver has it, else copy. The mode obtained is read back.
    #[default]
    Auto,
    /// Copy mode, on every driver.
    Copy,
    /// Zero-copy or an error.
    ZeroCopy,
}

impl fmt::Display for BindMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::Copy => "copy",
            Self::ZeroCopy => "zero-copy",
        })
    }
}

/// What bind obtained, as XDP_OPTIONS tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObtainedMode {
    /// The kernel copies between its buffers and the UMEM.
    Copy,
    /// The driver works on the UMEM itself.
    ZeroCopy,
}

impl fmt::Display for ObtainedMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Copy => "copy",
            Self::ZeroCopy => "zero-copy",
        })
    }
}

/// One queue of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XskConfig {
    /// Interface name in the network namespace of the calling thread. Of a bond: a member.
    pub interface: String,
    /// Queue of the interface, from 0. Packets received on it come here; what is sent leaves by it.
    pub queue: u32,
    /// Key of the XSKMAP to put the socket at; the redirect program looks its receive queue up.
    pub map_key: u32,
    /// How to bind.
    pub mode: BindMode,
    /// Bytes of a frame, 2048 or 4096. A received packet has 256 fewer; a larger one spans frames and is
    /// put together by a copy. A sent payload has [`XskConfig::max_payload`] bytes at most. Unless `mode` is
    /// copy, 2048 becomes 4096 where the interface's MTU asks for it: NICs that count in KiB receive 1024
    /// bytes into the one and 3072 into the other.
    pub frame_size: u32,
    /// Entries of the fill and RX rings, a power of two; as many frames receive. Memory: this times
    /// `frame_size`.
    pub rx_ring: u32,
    /// Entries of the TX and completion rings, a power of two; as many frames transmit. Memory: this times
    /// `frame_size`.
    pub tx_ring: u32,
    /// The cookie of a redirect program that describes packets (time stamp, hash, VLAN tag), which then come as
    /// [`crate::Hints`] of datagrams. `None`: nothing lies in front of packets.
    pub description: Option<u32>,
    /// Has a program that does not describe packets stamp them while somebody traces. Unused beside `description`.
    pub switch: Option<StampSwitch>,
    /// Packets that one system call may send in copy mode, 32 to `tx_ring` (`XDP_MAX_TX_SKB_BUDGET`, Linux 6.17);
    /// `None` is `tx_ring`. Fewer calls a burst, each longer. Older kernels send 32.
    pub tx_budget: Option<u32>,
    /// Whether anything is to be sent by it. Without, the socket has no TX ring, nothing can ever be sent by it,
    /// by whoever holds it, and datagrams leave by the kernel.
    pub sends: bool,
    /// Take the UMEM from huge pages where the machine has them.
    pub huge_pages: bool,
    /// Which way the datagrams leave that would go by this queue.
    pub transmit: TransmitVia,
    /// What to do about a socket that fails again after it was replaced.
    pub failing: FailurePolicy,
    /// How the worker will wait: where the socket comes from a [`super::RemoteBinder`], that side prepares it, as
    /// it has the privilege that busy polling takes.
    pub wait: Wait,
    /// Who may read the packets that come here from other processes: each datagram that
    /// [`super::XskIo`] hands over is lent to all of them, from its Ethernet header to the end of its payload, with
    /// where that starts as flags and its time stamp, 0 where it has none. The frames that they may hold at most are there besides
    /// those of the rings. Not where sockets come from a [`super::RemoteBinder`].
    pub lend: Option<ReaderAccess>,
    /// How long [`super::XskBinding::open`] goes on trying while bind answers EBUSY: the kernel releases a closed
    /// socket's queue later than the close returns.
    pub bind_patience: Duration,
}

impl XskConfig {
    /// The defaults for a queue: 2048 frames of 2048 bytes each way (8 MiB), any mode. 2048 packets are
    /// 2 ms at a million packets a second, as long as a worker may be off its core.
    pub fn new(interface: impl Into<String>, queue: u32) -> Self {
        Self {
            interface: interface.into(),
            queue,
            map_key: queue,
            mode: BindMode::Auto,
            frame_size: 2048,
            rx_ring: 2048,
            tx_ring: 2048,
            description: None,
            switch: None,
            tx_budget: None,
            sends: true,
            huge_pages: true,
            transmit: TransmitVia::Xsk,
            failing: FailurePolicy::Replace,
            wait: Wait::Interrupt,
            lend: None,
            bind_patience: Duration::from_secs(3),
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`OpenError::Config`] names the first that is out of range.
    pub fn validate(&self) -> Result<(), OpenError> {
        let complain = |field, value: u32, must| Err(OpenError::Config { field, value: value.into(), must });
        if self.frame_size != 2048 && self.frame_size != 4096 {
            return complain("frame_size", self.frame_size, "must be 2048 or 4096");
        }
        for (field, value) in [("rx_ring", self.rx_ring), ("tx_ring", self.tx_ring)] {
            if !value.is_power_of_two() {
                return complain(field, value, "must be a power of two");
            }
            if !(64..=32_768).contains(&value) {
                return complain(field, value, "must be 64 to 32768");
            }
        }
        if let Some(budget) = self.tx_budget
            && !(TX_BATCH_SIZE..=self.tx_ring).contains(&budget)
        {
            return complain("tx_budget", budget, "must be 32 to tx_ring");
        }
        match self.lend.as_ref().map(ReaderAccess::validate) {
            Some(Err(ReaderAccessError::Config { field, value, must })) => {
                Err(OpenError::Config { field, value, must })
            }
            _ => Ok(()),
        }
    }

    /// The largest UDP payload that one frame carries. Larger ones leave in several frames, at the price of a
    /// copy, where the socket sends multi-buffer packets ([`super::BindingReport::max_segments`]).
    pub fn max_payload(&self) -> usize {
        self.frame_size as usize - HEADER_SPACE
    }

    /// The largest frame on the wire (without its check sequence) that is received in one UMEM frame. In copy mode
    /// the NIC's own buffers are the kernel's. In zero-copy some NICs count the room in whole KiB
    /// (`SRRCTL.BSIZEPKT` of igb, igc and the 82599), cut what is longer, and their drivers hand the pieces over
    /// as packets (`igb_clean_rx_irq_zc`, Linux 6.18); the others lose nothing by the same count.
    fn single_frame(&self) -> u32 {
        let room = self.frame_size - XDP_PACKET_HEADROOM;
        match self.mode {
            BindMode::Copy => room,
            BindMode::ZeroCopy | BindMode::Auto => room & !1023,
        }
    }

    /// As it is bound on an interface of that MTU: with frames of 4096 bytes where those of 2048 would not hold a
    /// packet in zero-copy.
    pub(super) fn fit(&self, mtu: u32) -> Fitted {
        let largest = mtu.saturating_add(LINK_HEADERS);
        let enlarged = Self { frame_size: 4096, ..self.clone() };
        let enlarges = self.mode != BindMode::Copy
            && largest > self.single_frame()
            && largest <= enlarged.single_frame();
        let config = if enlarges { enlarged } else { self.clone() };
        Fitted { multi_buffer: largest > config.single_frame(), config }
    }
}

/// A configuration as it is bound on an interface, whose MTU decides on the size of frames and on whether packets may
/// span them. There is no other way to bind a binding's socket than by one of these, in this process or another.
#[derive(Clone, Debug)]
pub(super) struct Fitted {
    config: XskConfig,
    multi_buffer: bool,
}

impl Fitted {
    /// Whether packets may be larger than a frame, for which bind is asked (`XDP_USE_SG`): drivers without it in
    /// zero-copy refuse that.
    pub(super) fn multi_buffer(&self) -> bool {
        self.multi_buffer
    }

    /// The same with another patience.
    pub(super) fn within(self, bind_patience: Duration) -> Self {
        Self { config: XskConfig { bind_patience, ..self.config }, ..self }
    }
}

impl Deref for Fitted {
    type Target = XskConfig;

    fn deref(&self) -> &XskConfig {
        &self.config
    }
}

/// Memory of a [`super::SharedUmem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmemConfig {
    /// How many frames: the sum of `rx_ring` and `tx_ring` of all sockets that will be bound, and of the quotas
    /// of all readers that may connect. Memory: this times `frame_size`.
    pub frames: u32,
    /// Bytes of a frame, 2048 or 4096. A received packet has 256 fewer, and must fit one frame.
    pub frame_size: u32,
    /// Take the memory from huge pages where the machine has them.
    pub huge_pages: bool,
    /// Make memory that can be lent to other processes ([`super::SharedUmem::share`]). Every reader can read
    /// all of it, what others were lent and what is sent included.
    pub shareable: bool,
}

impl Default for UmemConfig {
    /// 8192 private frames of 4096 bytes (32 MiB): two sockets with the rings of [`XskConfig::new`]. Smaller
    /// frames hold an MTU of 1500 in copy mode, but not in zero-copy on every NIC.
    fn default() -> Self {
        Self { frames: 8192, frame_size: 4096, huge_pages: true, shareable: false }
    }
}

impl UmemConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// [`OpenError::Config`] names the first that is out of range.
    pub fn validate(&self) -> Result<(), OpenError> {
        let complain = |field, value: u32, must| Err(OpenError::Config { field, value: value.into(), must });
        if self.frame_size != 2048 && self.frame_size != 4096 {
            return complain("frame_size", self.frame_size, "must be 2048 or 4096");
        }
        // Two rings of 64 entries; 4 GiB.
        if !(128..=1 << 20).contains(&self.frames) {
            return complain("frames", self.frames, "must be 128 to 1048576");
        }
        Ok(())
    }
}

/// Which way the datagrams of a queue leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransmitVia {
    /// AF_XDP, and the kernel socket only where AF_XDP cannot.
    #[default]
    Xsk,
    /// The kernel socket always: the hybrid of AF_XDP receive and GSO transmit.
    Kernel,
}

/// What becomes of a socket that fails again soon after it was replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It is replaced again, for ever: the mode is kept. The kernel socket serves between the tries.
    #[default]
    Replace,
    /// The kernel socket takes over for good: transmission after two failures to send, the whole queue after
    /// three to receive.
    Demote,
}

/// How [`super::XskIo`] works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XskIoConfig {
    /// Verify UDP checksums on receipt. Off by default: what QUIC carries is authenticated, and senders on
    /// the same machine (a veth peer) leave the checksum unfinished, which fails verification. The kernel
    /// sockets always verify.
    pub verify_checksum: bool,
    /// Packets taken from a socket in one turn.
    pub batch: usize,
    /// TTL or hop limit of what AF_XDP sends.
    pub ttl: u8,
}

impl Default for XskIoConfig {
    fn default() -> Self {
        // 64 packets of 1500 bytes fit the L2 cache beside what handles them, and share one look at the ring.
        Self { verify_checksum: false, batch: 64, ttl: 64 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn zero_copy_frames_hold_the_mtu_in_whole_kibibytes() {
        let of = |mode, frame_size| XskConfig { mode, frame_size, ..XskConfig::new("eth9", 0) };
        for mode in [BindMode::ZeroCopy, BindMode::Auto] {
            assert_eq!((of(mode, 2048).single_frame(), of(mode, 4096).single_frame()), (1024, 3072));
            let fits = [1002, 1500, 3050, 3051, 9000].map(|mtu| {
                let fitted = of(mode, 2048).fit(mtu);
                (fitted.frame_size, fitted.multi_buffer())
            });
            assert_eq!(
                fits,
                [(2048, false), (4096, false), (4096, false), (2048, true), (2048, true)],
                "larger packets need several frames whatever the frame size"
            );
        }
        assert_eq!(of(BindMode::Copy, 2048).single_frame(), 1792);
        let copy = [1770, 1771].map(|mtu| of(BindMode::Copy, 2048).fit(mtu));
        assert_eq!(
            copy.map(|fitted| (fitted.frame_size, fitted.multi_buffer())),
            [(2048, false), (2048, true)]
        );
    }

    #[test]
    fn ring_sizes_and_frame_sizes_are_checked() {
        let good = XskConfig::new("eth9", 0);
        good.validate().unwrap();
        let bad = [
            (XskConfig { rx_ring: 1000, ..good.clone() }, "AF_XDP rx_ring = 1000: must be a power of two"),
            (XskConfig { tx_ring: 0, ..good.clone() }, "AF_XDP tx_ring = 0: must be a power of two"),
            (XskConfig { tx_ring: 65_536, ..good.clone() }, "AF_XDP tx_ring = 65536: must be 64 to 32768"),
            (
                XskConfig { tx_budget: Some(31), ..good.clone() },
                "AF_XDP tx_budget = 31: must be 32 to tx_ring",
            ),
            (XskConfig { frame_size: 3000, ..good }, "AF_XDP frame_size = 3000: must be 2048 or 4096"),
        ];
        for (config, message) in bad {
            assert_eq!(config.validate().unwrap_err().to_string(), message);
        }
    }
}
