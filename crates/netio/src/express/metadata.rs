//! Transmit metadata: what is asked of the kernel for one packet, and the time stamp that it leaves.
//!
//! ```text
//!   frame ┄┄┄┬─ METADATA_LEN bytes ───────────────────────────────────────┬─ packet ┄┄┄
//!            │ flags │ checksum start, offset │ launch time │ sequence     │ headers, payload
//!            │   8   │ or time stamp:     8   │      8      │ 8, our own   │
//! ```
//!
//! The layout is `struct xsk_tx_metadata` (`include/uapi/linux/if_xdp.h` of Linux 6.18, explained in
//! `Documentation/networking/xsk-tx-metadata.rst`). The kernel looks at it only where the descriptor says so. What
//! this module does not do: it decides nothing ([`super::hints`]).

use std::collections::VecDeque;

/// Bytes of metadata in front of a packet, a multiple of 8 below 256 (`xdp_umem_reg` in `net/xdp/xdp_umem.c`): the
/// kernel's 24, and 8 that tell the program which packet it was.
pub(super) const METADATA_LEN: usize = 32;

/// `XDP_TXMD_FLAGS_TIMESTAMP`.
const TIMESTAMP: u64 = 1 << 0;
/// `XDP_TXMD_FLAGS_CHECKSUM`.
const CHECKSUM: u64 = 1 << 1;
/// `XDP_TXMD_FLAGS_LAUNCH_TIME` (Linux 6.15).
const LAUNCH_TIME: u64 = 1 << 2;

/// Times below this many nanoseconds are none: the field still holds the checksum's place, or the clock of a device
/// that was never set has run for less than 5 seconds.
const EARLIEST: u64 = 1 << 32;

/// A checksum that a device is to finish: where it begins to sum, and where the result goes from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unfinished {
    /// Bytes from the start of the packet to the UDP header.
    pub(super) start: u16,
    /// Bytes from there to the checksum field.
    pub(super) offset: u16,
}

/// What is asked for one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    /// Finish this checksum.
    pub(super) checksum: Option<Unfinished>,
    /// Stamp the completion, as that of the packet of this number.
    pub(super) stamp: Option<u64>,
    /// Send not before this time of the device's clock, nanoseconds.
    pub(super) launch: Option<u64>,
}

impl Request {
    /// True if nothing is asked.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.checksum.is_none() && self.stamp.is_none() && self.launch.is_none()
    }

    /// Writes the metadata. Without a request it says that there is none, so that what lay there before is not taken
    /// for a time stamp.
    pub(super) fn write(&self, area: &mut [u8; METADATA_LEN]) {
        let mut flags = 0;
        area.fill(0);
        if let Some(place) = self.checksum {
            flags |= CHECKSUM;
            area[8..10].copy_from_slice(&place.start.to_ne_bytes());
            area[10..12].copy_from_slice(&place.offset.to_ne_bytes());
        }
        if let Some(time) = self.launch {
            flags |= LAUNCH_TIME;
            area[16..24].copy_from_slice(&time.to_ne_bytes());
        }
        if let Some(sequence) = self.stamp {
            flags |= TIMESTAMP;
            area[24..32].copy_from_slice(&sequence.to_ne_bytes());
        }
        area[..8].copy_from_slice(&flags.to_ne_bytes());
    }
}

/// When a packet was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitTime {
    /// Number of the datagram among those that the port has accepted since it was opened, from 0.
    pub sequence: u64,
    /// Nanoseconds: in copy mode of the kernel's TAI clock, at the moment that the driver was done with the packet;
    /// in zero-copy mode of the device's own clock.
    pub nanoseconds: u64,
}

/// Time stamps that wait to be fetched, at most as many as a ring has entries.
#[derive(Debug)]
pub(super) struct Stamps {
    waiting: VecDeque<TransmitTime>,
    capacity: usize,
    /// Stamps not kept because nobody fetched those before.
    pub(super) unfetched: u64,
    /// Requests that were completed without a plausible time.
    pub(super) implausible: u64,
}

impl Stamps {
    pub(super) fn new(capacity: usize) -> Self {
        Self { waiting: VecDeque::with_capacity(capacity), capacity, unfetched: 0, implausible: 0 }
    }

    /// Reads the metadata of a completed packet.
    pub(super) fn completed(&mut self, area: &[u8; METADATA_LEN]) {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&area[at..at + 8]);
            u64::from_ne_bytes(bytes)
        };
        if word(0) & TIMESTAMP == 0 {
            return;
        }
        let time = TransmitTime { sequence: word(24), nanoseconds: word(8) };
        if time.nanoseconds < EARLIEST {
            self.implausible += 1;
        } else if self.waiting.len() == self.capacity {
            self.unfetched += 1;
        } else {
            self.waiting.push_back(time);
        }
    }

    /// The oldest stamp that waits.
    pub(super) fn pop(&mut self) -> Option<TransmitTime> {
        self.waiting.pop_front()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn requests_lie_where_the_kernel_looks() {
        let mut area = [0xff; METADATA_LEN];
        Request {
            checksum: Some(Unfinished { start: 34, offset: 6 }),
            stamp: Some(9),
            launch: Some(0x0102_0304_0506_0708),
        }
        .write(&mut area);
        let native = |value: u64| value.to_ne_bytes();
        assert_eq!(area[..8], native(7));
        assert_eq!(area[8..12], [34u16.to_ne_bytes(), 6u16.to_ne_bytes()].concat());
        assert_eq!(area[12..16], [0; 4]);
        assert_eq!(area[16..24], native(0x0102_0304_0506_0708));
        assert_eq!(area[24..], native(9));
        Request::default().write(&mut area);
        assert_eq!(area, [0; METADATA_LEN]);
    }

    #[test]
    fn only_plausible_stamps_are_kept_and_no_more_than_fit() {
        let mut stamps = Stamps::new(2);
        let mut area = [0; METADATA_LEN];
        stamps.completed(&area);
        assert_eq!((stamps.pop(), stamps.implausible), (None, 0), "none was asked for");
        let asked = Request {
            checksum: Some(Unfinished { start: 34, offset: 6 }),
            stamp: Some(5),
            ..Request::default()
        };
        asked.write(&mut area);
        stamps.completed(&area);
        assert_eq!((stamps.pop(), stamps.implausible), (None, 1), "the kernel wrote nothing");
        area[8..16].copy_from_slice(&1_800_000_000_000_000_000_u64.to_ne_bytes());
        for _ in 0..3 {
            stamps.completed(&area);
        }
        let expected = TransmitTime { sequence: 5, nanoseconds: 1_800_000_000_000_000_000 };
        assert_eq!([stamps.pop(), stamps.pop(), stamps.pop()], [Some(expected), Some(expected), None]);
        assert_eq!(stamps.unfetched, 1);
    }
}
