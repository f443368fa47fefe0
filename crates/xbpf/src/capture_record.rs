//! What the capture programs write, as `bpf/include/capture_shared.h` has it.

use std::mem::offset_of;

use crate::skeleton::capture_types::{capture_asked, capture_flag, capture_kind, capture_record};
use crate::xdp_drops::XdpDrop;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureKind {
    /// A packet before an XDP program.
    XdpEntry,
    /// A packet after it; `result` is the verdict.
    XdpExit,
    /// A packet that leaves by AF_XDP in copy mode.
    XskCopy,
    /// A packet, or its first piece, that leaves by AF_XDP in zero-copy mode.
    XskZeroCopy,
    /// A packet that the kernel receives.
    KernelReceive,
    /// A packet that the kernel transmits.
    KernelTransmit,
    /// A packet that an XDP program redirects to the interface.
    XdpTransmit,
    /// Of an earlier record's packet: the verdict, in `result`.
    Verdict,
    /// Of an earlier record's packet: its redirect, with 0 or a negative errno in `result`.
    Redirect,
    /// Of an earlier record's packet: what its device said, in `result`.
    Sent,
    /// Of an earlier record's packet: further octets.
    Piece,
}

impl CaptureKind {
    /// Whether such a record is a packet's first.
    #[must_use]
    pub const fn begins_packet(self) -> bool {
        !matches!(self, Self::Verdict | Self::Redirect | Self::Sent | Self::Piece)
    }
}

/// A record as it lies in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct CaptureRecord<'a> {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// The packet's, unique in a capture.
    pub id: u64,
    /// The socket's inode; 0 if unknown.
    pub inode: u64,
    /// The interface.
    pub ifindex: u32,
    /// The queue.
    pub queue: Option<u32>,
    /// The packet's length, or this piece's, in octets.
    pub length: u32,
    /// The sender; 0 if unknown.
    pub pid: u32,
    /// As the kind says; the reason of a drop.
    pub result: i32,
    /// What it is about.
    pub kind: CaptureKind,
    /// With the verdict `XDP_DROP` of a program of ours: why.
    pub drop: Option<XdpDrop>,
    /// The filter could not decide.
    pub undecided: bool,
    /// A [`CaptureKind::Piece`] follows.
    pub more: bool,
    /// It is dropped.
    pub dropped: bool,
    /// Records may follow that say what became of it.
    pub followed: bool,
    /// What TX metadata asks for: a checksum from one octet on, to be put so many behind it.
    pub checksum: Option<(u16, u16)>,
    /// Likewise: the time of sending.
    pub timestamp: bool,
    /// Likewise: when to send it, by the device's clock.
    pub launch_time: Option<u64>,
    /// The sender's name, up to the first zero.
    pub comm: &'a [u8],
    /// What comes before `payload`.
    pub prefix: &'a [u8],
    /// Octets of `payload` that `prefix` stands for.
    pub skip: usize,
    /// Octets of VLAN tags behind the addresses that are no part of the packet as its interface has it.
    pub strip: usize,
    /// The packet's octets.
    pub payload: &'a [u8],
    /// `prefix` and `payload` as they lie behind each other.
    pub whole: &'a [u8],
}

pub(crate) fn u64_at(data: &[u8], at: usize) -> Option<u64> {
    data.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

impl<'a> CaptureRecord<'a> {
    /// A record without prefix as the programs write it, for tests of what reads them.
    #[doc(hidden)]
    #[must_use]
    pub fn written(
        kind: CaptureKind,
        (time, id): (u64, u64),
        more: bool,
        result: i32,
        payload: &[u8],
    ) -> Vec<u8> {
        let kind = match kind {
            CaptureKind::XdpEntry => capture_kind::CAPTURE_XDP_ENTRY,
            CaptureKind::XdpExit => capture_kind::CAPTURE_XDP_EXIT,
            CaptureKind::XskCopy => capture_kind::CAPTURE_XSK_COPY,
            CaptureKind::XskZeroCopy => capture_kind::CAPTURE_XSK_ZERO_COPY,
            CaptureKind::KernelReceive => capture_kind::CAPTURE_KERNEL_RECEIVE,
            CaptureKind::KernelTransmit => capture_kind::CAPTURE_KERNEL_TRANSMIT,
            CaptureKind::XdpTransmit => capture_kind::CAPTURE_XDP_TRANSMIT,
            CaptureKind::Verdict => capture_kind::CAPTURE_VERDICT,
            CaptureKind::Redirect => capture_kind::CAPTURE_REDIRECT,
            CaptureKind::Sent => capture_kind::CAPTURE_SENT,
            CaptureKind::Piece => capture_kind::CAPTURE_PIECE_MORE,
        };
        let flags = if more { capture_flag::CAPTURE_MORE.0 } else { 0 };
        let length = (payload.len() as u32).to_ne_bytes();
        let mut record = vec![0; size_of::<capture_record>()];
        for (at, value) in [
            (offset_of!(capture_record, time), &time.to_ne_bytes()[..]),
            (offset_of!(capture_record, id), &id.to_ne_bytes()),
            (offset_of!(capture_record, length), &length),
            (offset_of!(capture_record, payload), &length),
            (offset_of!(capture_record, result), &result.to_ne_bytes()),
            (offset_of!(capture_record, kind), &[kind.0 as u8]),
            (offset_of!(capture_record, flags), &[flags as u8]),
        ] {
            record[at..at + value.len()].copy_from_slice(value);
        }
        record.extend_from_slice(payload);
        record
    }

    /// Which packet a record is about; `None` if it is none.
    #[must_use]
    pub fn packet(data: &[u8]) -> Option<u64> {
        u64_at(data, offset_of!(capture_record, id))
    }

    /// Reads a record; `None` if it is none.
    #[must_use]
    pub fn read(data: &'a [u8]) -> Option<Self> {
        let octet = |at: usize| data.get(at).copied();
        let word = |at| u32_at(data, at);
        let kind = match capture_kind(u32::from(octet(offset_of!(capture_record, kind))?)) {
            capture_kind::CAPTURE_XDP_ENTRY => CaptureKind::XdpEntry,
            capture_kind::CAPTURE_XDP_EXIT => CaptureKind::XdpExit,
            capture_kind::CAPTURE_XSK_COPY => CaptureKind::XskCopy,
            capture_kind::CAPTURE_XSK_ZERO_COPY => CaptureKind::XskZeroCopy,
            capture_kind::CAPTURE_KERNEL_RECEIVE => CaptureKind::KernelReceive,
            capture_kind::CAPTURE_KERNEL_TRANSMIT => CaptureKind::KernelTransmit,
            capture_kind::CAPTURE_XDP_TRANSMIT => CaptureKind::XdpTransmit,
            capture_kind::CAPTURE_VERDICT => CaptureKind::Verdict,
            capture_kind::CAPTURE_REDIRECT => CaptureKind::Redirect,
            capture_kind::CAPTURE_SENT => CaptureKind::Sent,
            capture_kind::CAPTURE_PIECE_MORE => CaptureKind::Piece,
            _ => return None,
        };
        let flags = u32::from(octet(offset_of!(capture_record, flags))?);
        let has = |flag: capture_flag| flags & flag.0 != 0;
        let asked = match kind {
            CaptureKind::XskCopy | CaptureKind::XskZeroCopy => {
                u32::from(octet(offset_of!(capture_record, asked))?)
            }
            _ => 0,
        };
        let asks = |what: capture_asked| asked & what.0 != 0;
        let result = word(offset_of!(capture_record, result))?;
        let drop = offset_of!(capture_record, drop);
        let drop = u16::from_ne_bytes(data.get(drop..drop + 2)?.try_into().ok()?);
        let launch = u64_at(data, offset_of!(capture_record, launch))?;
        let comm = data.get(offset_of!(capture_record, comm)..)?.get(..16)?;
        let body = data.get(size_of::<capture_record>()..)?;
        let prefix = usize::from(octet(offset_of!(capture_record, prefix))?);
        let length = prefix + usize::try_from(word(offset_of!(capture_record, payload))?).ok()?;
        let whole = body.get(..length)?;
        let (prefix, payload) = whole.split_at_checked(prefix)?;
        Some(Self {
            time: u64_at(data, offset_of!(capture_record, time))?,
            id: u64_at(data, offset_of!(capture_record, id))?,
            inode: u64_at(data, offset_of!(capture_record, inode))?,
            ifindex: word(offset_of!(capture_record, ifindex))?,
            queue: word(offset_of!(capture_record, queue)).filter(|queue| *queue != u32::MAX),
            length: word(offset_of!(capture_record, length))?,
            pid: word(offset_of!(capture_record, pid))?,
            result: result.cast_signed(),
            kind,
            drop: XdpDrop::from_number(drop),
            undecided: has(capture_flag::CAPTURE_UNDECIDED),
            more: has(capture_flag::CAPTURE_MORE),
            dropped: has(capture_flag::CAPTURE_DROPPED),
            followed: match kind {
                CaptureKind::XdpEntry | CaptureKind::XdpExit | CaptureKind::XskCopy => true,
                CaptureKind::XdpTransmit => true,
                _ => has(capture_flag::CAPTURE_DIRECT),
            },
            checksum: asks(capture_asked::CAPTURE_TX_CHECKSUM)
                .then_some(((result >> 16) as u16, result as u16)),
            timestamp: asks(capture_asked::CAPTURE_TX_TIMESTAMP),
            launch_time: asks(capture_asked::CAPTURE_TX_LAUNCH).then_some(launch),
            comm: comm.split(|octet| *octet == 0).next().unwrap_or(&[]),
            prefix,
            skip: usize::from(octet(offset_of!(capture_record, skip))?),
            strip: usize::from(octet(offset_of!(capture_record, strip))?),
            payload,
            whole,
        })
    }
}
