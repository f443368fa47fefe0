//! ethtool by ioctl: it also works on older kernels, and supports what its netlink form lacks before Linux 6.17 (flow
//! hashes).
#![allow(unsafe_code)] // SIOCETHTOOL passes a pointer to a structure; no safe wrapper exists.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use super::Feature;

/// `SIOCETHTOOL` (`linux/sockios.h`).
const SIOCETHTOOL: libc::c_ulong = 0x8946;

// Commands (`linux/ethtool.h`).
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GRINGPARAM: u32 = 0x10;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GRXFH: u32 = 0x29;
const ETHTOOL_SRXFH: u32 = 0x2a;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `ETH_SS_FEATURES`: the string set of feature names (`linux/ethtool.h`).
const ETH_SS_FEATURES: u32 = 4;
/// `ETH_GSTRING_LEN`: bytes of one name (`linux/ethtool.h`).
const GSTRING_LEN: usize = 32;
/// The most features that are asked for; kernels have about 64.
const MAX_FEATURES: usize = 256;
/// The largest indirection table that is read; the largest of a driver has 4096 entries.
const MAX_SPREAD: usize = 8192;
/// `UDP_V4_FLOW` and `UDP_V6_FLOW` (`linux/ethtool.h`), with what `ethtool -N` calls them.
pub const FLOW_HASHES: [(u32, &str); 2] = [(0x02, "udp4"), (0x06, "udp6")];
/// `RXH_L4_B_0_1 | RXH_L4_B_2_3`: both ports (`linux/ethtool.h`).
const RXH_PORTS: u64 = 1 << 6 | 1 << 7;
/// `RXH_IP_SRC | RXH_IP_DST` and both ports: `sdfn` of `ethtool -N`.
const RXH_SDFN: u64 = 1 << 4 | 1 << 5 | RXH_PORTS;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
/// [`Link::rx_queues`](crate::route::Link)); `ENODEV` for an unknown interface; `InvalidInput` for a name longer
/// than 15 bytes.
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

/// `struct ethtool_ringparam` (`linux/ethtool.h`).
#[repr(C)]
#[derive(Default)]
struct RingParam {
    cmd: u32,
    rx_max: u32,
    rx_mini_max: u32,
    rx_jumbo_max: u32,
    tx_max: u32,
    rx: u32,
    rx_mini: u32,
    rx_jumbo: u32,
    tx: u32,
}

/// Descriptors of each hardware queue, now and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rings {
    /// Of an RX queue.
    pub rx: u32,
    /// Of a TX queue.
    pub tx: u32,
    /// Of an RX queue, at most.
    pub max_rx: u32,
    /// Of a TX queue, at most.
    pub max_tx: u32,
}

pub(super) fn rings(name: &str) -> io::Result<Rings> {
    let mut answer = RingParam { cmd: ETHTOOL_GRINGPARAM, ..RingParam::default() };
    ethtool(name, &mut answer)?;
    Ok(Rings { rx: answer.rx, tx: answer.tx, max_rx: answer.rx_max, max_tx: answer.tx_max })
}

/// `struct ethtool_drvinfo` (`linux/ethtool.h`).
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    erom: [u8; 32],
    reserved: [u8; 12],
    counts: [u32; 5],
}

/// The driver of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Name, such as `ixgbe`.
    pub name: String,
    /// Its version; drivers of the kernel tree mostly give the kernel's.
    pub version: String,
    /// Firmware version; may be empty.
    pub firmware: String,
    /// Bus address, such as `0000:3b:00.0`; empty for a device on no bus.
    pub bus: String,
}

pub(super) fn driver(name: &str) -> io::Result<Driver> {
    let mut info = DriverInfo {
        cmd: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        version: [0; 32],
        firmware: [0; 32],
        bus: [0; 32],
        erom: [0; 32],
        reserved: [0; 12],
        counts: [0; 5],
    };
    ethtool(name, &mut info)?;
    Ok(Driver {
        name: text(&info.driver),
        version: text(&info.version),
        firmware: text(&info.firmware),
        bus: text(&info.bus),
    })
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
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

/// `struct ethtool_sfeatures` with its blocks of 32 features: valid, requested.
#[repr(C)]
struct WantedFeatures {
    cmd: u32,
    size: u32,
    blocks: [[u32; 2]; MAX_FEATURES / 32],
}

/// The names of all features by their bit, and how many words of 32 bits they take.
fn feature_names(name: &str) -> io::Result<Vec<String>> {
    let mut info = SetInfo { cmd: ETHTOOL_GSSET_INFO, reserved: 0, mask: 1 << ETH_SS_FEATURES, length: 0 };
    ethtool(name, &mut info)?;
    let length = info.length as usize;
    if info.mask == 0 || length > MAX_FEATURES {
        return Ok(Vec::new());
    }
    let mut strings = Strings {
        cmd: ETHTOOL_GSTRINGS,
        set: ETH_SS_FEATURES,
        length: info.length,
        names: [[0; GSTRING_LEN]; MAX_FEATURES],
    };
    ethtool(name, &mut strings)?;
    Ok(strings.names[..length].iter().map(|name| text(name)).collect())
}

/// Those of the `wanted` features that the kernel knows, with their state.
pub(super) fn features(name: &str, wanted: &[&str]) -> io::Result<Vec<Feature>> {
    let names = feature_names(name)?;
    let blocks = [[0; 4]; MAX_FEATURES / 32];
    let mut features = Features { cmd: ETHTOOL_GFEATURES, size: (names.len() as u32).div_ceil(32), blocks };
    ethtool(name, &mut features)?;
    let known = wanted.iter().filter_map(|wanted| {
        let bit = names.iter().position(|name| name == wanted)?;
        let [available, _, active, never] =
            features.blocks[bit / 32].map(|word| word & (1 << (bit % 32)) != 0);
        Some(Feature { name: (*wanted).to_owned(), active, fixed: never || !available })
    });
    Ok(known.collect())
}

/// Whether the feature of that name is on; false where the kernel knows none.
///
/// # Errors
/// As [`channels`].
pub fn feature(name: &str, wanted: &str) -> io::Result<bool> {
    Ok(features(name, &[wanted])?.first().is_some_and(|feature| feature.active))
}

/// Turns a feature on or off, as `ethtool -K` does. Takes CAP_NET_ADMIN.
///
/// # Errors
/// As [`channels`]; `EOPNOTSUPP` where the feature is unknown or the device keeps it as it is.
pub fn set_feature(name: &str, wanted: &str, on: bool) -> io::Result<()> {
    let unsupported = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    let names = feature_names(name)?;
    let bit = names.iter().position(|name| name == wanted).ok_or_else(unsupported)?;
    let mut blocks = [[0; 2]; MAX_FEATURES / 32];
    blocks[bit / 32] = [1 << (bit % 32), u32::from(on) << (bit % 32)];
    let mut request =
        WantedFeatures { cmd: ETHTOOL_SFEATURES, size: (names.len() as u32).div_ceil(32), blocks };
    ethtool(name, &mut request)?;
    if feature(name, wanted)? == on { Ok(()) } else { Err(unsupported()) }
}

/// `struct ethtool_rxnfc` as far as ETHTOOL_GRXFH and _SRXFH read and write it (`ethtool_rxnfc_copy_struct` in
/// `net/ethtool/ioctl.c`).
#[repr(C)]
struct FlowFields {
    cmd: u32,
    flow: u32,
    data: u64,
}

/// What a device hashes of the UDP datagrams of one family to choose the receive queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowHash {
    /// `udp4` or `udp6`, as `ethtool -N` calls it.
    pub flow: String,
    /// Both ports are hashed, so that connections of one client spread.
    pub ports: bool,
}

fn flow_type(word: &str) -> io::Result<u32> {
    let known = FLOW_HASHES.iter().find(|(_, known)| *known == word);
    known.map(|(flow, _)| *flow).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

pub(super) fn flow_hash(name: &str, word: &str) -> io::Result<FlowHash> {
    let mut fields = FlowFields { cmd: ETHTOOL_GRXFH, flow: flow_type(word)?, data: 0 };
    ethtool(name, &mut fields)?;
    Ok(FlowHash { flow: word.to_owned(), ports: hashes_ports(fields.data) })
}

/// Makes a device hash addresses and ports of `udp4` or `udp6`, as `ethtool -N … rx-flow-hash … sdfn` does.
/// Takes CAP_NET_ADMIN.
///
/// # Errors
/// The driver's; `InvalidInput` for another word.
pub fn hash_ports(name: &str, word: &str) -> io::Result<()> {
    let mut fields = FlowFields { cmd: ETHTOOL_SRXFH, flow: flow_type(word)?, data: RXH_SDFN };
    ethtool(name, &mut fields)
}

fn hashes_ports(fields: u64) -> bool {
    fields & RXH_PORTS == RXH_PORTS
}

/// `struct ethtool_rxfh_indir` with its table.
#[repr(C)]
struct Indirection {
    cmd: u32,
    size: u32,
    queues: [u32; MAX_SPREAD],
}

/// How a device spreads hashes over receive queues (the RSS indirection table).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// Entries of the table.
    pub entries: u32,
    /// Queues that it names, ascending.
    pub queues: Vec<u32>,
}

pub(super) fn spread(name: &str) -> io::Result<Spread> {
    let mut table = Box::new(Indirection { cmd: ETHTOOL_GRXFHINDIR, size: 0, queues: [0; MAX_SPREAD] });
    ethtool(name, &mut *table)?;
    if table.size as usize > MAX_SPREAD {
        return Err(io::Error::from_raw_os_error(libc::E2BIG));
    }
    // With the size of the table the kernel gives its entries.
    table.cmd = ETHTOOL_GRXFHINDIR;
    ethtool(name, &mut *table)?;
    let entries = table.size;
    let mut queues = table.queues[..(entries as usize).min(MAX_SPREAD)].to_vec();
    queues.sort_unstable();
    queues.dedup();
    Ok(Spread { entries, queues })
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn loopback_segments_udp_in_the_device_and_nonsense_is_an_error() {
        assert!(feature("lo", super::super::UDP_SEGMENTATION).unwrap());
        assert!(!feature("lo", "no-such-feature").unwrap());
        assert_eq!(feature("no-such-if0", "rx-gro").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(feature("", "rx-gro").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(hash_ports("lo", "tcp4").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(
            set_feature("lo", "no-such-feature", true).unwrap_err().raw_os_error(),
            Some(libc::EOPNOTSUPP)
        );
    }

    #[test]
    fn both_ports_must_count() {
        // `ethtool -N ... rx-flow-hash udp4 sdfn`, `sd` and `sdf`.
        assert!(hashes_ports(RXH_SDFN));
        assert!(!hashes_ports(0x30) && !hashes_ports(0x70));
    }
}
