//! The ABI between a receiver and the readers of its UMEM, version 1.
//!
//! `include/expressway/umem.h` is the same in C; a test compiles it and compares every size and offset.
//!
//! A reader connects to a unix socket of type SOCK_SEQPACKET and gets one message, a [`Hello`], with two file
//! descriptors (SCM_RIGHTS): the UMEM, of which nobody can make a writable mapping any more, and the reader's
//! own *control memory*, which both sides write. That holds two rings of the kind that [`crate::ring`]
//! describes, each a block of its own at a page boundary:
//!
//! ```text
//!   offset   what                         written by
//!   0        producer index, u32          producer
//!   64       consumer index, u32          consumer
//!   128      flags, u32                   consumer: bit 0 asks for a wake-up
//!   192      entries
//!
//!   block      producer → consumer     entry
//!   packets    receiver → reader       PacketDescriptor: a packet lent
//!   returns    reader → receiver       u64: any UMEM address within the frame given back
//! ```
//!
//! A wake-up is an empty message of one byte on the socket; the end of the socket is the end of all lending. A
//! reader sends nothing on it.
//!
//! What this module does not do: it moves no frames ([`super::table`]) and makes no system calls
//! ([`super::server`], [`super::reader`]).

use crate::ring::RingOffset;

/// First word of a [`Hello`]: `XPUM` in little-endian order.
pub(crate) const MAGIC: u32 = 0x4d55_5058;
/// Version of everything in this module.
pub(crate) const VERSION: u32 = 1;

/// [`Hello::status`]: the two descriptors come with it.
pub(crate) const ACCEPTED: u32 = 0;
/// [`Hello::status`]: as many readers are connected as the receiver admits.
pub(crate) const TOO_MANY_READERS: u32 = 1;
/// [`Hello::status`]: the UMEM has not enough frames for another quota.
pub(crate) const NO_FRAMES: u32 = 2;
/// [`Hello::status`]: the receiver could not make the control memory.
pub(crate) const FAILED: u32 = 3;

/// [`PacketDescriptor::flags`] of what [`crate::xsk::XskIo`] lends: mask of the bytes in front of the UDP payload.
pub(crate) const PAYLOAD: u16 = 0x0fff;
/// [`PacketDescriptor::flags`] of what [`crate::xsk::XskIo`] lends: the time stamp is the device's.
pub(crate) const STAMP_NIC: u16 = 0x1000;
/// [`PacketDescriptor::flags`] of what [`crate::xsk::XskIo`] lends: the time stamp is the XDP program's.
pub(crate) const STAMP_XDP: u16 = 0x2000;

/// Where the entries of a ring begin in its block.
const ENTRIES: u64 = 192;

/// The parts of a ring within its block.
pub(crate) const BLOCK: RingOffset = RingOffset { producer: 0, consumer: 64, desc: ENTRIES, flags: 128 };

/// One packet lent to a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct PacketDescriptor {
    /// Where the packet starts in the UMEM, in bytes.
    pub(crate) addr: u64,
    /// The receiver's time of the packet in nanoseconds; which clock is for the two to agree.
    pub(crate) timestamp: u64,
    /// Number of the packet among those meant for this reader: a gap is what its quota had no room for.
    pub(crate) sequence: u64,
    /// Bytes of the packet.
    pub(crate) len: u32,
    /// What the receiver wants to say of the packet; no bit has a meaning here.
    pub(crate) flags: u16,
    /// The receiver's socket that it came in on, numbered from 0 in the order of binding.
    pub(crate) source: u16,
}

const _: () = assert!(size_of::<PacketDescriptor>() == 32);

/// What a reader is told when it connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) status: u32,
    /// Bytes of a frame, a power of two.
    pub(crate) frame_size: u32,
    /// Bytes of the UMEM's mapping: whole pages, of the kind that it is made of.
    pub(crate) umem_length: u64,
    /// Entries of either ring, a power of two.
    pub(crate) entries: u32,
    /// Frames that the reader may hold at a time.
    pub(crate) quota: u32,
    /// Where the packets' block starts in the control memory.
    pub(crate) packets: u64,
    /// Where the returns' block starts.
    pub(crate) returns: u64,
    /// Bytes of the control memory.
    pub(crate) control_length: u64,
}

impl Hello {
    /// Bytes of the message: `struct expressway_hello`.
    pub(crate) const SIZE: usize = 64;

    /// The message for a refusal.
    pub(crate) fn refusal(status: u32) -> Self {
        Self { status, ..Self::default() }
    }

    /// Lays both rings out for a quota, in pages of `page` bytes.
    pub(crate) fn new(umem_length: u64, frame_size: u32, quota: u32, page: u64) -> Self {
        let entries = quota.next_power_of_two();
        let packets = ENTRIES + u64::from(entries) * size_of::<PacketDescriptor>() as u64;
        let returns = packets.next_multiple_of(page);
        let control_length = (returns + ENTRIES + u64::from(entries) * 8).next_multiple_of(page);
        Self {
            status: ACCEPTED,
            frame_size,
            umem_length,
            entries,
            quota,
            packets: 0,
            returns,
            control_length,
        }
    }

    /// True if both rings lie within the control memory.
    pub(crate) fn is_sound(&self) -> bool {
        let fits = |start: u64, entry: usize| {
            let length = ENTRIES + u64::from(self.entries) * entry as u64;
            start.checked_add(length).is_some_and(|end| end <= self.control_length)
        };
        fits(self.packets, size_of::<PacketDescriptor>()) && fits(self.returns, size_of::<u64>())
    }

    /// The message.
    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let words = [MAGIC, VERSION, self.status, self.frame_size];
        words.iter().enumerate().for_each(|(at, word)| put(&mut bytes, 4 * at, &word.to_ne_bytes()));
        put(&mut bytes, 16, &self.umem_length.to_ne_bytes());
        put(&mut bytes, 24, &self.entries.to_ne_bytes());
        put(&mut bytes, 28, &self.quota.to_ne_bytes());
        put(&mut bytes, 32, &self.packets.to_ne_bytes());
        put(&mut bytes, 40, &self.returns.to_ne_bytes());
        put(&mut bytes, 48, &self.control_length.to_ne_bytes());
        bytes
    }

    /// Reads a message. `Err` has its version if that is not ours, `Err(None)` if it is none of ours at all.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Option<u32>> {
        let word =
            |at: usize| bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map(u32::from_ne_bytes);
        let long =
            |at: usize| bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map(u64::from_ne_bytes);
        if word(0) != Some(MAGIC) {
            return Err(None);
        }
        match word(4) {
            Some(VERSION) if bytes.len() == Self::SIZE => {}
            Some(VERSION) => return Err(None),
            other => return Err(other),
        }
        let read = || {
            Some(Self {
                status: word(8)?,
                frame_size: word(12)?,
                umem_length: long(16)?,
                entries: word(24)?,
                quota: word(28)?,
                packets: long(32)?,
                returns: long(40)?,
                control_length: long(48)?,
            })
        };
        read().ok_or(None)
    }
}

fn put(bytes: &mut [u8; Hello::SIZE], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_hello_survives_its_message() {
        let hello = Hello::new(1 << 22, 2048, 100, 4096);
        assert_eq!((hello.entries, hello.quota), (128, 100));
        assert!(hello.returns >= ENTRIES + 128 * 32 && hello.returns.is_multiple_of(4096));
        assert!(hello.control_length >= hello.returns + ENTRIES + 128 * 8);
        assert_eq!(Hello::from_bytes(&hello.to_bytes()), Ok(hello));
        assert!(hello.is_sound());
        assert!(!Hello { returns: u64::MAX, ..hello }.is_sound());
        assert!(!Hello { entries: 1024, ..hello }.is_sound());
    }

    #[test]
    fn a_foreign_message_and_another_version_are_told_apart() {
        let mut bytes = Hello::default().to_bytes();
        bytes[4] = 2;
        assert_eq!(Hello::from_bytes(&bytes), Err(Some(2)));
        bytes[0] = 0;
        assert_eq!(Hello::from_bytes(&bytes), Err(None));
        assert_eq!(Hello::from_bytes(&[]), Err(None));
    }

    /// The C header says the same, in every size, offset and number.
    #[test]
    fn the_c_header_has_this_abi() {
        use std::mem::offset_of;
        let equal = [
            ("EXPRESSWAY_MAGIC", MAGIC as usize),
            ("EXPRESSWAY_VERSION", VERSION as usize),
            ("EXPRESSWAY_ACCEPTED", ACCEPTED as usize),
            ("EXPRESSWAY_TOO_MANY_READERS", TOO_MANY_READERS as usize),
            ("EXPRESSWAY_NO_FRAMES", NO_FRAMES as usize),
            ("EXPRESSWAY_FAILED", FAILED as usize),
            ("EXPRESSWAY_DESC_PAYLOAD", PAYLOAD.into()),
            ("EXPRESSWAY_DESC_STAMP_NIC", STAMP_NIC.into()),
            ("EXPRESSWAY_DESC_STAMP_XDP", STAMP_XDP.into()),
            ("sizeof(struct expressway_hello)", Hello::SIZE),
            ("offsetof(struct expressway_hello, status)", 8),
            ("offsetof(struct expressway_hello, frame_size)", 12),
            ("offsetof(struct expressway_hello, umem_length)", 16),
            ("offsetof(struct expressway_hello, entries)", 24),
            ("offsetof(struct expressway_hello, quota)", 28),
            ("offsetof(struct expressway_hello, packets)", 32),
            ("offsetof(struct expressway_hello, returns)", 40),
            ("offsetof(struct expressway_hello, control_length)", 48),
            ("sizeof(struct expressway_desc)", size_of::<PacketDescriptor>()),
            ("offsetof(struct expressway_desc, addr)", offset_of!(PacketDescriptor, addr)),
            ("offsetof(struct expressway_desc, timestamp)", offset_of!(PacketDescriptor, timestamp)),
            ("offsetof(struct expressway_desc, sequence)", offset_of!(PacketDescriptor, sequence)),
            ("offsetof(struct expressway_desc, len)", offset_of!(PacketDescriptor, len)),
            ("offsetof(struct expressway_desc, flags)", offset_of!(PacketDescriptor, flags)),
            ("offsetof(struct expressway_desc, source)", offset_of!(PacketDescriptor, source)),
            ("offsetof(struct expressway_ring, producer)", BLOCK.producer as usize),
            ("offsetof(struct expressway_ring, consumer)", BLOCK.consumer as usize),
            ("offsetof(struct expressway_ring, flags)", BLOCK.flags as usize),
            ("offsetof(struct expressway_ring, entries)", BLOCK.desc as usize),
        ];
        crate::sys::abi_test::check("umem.h", &equal);
    }
}
