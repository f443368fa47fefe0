//! Translates the kernel's interfaces into those that the program knows.

use std::fs;

use expressway_netio::device;
use expressway_netio::netdev::Netdev;
use expressway_netio::route::{Link, LinkKind, Snapshot};
use expressway_xbpf::forward::{ForwardInterface, SourceCheck, Tag};

/// What stands against forwarding by an interface: one line with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{interface}: {problem}")]
pub struct Unfit {
    /// Its name.
    pub interface: String,
    /// What is wrong and what to do.
    pub problem: String,
    /// There is no such interface now; all else does not change by itself.
    pub is_absent: bool,
}

/// Finds the interface `name` and what its frames look like. Its slot, and what depends on devices, are not filled in.
pub(super) fn find(snapshot: &Snapshot, name: &str) -> Result<ForwardInterface, Unfit> {
    let unfit =
        |problem: &str| Unfit { interface: name.to_owned(), problem: problem.to_owned(), is_absent: false };
    let link = snapshot
        .link_by_name(name)
        .ok_or_else(|| Unfit { is_absent: true, ..unfit("no such interface in this network namespace") })?;
    let mac = link.mac.ok_or_else(|| unfit("has no Ethernet address; the kernel handles its packets"))?;
    if let Some(controller) = link.controller {
        let of = snapshot.link(controller).map_or("another interface", |link| link.name.as_str());
        let problem = format!(
            "is a port of {of} (bond, bridge or VRF), whose packets the kernel handles; remove it from `interfaces`"
        );
        return Err(unfit(&problem));
    }
    let (device, tags) = descend(snapshot, link).map_err(unfit)?;
    if device.is_bond() {
        let problem = "is a bond: XDP sees its frames on the members only, so the kernel handles them; remove it from \
                       `interfaces`";
        return Err(unfit(problem));
    }
    if !device.is_direct() {
        let problem =
            "handles frames by rules of its own (bridge, macvlan, tunnel, loopback); leave it to the kernel";
        return Err(unfit(problem));
    }
    if device.index != link.index || has_vlans(snapshot, device) {
        strips_tags(device).map_or(Ok(()), |problem| Err(unfit(&problem)))?;
    }
    Ok(ForwardInterface {
        interface: link.index,
        device: device.index,
        tags,
        mac: mac.0,
        slot: 0,
        source_check: source_check(name),
        ipv6_ports: number("ipv6/fib_multipath_hash_policy").is_some_and(|policy| policy != 0),
        sends: false,
        sends_fragments: false,
        replicates: false,
    })
}

/// The device below a stack of VLANs, and the tags of their frames, outermost first.
fn descend<'a>(snapshot: &'a Snapshot, link: &'a Link) -> Result<(&'a Link, [Option<Tag>; 2]), &'static str> {
    let (mut device, mut tags) = (link, [None; 2]);
    while let LinkKind::Vlan { id, protocol, lower } = device.kind {
        let [outer, inner] = tags;
        if inner.is_some() {
            return Err("has more than two VLAN tags");
        }
        tags = [Some(Tag { protocol, vlan: id }), outer];
        device = lower
            .and_then(|lower| snapshot.link(lower))
            .ok_or("its device is in another network namespace; run there")?;
    }
    Ok((device, tags))
}

/// Whether VLAN interfaces stand on a device.
fn has_vlans(snapshot: &Snapshot, device: &Link) -> bool {
    let above =
        |link: &Link| matches!(link.kind, LinkKind::Vlan { lower: Some(lower), .. } if lower == device.index);
    snapshot.links().iter().any(above)
}

/// A device that takes tags out of frames would have packets of a VLAN pass for untagged ones.
fn strips_tags(link: &Link) -> Option<String> {
    let strips = device::feature(&link.name, device::VLAN_STRIPPING).unwrap_or(false);
    strips.then(|| {
        let name = &link.name;
        format!("{name} strips VLAN tags from frames before XDP sees them; `ethtool -K {name} rxvlan off`")
    })
}

/// A number below /proc/sys/net.
fn number(key: &str) -> Option<u32> {
    fs::read_to_string(format!("/proc/sys/net/{key}")).ok()?.trim().parse().ok()
}

/// As the kernel combines them: the stricter of `all` and the interface's (`IN_DEV_RPFILTER`, a maximum).
fn source_check(name: &str) -> SourceCheck {
    let of = |name: &str| number(&format!("ipv4/conf/{name}/rp_filter")).unwrap_or(0);
    match of("all").max(of(name)) {
        0 => SourceCheck::Local,
        1 => SourceCheck::Strict,
        _ => SourceCheck::Loose,
    }
}

/// Families whose packets the kernel does not forward from the interface.
pub(super) fn forwarding_off(name: &str) -> Vec<&'static str> {
    let off = |key: String| number(&key) == Some(0);
    let mut families = Vec::new();
    if off(format!("ipv4/conf/{name}/forwarding")) {
        families.push("IPv4");
    }
    if off(format!("ipv6/conf/{name}/forwarding")) {
        families.push("IPv6");
    }
    families
}

/// Whether the kernel chooses among several next hops by something that the program cannot tell it: what is within
/// tunnels, or fields of one's own choice.
pub(super) fn hash_is_beyond() -> bool {
    ["ipv4", "ipv6"]
        .iter()
        .any(|family| number(&format!("{family}/fib_multipath_hash_policy")).is_some_and(|policy| policy > 1))
}

/// What devices do with frames that are redirected to them.
pub(super) struct Senders {
    netdev: Option<Netdev>,
}

impl Senders {
    pub(super) fn open() -> Self {
        // Before Linux 6.3 devices do not tell: nothing is sent then, as frames could vanish.
        Self { netdev: Netdev::open().ok() }
    }

    /// Fills in whether packets may leave by a port. In the stack every device sends.
    pub(super) fn fill(&mut self, port: &mut ForwardInterface, all_generic: bool) {
        let features = self.netdev.as_mut().and_then(|netdev| netdev.features(port.device).ok());
        (port.sends, port.sends_fragments) = match features {
            _ if all_generic => (true, false),
            Some(features) => (features.redirect_target, features.redirect_target_multi_buffer),
            None => (false, false),
        };
    }
}
