//! The interfaces of the network namespace.

use std::process::ExitCode;

use expressway_netio::xsk::interface_index;
use expressway_xbpf::attached;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use crate::fail::Failure;

/// An interface.
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) flags: InterfaceFlags,
    pub(super) mac: Option<[u8; 6]>,
}

impl Interface {
    fn is_up(&self) -> bool {
        self.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING)
    }

    fn is_loopback(&self) -> bool {
        self.flags.contains(InterfaceFlags::IFF_LOOPBACK)
    }
}

/// All of them, by index.
pub(super) fn all() -> Result<Vec<Interface>, Failure> {
    let addresses =
        getifaddrs().map_err(|errno| Failure::run_time(format!("listing interfaces: {errno}")))?;
    let mut found: Vec<Interface> = Vec::new();
    for address in addresses {
        let link = address.address.as_ref().and_then(|address| address.as_link_addr()?.addr());
        if let Some(known) = found.iter_mut().find(|known| known.name == address.interface_name) {
            known.mac = known.mac.or(link);
            continue;
        }
        // Labels of IPv4 addresses (eth0:1) are no interfaces.
        let Ok(index) = interface_index(&address.interface_name) else { continue };
        found.push(Interface { name: address.interface_name, index, flags: address.flags, mac: link });
    }
    found.sort_by_key(|interface| interface.index);
    Ok(found)
}

/// Those that are asked for, each once.
pub(super) fn asked(names: &[String]) -> Result<Vec<Interface>, Failure> {
    let mut all = all()?;
    if names.iter().any(|name| name == "any") {
        return Ok(all);
    }
    if names.is_empty() {
        let first = all.iter().position(|interface| interface.is_up() && !interface.is_loopback());
        let first = first.or_else(|| all.iter().position(Interface::is_up));
        let none = || Failure::usage("no interface is up; give one with -i, see `expressway dump -D`");
        return Ok(vec![all.swap_remove(first.ok_or_else(none)?)]);
    }
    let mut found: Vec<Interface> = Vec::new();
    for name in names {
        if found.iter().any(|known| known.name == *name) {
            continue;
        }
        let at = all.iter().position(|interface| interface.name == *name).ok_or_else(|| {
            Failure::run_time(format!(
                "interface {name}: no such interface in this network namespace; see `expressway dump -D`"
            ))
        })?;
        found.push(all.swap_remove(at));
    }
    Ok(found)
}

/// Prints a list.
pub(super) fn print() -> Result<ExitCode, Failure> {
    let mut text = String::new();
    for interface in all()? {
        let mut facts = vec![if interface.is_up() { "up" } else { "down" }.to_owned()];
        if interface.is_loopback() {
            facts.push("loopback".to_owned());
        }
        // Without privileges it cannot be told.
        if let Ok(Some((program, mode))) = attached(interface.index) {
            facts.push(format!("XDP {} {program}", mode.name()));
        }
        text.push_str(&format!("{}.{} [{}]\n", interface.index, interface.name, facts.join(", ")));
    }
    crate::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
