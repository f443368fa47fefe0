//! Which transmit offloads a port may use: asked for, claimed by the device, and for checksums proven.
//!
//! A driver's claim is not enough for a checksum. virtio_net in zero-copy mode takes the request and sends the packet
//! with the pseudo-header's sum in the field, which every receiver drops. So checksums are computed in software until
//! a [`ChecksumProbe`] has come out of the other end of a wire whole and been judged.

use std::fmt;

use expressway_wire::{ChecksumState, parse_udp};

use super::config::ObtainedMode;
use crate::netdev::Features;

/// Bytes of a probe's payload: odd, so that the sum needs its last byte padded, and longer than a cache line.
pub(super) const PROBE_LEN: usize = 97;
const MAGIC: &[u8; 16] = b"expressway probe";

/// Transmit metadata to ask a port for. Any of them needs Linux 6.11.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitHints {
    /// Time stamps of sent datagrams ([`super::ExpressIo::transmit_times`]).
    pub timestamps: bool,
    /// UDP checksums by the device, from the moment that one is proven ([`super::ExpressIo::trust_checksum`]).
    pub checksum: bool,
    /// Launch times ([`crate::PacketIo::transmit_at`]).
    pub launch_time: bool,
}

impl TransmitHints {
    /// True if metadata is needed at all.
    pub(super) fn any(self) -> bool {
        self.timestamps || self.checksum || self.launch_time
    }
}

/// What became of a wish for an offload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grant {
    /// Nobody asked for it.
    #[default]
    NotAsked,
    /// In use, or for checksums: to be had once proven.
    Granted,
    /// Not to be had, and why.
    Refused(&'static str),
}

impl Grant {
    fn decide(asked: bool, refusal: Option<&'static str>) -> Self {
        match (asked, refusal) {
            (false, _) => Self::NotAsked,
            (true, None) => Self::Granted,
            (true, Some(reason)) => Self::Refused(reason),
        }
    }

    /// True if it may be used.
    #[inline]
    pub fn is_granted(self) -> bool {
        self == Self::Granted
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAsked => f.write_str("not asked for"),
            Self::Granted => f.write_str("granted"),
            Self::Refused(reason) => write!(f, "refused: {reason}"),
        }
    }
}

/// What a port may do by transmit metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitGrants {
    /// Time stamps.
    pub timestamps: Grant,
    /// Checksums, once proven.
    pub checksum: Grant,
    /// Launch times.
    pub launch_time: Grant,
}

impl TransmitGrants {
    /// Each with its name, for logs.
    pub fn named(&self) -> [(&'static str, Grant); 3] {
        [("timestamps", self.timestamps), ("checksum", self.checksum), ("launch time", self.launch_time)]
    }

    /// Decides by the mode that bind obtained, what the device claims (`None`: the kernel does not tell), and
    /// whether the kernel took the metadata.
    pub(super) fn decide(
        asked: TransmitHints,
        mode: ObtainedMode,
        features: Option<Features>,
        metadata: bool,
    ) -> Self {
        let refusal = |claimed: bool, in_copy_mode: Option<&'static str>| match mode {
            _ if !metadata => Some("the kernel has no transmit metadata (Linux 6.11 has)"),
            ObtainedMode::Copy => in_copy_mode,
            ObtainedMode::ZeroCopy if features.is_none() => {
                Some("the kernel does not tell what the device can")
            }
            ObtainedMode::ZeroCopy if claimed => None,
            ObtainedMode::ZeroCopy => Some("the device does not claim it"),
        };
        let claims = features.unwrap_or_default();
        Self {
            timestamps: Grant::decide(asked.timestamps, refusal(claims.tx_timestamp, None)),
            checksum: Grant::decide(asked.checksum, refusal(claims.tx_checksum, None)),
            launch_time: Grant::decide(
                asked.launch_time,
                refusal(claims.tx_launch_time, Some("copy mode has no launch time")),
            ),
        }
    }
}

/// A datagram sent with its checksum left to the device, to be recognised where it arrives.
#[derive(Debug)]
pub struct ChecksumProbe {
    pub(super) ifindex: u32,
    pub(super) queue: u32,
    pub(super) payload: [u8; PROBE_LEN],
}

/// Shows that a device finishes checksums: the key to [`super::ExpressIo::trust_checksum`].
#[derive(Debug)]
pub struct ChecksumProof {
    pub(super) ifindex: u32,
    pub(super) queue: u32,
}

/// How a probe arrived whose checksum was not right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChecksumFault {
    /// The field holds the pseudo-header's sum: nobody finished it.
    #[error("the checksum was left unfinished: the driver took the request and ignored it")]
    Unfinished,
    /// The field holds something else.
    #[error("the checksum is wrong")]
    Wrong,
    /// The field holds 0.
    #[error("the checksum is absent")]
    Absent,
}

impl ChecksumProbe {
    pub(super) fn new(ifindex: u32, queue: u32, number: u64) -> Self {
        let mut payload = [0; PROBE_LEN];
        payload[..16].copy_from_slice(MAGIC);
        payload[16..24].copy_from_slice(&number.to_be_bytes());
        for (place, byte) in payload[24..].iter_mut().enumerate() {
            *byte = (place as u8).wrapping_mul(37) ^ number as u8;
        }
        Self { ifindex, queue, payload }
    }

    /// Judges a frame that arrived at the other end, from its Ethernet header on. `None` if it is another packet.
    /// The receiver must be beyond a wire, or see what a wire would have carried: a stack on the same machine gets
    /// checksums unfinished on purpose.
    pub fn judge(&self, frame: &[u8]) -> Option<Result<ChecksumProof, ChecksumFault>> {
        let layout = parse_udp(frame).ok()?;
        if frame.get(layout.payload())? != self.payload {
            return None;
        }
        Some(match layout.verify_checksum(frame) {
            Ok(ChecksumState::Valid) => Ok(ChecksumProof { ifindex: self.ifindex, queue: self.queue }),
            Ok(ChecksumState::Absent) => Err(ChecksumFault::Absent),
            Err(_) if layout.is_checksum_partial() => Err(ChecksumFault::Unfinished),
            Err(_) => Err(ChecksumFault::Wrong),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use expressway_wire::{ChecksumMode, MacAddr, UdpHeaders};

    use super::*;

    const ALL: TransmitHints = TransmitHints { timestamps: true, checksum: true, launch_time: true };

    #[test]
    fn what_is_granted_follows_mode_claims_and_kernel() {
        let claims = Features { tx_timestamp: true, tx_launch_time: true, ..Features::default() };
        let none = TransmitGrants::decide(TransmitHints::default(), ObtainedMode::Copy, Some(claims), true);
        assert_eq!(none, TransmitGrants::default());

        let zero_copy = TransmitGrants::decide(ALL, ObtainedMode::ZeroCopy, Some(claims), true);
        assert!(zero_copy.timestamps.is_granted() && zero_copy.launch_time.is_granted());
        assert_eq!(zero_copy.checksum, Grant::Refused("the device does not claim it"));

        let copy = TransmitGrants::decide(ALL, ObtainedMode::Copy, None, true);
        assert!(copy.timestamps.is_granted() && copy.checksum.is_granted());
        assert_eq!(copy.launch_time.to_string(), "refused: copy mode has no launch time");

        let untold = TransmitGrants::decide(ALL, ObtainedMode::ZeroCopy, None, true);
        assert!(matches!(untold.timestamps, Grant::Refused(_)));
        let old = TransmitGrants::decide(ALL, ObtainedMode::Copy, Some(claims), false);
        assert!([old.timestamps, old.checksum, old.launch_time].iter().all(|one| !one.is_granted()));
    }

    #[test]
    fn a_probe_is_judged_by_what_its_field_holds() {
        let probe = ChecksumProbe::new(7, 0, 42);
        let headers = UdpHeaders::new(
            MacAddr([2, 0, 0, 0, 0, 1]),
            MacAddr([2, 0, 0, 0, 0, 2]),
            "192.0.2.1:443".parse().unwrap(),
            "192.0.2.2:9".parse().unwrap(),
        );
        let frame = |mode| {
            let mut bytes = vec![0; 256];
            let template = headers.template().unwrap();
            let start = template.header_len();
            bytes[start..start + PROBE_LEN].copy_from_slice(&probe.payload);
            let length = template.write(&mut bytes, PROBE_LEN, mode, 0).unwrap();
            bytes.truncate(length);
            bytes
        };
        let good = frame(ChecksumMode::Full);
        assert!(probe.judge(&good).unwrap().is_ok());
        let partial = frame(ChecksumMode::PseudoOnly);
        assert_eq!(probe.judge(&partial).unwrap().unwrap_err(), ChecksumFault::Unfinished);
        let absent = frame(ChecksumMode::None);
        assert_eq!(probe.judge(&absent).unwrap().unwrap_err(), ChecksumFault::Absent);
        let mut wrong = good.clone();
        wrong[40] ^= 1;
        assert_eq!(probe.judge(&wrong).unwrap().unwrap_err(), ChecksumFault::Wrong);
        assert!(ChecksumProbe::new(7, 0, 43).judge(&good).is_none(), "another probe");
        assert!(probe.judge(&good[..20]).is_none());
    }
}
