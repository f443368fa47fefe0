//! Reads and sets what the kernel's `netdev` generic netlink family provides: a device's AF_XDP offloads and hints, and
//! the NAPI contexts of its queues (`Documentation/netlink/specs/netdev.yaml`).
//!
//! The features are what a driver *claims*: [`crate::xsk`] verifies more before it relies on them. A kernel before 6.3
//! has no such family, and later ones report more with each release; what is not reported is treated as absent.

mod genetlink;
mod napi;

use std::io;

use genetlink::{Answer, Attribute, GenericSocket};
use serde::{Deserialize, Serialize};

pub use napi::{Napi, NapiGuard, NapiSettings};

/// Commands (`include/uapi/linux/netdev.h`).
const DEV_GET: u8 = 1;
const QUEUE_GET: u8 = 10;
const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;

/// Attributes of a device.
mod dev {
    pub(super) const IFINDEX: u16 = 1;
    pub(super) const XDP_FEATURES: u16 = 3;
    pub(super) const ZC_MAX_SEGS: u16 = 4;
    pub(super) const RX_METADATA: u16 = 5;
    pub(super) const XSK_FEATURES: u16 = 6;
}

/// Attributes of a queue.
mod queue {
    pub(super) const ID: u16 = 1;
    pub(super) const IFINDEX: u16 = 2;
    pub(super) const TYPE: u16 = 3;
    pub(super) const NAPI_ID: u16 = 4;
    /// `NETDEV_QUEUE_TYPE_RX`.
    pub(super) const RECEIVE: u32 = 0;
}

/// What a device says that it can do for AF_XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// Native XDP with redirects: `NETDEV_XDP_ACT_BASIC` and `_REDIRECT`.
    pub xdp: bool,
    /// Sends frames that XDP redirects to it: `NETDEV_XDP_ACT_NDO_XMIT`.
    #[serde(default)]
    pub redirect_target: bool,
    /// Those of several buffers too: `NETDEV_XDP_ACT_NDO_XMIT_SG`.
    #[serde(default)]
    pub redirect_target_multi_buffer: bool,
    /// Zero-copy AF_XDP: `NETDEV_XDP_ACT_XSK_ZEROCOPY`.
    pub zero_copy: bool,
    /// XDP programs run in the device: `NETDEV_XDP_ACT_HW_OFFLOAD`.
    pub offload: bool,
    /// XDP on packets of several buffers: `NETDEV_XDP_ACT_RX_SG`.
    pub multi_buffer: bool,
    /// Frames that one packet sent in zero-copy mode may take; 1 when not told.
    pub zero_copy_segments: u32,
    /// The RX time stamp kfunc (`bpf_xdp_metadata_rx_timestamp`).
    pub rx_timestamp: bool,
    /// The RX hash kfunc (`bpf_xdp_metadata_rx_hash`).
    pub rx_hash: bool,
    /// The RX VLAN kfunc (`bpf_xdp_metadata_rx_vlan_tag`).
    pub rx_vlan_tag: bool,
    /// TX time stamps by transmit metadata, in zero-copy mode.
    pub tx_timestamp: bool,
    /// TX checksums by transmit metadata, in zero-copy mode.
    pub tx_checksum: bool,
    /// Launch times by transmit metadata, in zero-copy mode.
    pub tx_launch_time: bool,
}

impl Features {
    fn read(answer: &Answer) -> Self {
        let has = |attribute, bit: u64| answer.number(attribute).unwrap_or(0) & bit == bit;
        Self {
            xdp: has(dev::XDP_FEATURES, 1 | 2),
            redirect_target: has(dev::XDP_FEATURES, 4),
            redirect_target_multi_buffer: has(dev::XDP_FEATURES, 4 | 64),
            zero_copy: has(dev::XDP_FEATURES, 8),
            offload: has(dev::XDP_FEATURES, 16),
            multi_buffer: has(dev::XDP_FEATURES, 32),
            zero_copy_segments: answer.u32(dev::ZC_MAX_SEGS).unwrap_or(1).max(1),
            rx_timestamp: has(dev::RX_METADATA, 1),
            rx_hash: has(dev::RX_METADATA, 2),
            rx_vlan_tag: has(dev::RX_METADATA, 4),
            tx_timestamp: has(dev::XSK_FEATURES, 1),
            tx_checksum: has(dev::XSK_FEATURES, 2),
            tx_launch_time: has(dev::XSK_FEATURES, 4),
        }
    }
}

/// Asks the `netdev` family of one network namespace.
#[derive(Debug)]
pub struct Netdev {
    socket: GenericSocket,
}

impl Netdev {
    /// For the calling thread's network namespace.
    ///
    /// # Errors
    /// ENOENT from a kernel before 6.3.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: GenericSocket::open("netdev")? })
    }

    /// What a device claims.
    ///
    /// # Errors
    /// ENODEV for an unknown interface.
    pub fn features(&mut self, ifindex: u32) -> io::Result<Features> {
        let answer = self.socket.ask(DEV_GET, &[Attribute::u32(dev::IFINDEX, ifindex)])?;
        answer.as_ref().map(Features::read).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The NAPI context of a receive queue; `None` where the driver ties none to its queues.
    ///
    /// # Errors
    /// ENODEV or ENOENT for an unknown interface or queue, or one that is down; EOPNOTSUPP before Linux 6.8.
    pub fn napi_of_queue(&mut self, ifindex: u32, number: u32) -> io::Result<Option<u32>> {
        let wanted = [
            Attribute::u32(queue::IFINDEX, ifindex),
            Attribute::u32(queue::TYPE, queue::RECEIVE),
            Attribute::u32(queue::ID, number),
        ];
        let answer = self.socket.ask(QUEUE_GET, &wanted)?;
        Ok(answer.and_then(|answer| answer.u32(queue::NAPI_ID)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `None` on a kernel without the family.
    fn netdev() -> Option<Netdev> {
        match Netdev::open() {
            Ok(netdev) => Some(netdev),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");
                eprintln!("skipped: this kernel has no netdev family (Linux 6.3 has)");
                None
            }
        }
    }

    #[test]
    fn loopback_claims_no_offload() {
        let Some(mut netdev) = netdev() else { return };
        let features = netdev.features(1).unwrap();
        assert!(!features.zero_copy && !features.tx_checksum && !features.rx_hash, "{features:?}");
        assert_eq!(features.zero_copy_segments, 1);
        assert_eq!(netdev.napis(1).unwrap(), []);
    }

    #[test]
    fn an_unknown_interface_is_an_error() {
        let Some(mut netdev) = netdev() else { return };
        assert_eq!(netdev.features(0x7fff_fff0).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert!(netdev.napi_of_queue(0x7fff_fff0, 0).is_err());
    }
}
