//! The header at the start of measured datagrams.
//!
//! ```text
//!  0               8               16      20      24
//! +---------------+---------------+-------+-------+----------------
//! | sequence      | time          | flow  | magic | anything
//! +---------------+---------------+-------+-------+----------------
//! ```
//!
//! All fields are in network byte order. The sequence comes first, so code that reads plain 64-bit sequence
//! numbers reads these too. The time is when the datagram was due to be sent, not when it was sent. A
//! latency counted from it includes the sender's lateness, so a sender held up by the receiver hides nothing
//! ("coordinated omission"). The time is of CLOCK_REALTIME, the clock of the kernel's receive timestamps.
//! Across hosts it is as good as their clocks agree.

use rustix::time::{ClockId, clock_gettime};

/// What a measured datagram says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    /// Number of the datagram in its flow, from 0.
    pub sequence: u64,
    /// When it was due to be sent, in ns of CLOCK_REALTIME (since 1970).
    pub time: u64,
    /// Number of the flow, from 0: one source address and port, one destination.
    pub flow: u32,
}

impl Probe {
    /// Bytes of the header.
    pub const LENGTH: usize = 24;
    /// "EXPG", behind the fields: a datagram without it is not of the generator.
    pub const MAGIC: u32 = 0x4558_5047;

    /// The header's bytes.
    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.time.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.flow.to_be_bytes());
        bytes[20..].copy_from_slice(&Self::MAGIC.to_be_bytes());
        bytes
    }

    /// The header at the start of a payload. `None` where the payload is shorter or has no [`Self::MAGIC`].
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (header, _) = payload.split_first_chunk::<{ Self::LENGTH }>()?;
        let (sequence, rest) = header.split_first_chunk()?;
        let (time, rest) = rest.split_first_chunk()?;
        let (flow, magic) = rest.split_first_chunk()?;
        (magic == Self::MAGIC.to_be_bytes()).then(|| Self {
            sequence: u64::from_be_bytes(*sequence),
            time: u64::from_be_bytes(*time),
            flow: u32::from_be_bytes(*flow),
        })
    }

    /// The clock of [`Self::time`], now: ns of CLOCK_REALTIME. 0 before 1970.
    pub fn now() -> u64 {
        let now = clock_gettime(ClockId::Realtime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_the_documented_one() {
        let probe = Probe { sequence: 0x0102_0304_0506_0708, time: 0x1112_1314_1516_1718, flow: 0x2122_2324 };
        let bytes = probe.to_bytes();
        assert_eq!(bytes[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[8..16], [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        assert_eq!(bytes[16..], *b"\x21\x22\x23\x24EXPG");
    }

    #[test]
    fn other_payloads_are_no_probes() {
        let bytes = Probe { sequence: 1, time: 2, flow: 3 }.to_bytes();
        assert_eq!(Probe::parse(&bytes[..Probe::LENGTH - 1]), None, "a byte short");
        assert_eq!(Probe::parse(&[]), None);
        for index in 20..Probe::LENGTH {
            let mut other = bytes;
            other[index] ^= 1;
            assert_eq!(Probe::parse(&other), None, "byte {index}");
        }
    }

    #[test]
    fn the_clock_is_the_wall_clock() {
        let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        let now = u128::from(Probe::now());
        let after = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        assert!(before <= now && now <= after, "{before} {now} {after}");
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(sequence: u64, time: u64, flow: u32, behind: Vec<u8>) {
            let probe = Probe { sequence, time, flow };
            let payload = [&probe.to_bytes()[..], &behind].concat();
            prop_assert_eq!(Probe::parse(&payload), Some(probe));
        }
    }
}
