//! On which devices the frames of listen addresses arrive, and which pairs belong to each device.
//!
//! The frames of a VLAN arrive on the device below it, so AF_XDP sockets are bound there. A bond's arrive on its
//! members; sending through a bond is left to the kernel. Bridges, macvlans and tunnels are left to the kernel
//! entirely.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use expressway_netio::route::{Link, LinkKind, Snapshot};

use crate::config::IoMode;
use crate::error::Error;

/// A device that takes the AF_XDP path.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) link: Link,
    /// It is a member of a bond, which chooses the member that sends: that way is the kernel's.
    pub(crate) is_member: bool,
}

/// Why an address or interface cannot take the AF_XDP path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(pub(crate) String);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The devices that frames to the listen addresses come in by, at start. An explicit mode fails where an
/// address has none that XDP can serve; `auto` says why and leaves the address to the kernel.
pub(crate) fn devices(
    mode: IoMode,
    listen: &[SocketAddr],
    groups_on: Option<u32>,
    snapshot: &Snapshot,
) -> Result<Vec<Device>, Error> {
    let mut found = Vec::new();
    if mode == IoMode::Udp {
        return Ok(found);
    }
    for address in listen {
        match devices_of(address.ip(), groups_on, snapshot) {
            Ok(devices) => merge(&mut found, devices),
            Err(reason) if mode == IoMode::Auto => {
                tracing::info!(listen = %address, "falling back to kernel UDP on this address: {reason}");
            }
            Err(reason) => return Err(Error::Address { mode, address: *address, reason }),
        }
    }
    Ok(found)
}

/// The same while the server runs: addresses without a device are the kernel's for now.
pub(crate) fn devices_now(
    mode: IoMode,
    listen: &[SocketAddr],
    groups_on: Option<u32>,
    snapshot: &Snapshot,
) -> Vec<Device> {
    let mut found = Vec::new();
    if mode != IoMode::Udp {
        for address in listen {
            merge(&mut found, devices_of(address.ip(), groups_on, snapshot).unwrap_or_default());
        }
    }
    found
}

fn merge(found: &mut Vec<Device>, more: Vec<Device>) {
    for device in more {
        if !found.iter().any(|known| known.link.index == device.link.index) {
            found.push(device);
        }
    }
}

fn devices_of(address: IpAddr, groups_on: Option<u32>, snapshot: &Snapshot) -> Result<Vec<Device>, Reason> {
    if address.is_multicast() {
        let unnamed = || Reason("AF_XDP needs the interface of a multicast group: give --interface".into());
        let link = groups_on.and_then(|index| snapshot.link(index)).ok_or_else(unnamed)?;
        return carriers(link, snapshot);
    }
    if !address.is_unspecified() {
        let link = snapshot
            .interface_of(address)
            .ok_or_else(|| Reason("no interface has this address; see `ip address`".into()))?;
        return carriers(link, snapshot);
    }
    let mut devices = Vec::new();
    let mut last = Reason("no interface has an address of this family".into());
    for link in snapshot.links() {
        if !snapshot.addresses(link.index).any(|own| own.address.is_ipv4() == address.is_ipv4()) {
            continue;
        }
        match carriers(link, snapshot) {
            Ok(more) => merge(&mut devices, more),
            Err(reason) => last = reason,
        }
    }
    if devices.is_empty() { Err(last) } else { Ok(devices) }
}

fn carriers(link: &Link, snapshot: &Snapshot) -> Result<Vec<Device>, Reason> {
    let device = snapshot.device_of(link.index).ok_or_else(|| {
        Reason(format!("the underlying device of {} is in another network namespace", link.name))
    })?;
    let is_member = device.is_bond();
    let carriers: Vec<Device> = snapshot
        .carriers_of(link.index)
        .into_iter()
        .map(|link| Device { link: link.clone(), is_member })
        .collect();
    match &device.kind {
        _ if !carriers.is_empty() => Ok(carriers),
        LinkKind::Loopback => Err(Reason("AF_XDP is not available on loopback".into())),
        LinkKind::Other(_) if is_member => Err(Reason(format!("the bond {} has no members", device.name))),
        LinkKind::Other(kind) => Err(Reason(format!(
            "{} is a {kind}: AF_XDP cannot tell which frames belong to it; to use AF_XDP, put the address on the \
             underlying device",
            device.name
        ))),
        _ => Err(Reason(format!("{} is not an Ethernet device", device.name))),
    }
}

/// The pairs that the program on device `index` takes: listen addresses that the device, a VLAN on it, or the
/// bond that it is a member of, has; wildcards mean each of its addresses. Link-local ones stay with the kernel,
/// which knows their scope. Multicast groups are those of the interface `groups_on`.
pub(crate) fn pairs(
    listen: &[SocketAddr],
    groups_on: Option<u32>,
    snapshot: &Snapshot,
    index: u32,
) -> HashSet<SocketAddr> {
    let on_device = |ifindex: u32| snapshot.carriers_of(ifindex).iter().any(|carrier| carrier.index == index);
    let own: Vec<IpAddr> = snapshot
        .links()
        .iter()
        .filter(|link| on_device(link.index))
        .flat_map(|link| snapshot.addresses(link.index).map(|address| address.address))
        .filter(|address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()))
        .collect();
    let mut pairs = HashSet::new();
    for address in listen {
        let fits = |candidate: &&IpAddr| {
            **candidate == address.ip()
                || (address.ip().is_unspecified() && candidate.is_ipv4() == address.ip().is_ipv4())
        };
        if address.ip().is_multicast() && groups_on.is_some_and(&on_device) {
            pairs.insert(SocketAddr::new(address.ip(), address.port()));
        }
        pairs.extend(own.iter().filter(fits).map(|ip| SocketAddr::new(*ip, address.port())));
    }
    pairs
}
