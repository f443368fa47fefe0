//! The ABI between a writer and its readers, version 1.
//!
//! `include/expressway/broadcast.h` is the same in C; a test compiles it and compares every size and offset. A
//! reader connects to a unix socket of type SOCK_SEQPACKET and gets one message, a [`Hello`], with two descriptors
//! (SCM_RIGHTS): the ring, and the reader's own control memory.
//!
//! ```text
//!   ring       written by the writer                 control     written by the reader
//!   0          intent, u64                           0           position, u64
//!   64         tail, u64                             64          asks for a wake-up, u64: 0 or 1
//!   128        latest, u64
//!   4096       records: `capacity` bytes
//!
//!   record     0  length, in the low 32 bits; flags, 16 bits; source, 16 bits
//!              8  number of the record in the ring, from 0
//!             16  time stamp
//!             24  number in the feed
//!             32  data, padded to 8 bytes
//! ```

/// First word of a [`Hello`]: `XPBR` in little-endian order.
pub(super) const MAGIC: u32 = 0x5242_5058;
/// Version of everything in this module.
pub(super) const VERSION: u32 = 1;

/// [`Hello::status`]: the two descriptors come with it.
pub(super) const ACCEPTED: u32 = 0;
/// [`Hello::status`]: as many readers are connected as the writer admits.
pub(super) const TOO_MANY_READERS: u32 = 1;
/// [`Hello::status`]: the writer could not make the control memory.
pub(super) const FAILED: u32 = 3;

/// Where the words of a ring lie.
pub(super) const INTENT: usize = 0;
/// Likewise.
pub(super) const TAIL: usize = 64;
/// Likewise.
pub(super) const LATEST: usize = 128;
/// Where its records begin.
pub(super) const RECORDS: usize = 4096;

/// Where a reader says how far it is.
pub(super) const POSITION: usize = 0;
/// Where it asks for a wake-up.
pub(super) const ASLEEP: usize = 64;
/// Bytes of the control memory: what one cache line each takes.
pub(super) const CONTROL: usize = 128;

/// What a reader is told when it connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) status: u32,
    /// Longest record, in bytes.
    pub(super) largest: u32,
    /// Bytes of the records, a power of two.
    pub(super) capacity: u64,
    /// Position that the reader begins at.
    pub(super) position: u64,
    /// Number of the record there.
    pub(super) sequence: u64,
}

impl Hello {
    /// Bytes of the message: `struct expressway_broadcast_hello`.
    pub(super) const SIZE: usize = 40;

    /// The message for a refusal.
    pub(super) fn refusal(status: u32) -> Self {
        Self { status, ..Self::default() }
    }

    /// True if a record of the longest fits the ring, whose size is possible.
    pub(super) fn is_sound(&self) -> bool {
        self.capacity.is_power_of_two()
            && self.capacity <= super::writer::MAX_CAPACITY
            && super::ring::size_of_record(self.largest as usize) as u64 <= self.capacity
            && self.position.is_multiple_of(8)
    }

    /// The message.
    pub(super) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        let words = [MAGIC, VERSION, self.status, self.largest].map(u32::to_ne_bytes);
        let longs = [self.capacity, self.position, self.sequence].map(u64::to_ne_bytes);
        let parts = words.as_flattened().iter().chain(longs.as_flattened());
        bytes.iter_mut().zip(parts).for_each(|(byte, part)| *byte = *part);
        bytes
    }

    /// Reads a message. `Err` has its version if that is not ours, `Err(None)` if it is none of ours at all.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, Option<u32>> {
        let (words, longs) = bytes.split_at_checked(16).ok_or(None)?;
        let mut words = words.chunks_exact(4).map(|part| u32::from_ne_bytes(part.try_into().expect("four")));
        let mut longs = longs.chunks_exact(8).map(|part| u64::from_ne_bytes(part.try_into().expect("eight")));
        let mut word = || words.next().ok_or(None);
        let mut long = || longs.next().ok_or(None);
        if word()? != MAGIC {
            return Err(None);
        }
        match word()? {
            VERSION if bytes.len() == Self::SIZE => {}
            VERSION => return Err(None),
            other => return Err(Some(other)),
        }
        let (status, largest) = (word()?, word()?);
        Ok(Self { status, largest, capacity: long()?, position: long()?, sequence: long()? })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::flags;
    use super::super::ring::HEADER;
    use super::*;

    #[test]
    fn a_hello_survives_its_message() {
        let hello = Hello { status: ACCEPTED, largest: 1500, capacity: 1 << 20, position: 72, sequence: 9 };
        assert_eq!(Hello::from_bytes(&hello.to_bytes()), Ok(hello));
        assert!(hello.is_sound());
        for unsound in [
            Hello { capacity: 1000, ..hello },
            Hello { capacity: 1024, ..hello },
            Hello { capacity: 1 << 60, ..hello },
            Hello { position: 3, ..hello },
        ] {
            assert!(!unsound.is_sound(), "{unsound:?}");
        }
    }

    #[test]
    fn a_foreign_message_and_another_version_are_told_apart() {
        let mut bytes = Hello::default().to_bytes();
        bytes[4] = 2;
        assert_eq!(Hello::from_bytes(&bytes), Err(Some(2)));
        bytes[4] = 1;
        assert_eq!(Hello::from_bytes(&bytes[..39]), Err(None));
        bytes[0] = 0;
        assert_eq!(Hello::from_bytes(&bytes), Err(None));
        assert_eq!(Hello::from_bytes(&[]), Err(None));
    }

    /// The C header says the same, in every size, offset and number.
    #[test]
    fn the_c_header_has_this_abi() {
        crate::sys::abi_test::check(
            "broadcast.h",
            &[
                ("EXPRESSWAY_BROADCAST_MAGIC", MAGIC as usize),
                ("EXPRESSWAY_BROADCAST_VERSION", VERSION as usize),
                ("EXPRESSWAY_BROADCAST_ACCEPTED", ACCEPTED as usize),
                ("EXPRESSWAY_BROADCAST_TOO_MANY_READERS", TOO_MANY_READERS as usize),
                ("EXPRESSWAY_BROADCAST_FAILED", FAILED as usize),
                ("sizeof(struct expressway_broadcast_hello)", Hello::SIZE),
                ("offsetof(struct expressway_broadcast_hello, status)", 8),
                ("offsetof(struct expressway_broadcast_hello, largest)", 12),
                ("offsetof(struct expressway_broadcast_hello, capacity)", 16),
                ("offsetof(struct expressway_broadcast_hello, position)", 24),
                ("offsetof(struct expressway_broadcast_hello, sequence)", 32),
                ("offsetof(struct expressway_broadcast_ring, intent)", INTENT),
                ("offsetof(struct expressway_broadcast_ring, tail)", TAIL),
                ("offsetof(struct expressway_broadcast_ring, latest)", LATEST),
                ("offsetof(struct expressway_broadcast_ring, records)", RECORDS),
                ("offsetof(struct expressway_broadcast_control, position)", POSITION),
                ("offsetof(struct expressway_broadcast_control, asleep)", ASLEEP),
                ("sizeof(struct expressway_broadcast_control)", CONTROL),
                ("EXPRESSWAY_BROADCAST_HEADER", HEADER),
                ("EXPRESSWAY_RECORD_LATE", flags::LATE.into()),
                ("EXPRESSWAY_RECORD_GAP", flags::GAP.into()),
                ("EXPRESSWAY_RECORD_SESSION", flags::SESSION.into()),
                ("EXPRESSWAY_RECORD_RESET", flags::RESET.into()),
                ("EXPRESSWAY_RECORD_END", flags::END.into()),
                ("EXPRESSWAY_RECORD_STAMP_NIC", flags::STAMP_NIC.into()),
                ("EXPRESSWAY_RECORD_STAMP_XDP", flags::STAMP_XDP.into()),
                ("EXPRESSWAY_RECORD_STAMP_KERNEL", flags::STAMP_KERNEL.into()),
            ],
        );
    }
}
