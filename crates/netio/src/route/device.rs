//! Questions to a device by ethtool: the number of its queues, whether it segments UDP, and which of its
//! settings harm the service.
#![allow(unsafe_code)] // SIOCETHTOOL passes a pointer to a structure; no safe wrapper exists.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// `SIOCETHTOOL` (`linux/sockios.h`).
const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// `ETHTOOL_GCHANNELS` (`linux/ethtool.h`).
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `ETHTOOL_GSSET_INFO` (`linux/ethtool.h`).
const ETHTOOL_GSSET_INFO: u32 = 0x37;
/// `ETHTOOL_GSTRINGS` (`linux/ethtool.h`).
const ETHTOOL_GSTRINGS: u32 = 0x1b;
/// `ETHTOOL_GFEATURES` (`linux/ethtool.h`).
const ETHTOOL_GFEATURES: u32 = 0x3a;
/// `ETH_SS_FEATURES`: the string set of feature names (`linux/ethtool.h`).
const ETH_SS_FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`: bytes of one name (`linux/ethtool.h`).
const GSTRING_LEN: usize = 32;
/// The name of UDP segmentation among the features (`netdev_features_strings` in `net/ethtool/common.c`).
const UDP_SEGMENTATION: &[u8] = b"tx-udp-segmentation";
/// `NETIF_F_GRO_UDP_FWD_BIT`, in the same table.
const GRO_FORWARDING: &[u8] = b"rx-udp-gro-forwarding";
/// `ETHTOOL_GRXFH` (`linux/ethtool.h`).
const ETHTOOL_GRXFH: u32 = 0x29;
/// `UDP_V4_FLOW` and `UDP_V6_FLOW` (`linux/ethtool.h`), with what `ethtool -N` calls them.
const UDP_FLOWS: [(u32, &str); 2] = [(0x02, "udp4"), (0x06, "udp6")];
/// `RXH_L4_B_0_1 | RXH_L4_B_2_3`: both ports (`linux/ethtool.h`).
const RXH_PORTS: u64 = 1 << 6 | 1 << 7;
/// The most features that are asked for; kernels have about 64.
const MAX_FEATURES: usize = 256;

/// `struct ethtool_channels` (`linux/ethtool.h`).
#[repr(C)]
#[derive(Default)]
struct EthtoolChannels {
    cmd: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// The queues of a device that are in use now, and the most that it could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// RX queues in use.
    pub rx: u32,
    /// TX queues in use.
    pub tx: u32,
    /// RX queues possible.
    pub max_rx: u32,
    /// TX queues possible.
    pub max_tx: u32,
}

/// Asks for the queues of interface `name` in the calling thread's network namespace.
///
/// # Errors
/// `EOPNOTSUPP` when the driver does not tell, which mostly means one queue (see
/// [`Link::rx_queues`](super::Link)); `ENODEV` for an unknown interface; `InvalidInput` for a name longer than
/// 15 bytes.
pub fn channels(name: &str) -> io::Result<Channels> {
    let mut answer = EthtoolChannels { cmd: ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
    ethtool(name, &mut answer)?;
    Ok(Channels {
        rx: answer.rx + answer.combined,
        tx: answer.tx + answer.combined,
        max_rx: answer.max_rx + answer.max_combined,
        max_tx: answer.max_tx + answer.max_combined,
    })
}

/// `struct ethtool_sset_info` with room for one set.
#[repr(C)]
struct SetInfo {
    cmd: u32,
    reserved: u32,
    mask: u64,
    length: u32,
}

/// `struct ethtool_gstrings` with its strings.
#[repr(C)]
struct Strings {
    cmd: u32,
    set: u32,
    length: u32,
    names: [[u8; GSTRING_LEN]; MAX_FEATURES],
}

/// `struct ethtool_gfeatures` with its blocks of 32 features: available, requested, active, never changed.
#[repr(C)]
struct Features {
    cmd: u32,
    size: u32,
    blocks: [[u32; 4]; MAX_FEATURES / 32],
}

/// Whether interface `name` takes UDP super-packets and segments them itself (`tx-udp-segmentation` is on),
/// in the calling thread's network namespace. False when the kernel knows no such feature.
///
/// # Errors
/// As [`channels`].
pub fn udp_segmentation(name: &str) -> io::Result<bool> {
    feature(name, UDP_SEGMENTATION)
}

/// `struct ethtool_rxnfc` as far as ETHTOOL_GRXFH reads and writes it (`ethtool_rxnfc_copy_struct` in
/// `net/ethtool/ioctl.c`).
#[repr(C)]
struct FlowHash {
    cmd: u32,
    flow: u32,
    data: u64,
}

/// The settings of interface `name` that harm a UDP service on it, each with the command that mends it: GRO
/// that merges datagrams to be forwarded, and receive queues chosen without the ports. What the driver does
/// not tell is taken for harmless.
pub fn hazards(name: &str) -> Vec<String> {
    let mut hazards = Vec::new();
    if feature(name, GRO_FORWARDING).unwrap_or(false) {
        hazards.push(format!(
            "rx-udp-gro-forwarding merges the datagrams of a flow: `ethtool -K {name} rx-udp-gro-forwarding off`"
        ));
    }
    if channels(name).is_ok_and(|channels| channels.rx > 1) {
        for (flow, word) in UDP_FLOWS {
            let mut hash = FlowHash { cmd: ETHTOOL_GRXFH, flow, data: 0 };
            if ethtool(name, &mut hash).is_ok() && !hashes_ports(hash.data) {
                hazards.push(format!(
                    "{word} is spread over the receive queues by address alone: `ethtool -N {name} rx-flow-hash {word} sdfn`"
                ));
            }
        }
    }
    hazards
}

fn hashes_ports(fields: u64) -> bool {
    fields & RXH_PORTS == RXH_PORTS
}

/// Whether the feature of that name is active.
fn feature(name: &str, wanted: &[u8]) -> io::Result<bool> {
    let mut info = SetInfo { cmd: ETHTOOL_GSSET_INFO, reserved: 0, mask: 1 << ETH_SS_FEATURES, length: 0 };
    ethtool(name, &mut info)?;
    let length = info.length as usize;
    if info.mask == 0 || length > MAX_FEATURES {
        return Ok(false);
    }
    let mut strings = Strings {
        cmd: ETHTOOL_GSTRINGS,
        set: ETH_SS_FEATURES,
        length: info.length,
        names: [[0; GSTRING_LEN]; MAX_FEATURES],
    };
    ethtool(name, &mut strings)?;
    let is_wanted = |name: &[u8; GSTRING_LEN]| name.split(|byte| *byte == 0).next() == Some(wanted);
    let Some(feature) = strings.names[..length].iter().position(is_wanted) else { return Ok(false) };
    let blocks = [[0; 4]; MAX_FEATURES / 32];
    let mut features = Features { cmd: ETHTOOL_GFEATURES, size: info.length.div_ceil(32), blocks };
    ethtool(name, &mut features)?;
    let active = features.blocks[feature / 32][2];
    Ok(active & (1 << (feature % 32)) != 0)
}

/// One SIOCETHTOOL call. `T` is a `repr(C)` structure that begins with the command and is large enough for
/// what the kernel writes for it.
fn ethtool<T>(name: &str, argument: &mut T) -> io::Result<()> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: `ifreq` is a name and a union of integers and pointers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(argument).cast();
    // SAFETY: `request` and `argument` live through the call; the callers in this file pass the structure of
    // their command, with the lengths in it that say how much the kernel may write.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_segments_udp_in_the_device_and_nonsense_is_an_error() {
        // NETIF_F_GSO_SOFTWARE is among loopback's fixed features (`gen_lo_setup` in drivers/net/loopback.c).
        assert!(udp_segmentation("lo").unwrap());
        assert_eq!(udp_segmentation("no-such-if0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(udp_segmentation("").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn both_ports_must_count() {
        // `ethtool -N ... rx-flow-hash udp4 sdfn`, `sd` and `sdf`.
        assert!(hashes_ports(0xf0));
        assert!(!hashes_ports(0x30) && !hashes_ports(0x70));
        assert!(hazards("no-such-if0").is_empty());
    }
}
