//! The properties of a device: one place for the information from ethtool, the netdev family ([`crate::netdev`]) and
//! sysfs.
//!
//! [`DeviceFacts::read`] gathers the facts of one interface and changes nothing; what a driver does not report stays
//! `None`. [`set_feature`] and [`hash_ports`] change the two settings that harm a UDP service. This module makes no
//! judgement (that is up to the code that chooses a mode), and knows nothing about BPF.

mod ethtool;
mod sysfs;

use std::io;

use serde::{Deserialize, Serialize};

use crate::netdev::{Features, Netdev};

pub use ethtool::{Channels, Driver, FLOW_HASHES, FlowHash, Rings, Spread};
pub use ethtool::{channels, feature, hash_ports, set_feature};
pub use sysfs::{Locality, parse_cpu_list};

/// Segmentation of UDP super-packets in the device (`netdev_features_strings` in `net/ethtool/common.c`, as the
/// names below).
pub const UDP_SEGMENTATION: &str = "tx-udp-segmentation";
/// Checksums of what is sent, for any protocol.
pub const TX_CHECKSUM: &str = "tx-checksum-ip-generic";
/// The same, by drivers that do it for one family only.
pub const TX_CHECKSUM_V4: &str = "tx-checksum-ipv4";
/// GRO of datagrams that are to be forwarded: merges QUIC packets of strangers.
pub const GRO_FORWARDING: &str = "rx-udp-gro-forwarding";
/// GRO by list, which chains datagrams.
pub const GRO_LIST: &str = "rx-gro-list";
/// GRO in general.
pub const GRO: &str = "rx-gro";
/// VLAN tags are taken out of received frames, where XDP no longer sees them.
pub const VLAN_STRIPPING: &str = "rx-vlan-hw-parse";
/// TC rules in the device.
pub const HARDWARE_TC: &str = "hw-tc-offload";

/// The features that are asked for.
const FEATURES: [&str; 8] = [
    UDP_SEGMENTATION,
    TX_CHECKSUM,
    TX_CHECKSUM_V4,
    GRO_FORWARDING,
    GRO_LIST,
    GRO,
    VLAN_STRIPPING,
    HARDWARE_TC,
];

/// A feature of a device by its name in ethtool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// It is on.
    pub active: bool,
    /// It cannot be changed.
    pub fixed: bool,
}

/// The facts of one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// Name.
    pub name: String,
    /// Kernel index.
    pub ifindex: u32,
    /// Driver, its version, firmware and bus address.
    pub driver: Option<Driver>,
    /// Queues in use and possible.
    pub channels: Option<Channels>,
    /// Descriptors of the hardware rings.
    pub rings: Option<Rings>,
    /// The features of this module's constants that the kernel knows.
    pub features: Vec<Feature>,
    /// What chooses the receive queue of UDP datagrams.
    pub hashes: Vec<FlowHash>,
    /// How the hash is spread over the receive queues.
    pub spread: Option<Spread>,
    /// What the driver claims of XDP; `None` before Linux 6.3.
    pub xdp: Option<Features>,
    /// NUMA node and the cores near it.
    pub locality: Option<Locality>,
}

impl DeviceFacts {
    /// Reads the facts of interface `name`, of index `ifindex`, in the calling thread's network namespace. Takes
    /// no privilege.
    ///
    /// # Errors
    /// `ENODEV` if there is no such interface.
    pub fn read(name: &str, ifindex: u32) -> io::Result<Self> {
        let features = ethtool::features(name, &FEATURES)?;
        let driver = ethtool::driver(name).ok();
        let channels = channels(name).ok();
        let locality = driver.as_ref().and_then(|driver| sysfs::locality(&driver.bus));
        Ok(Self {
            name: name.to_owned(),
            ifindex,
            rings: ethtool::rings(name).ok(),
            hashes: FLOW_HASHES.iter().filter_map(|(_, word)| ethtool::flow_hash(name, word).ok()).collect(),
            spread: ethtool::spread(name).ok(),
            xdp: Netdev::open().and_then(|mut netdev| netdev.features(ifindex)).ok(),
            features,
            driver,
            channels,
            locality,
        })
    }

    /// Whether a feature is on; false where the kernel knows none of that name.
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|own| own.name == feature && own.active)
    }

    /// Whether a feature is on and may be turned off.
    pub fn can_turn_off(&self, feature: &str) -> bool {
        self.features.iter().any(|own| own.name == feature && own.active && !own.fixed)
    }

    /// The driver's name, or `unknown`.
    pub fn driver_name(&self) -> &str {
        self.driver.as_ref().map_or("unknown", |driver| &driver.name)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_facts_and_nonsense_is_an_error() {
        let lo = DeviceFacts::read("lo", 1).unwrap();
        // NETIF_F_GSO_SOFTWARE is among loopback's fixed features (`gen_lo_setup` in drivers/net/loopback.c).
        assert!(lo.has(UDP_SEGMENTATION) && lo.has(TX_CHECKSUM) && !lo.has("no-such-feature"));
        assert!(lo.channels.is_none() && lo.locality.is_none() && lo.hashes.is_empty());
        assert_eq!(DeviceFacts::read("no-such-if0", 1).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(DeviceFacts::read("", 1).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
