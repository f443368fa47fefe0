//! A lab of two interfaces of the machine that are wired to each other: those of an emulated guest, or two ports of
//! a NIC with a cable between them. They are in the namespaces for as long as the lab is up.
//!
//! Each end has a permanent neighbour entry for the other, so no run begins with an ARP request or depends on the
//! other end being up.

use crate::address::Addresses;
use crate::command::run;
use crate::config::{LabConfig, Role};
use crate::error::LabError;
use crate::lab;

/// Makes the lab in its existing namespaces.
pub(crate) fn build(config: &LabConfig) -> Result<(), LabError> {
    for role in Role::ALL {
        let Some(device) = config.device(role) else { continue };
        let (namespace, interface) = (config.namespace(role), role.interface());
        run("ip", &format!("link set {device} down"))?;
        run("ip", &format!("link set {device} netns {namespace} name {interface}"))?;
        run("ip", &format!("-n {namespace} link set {interface} mtu {}", config.mtu))?;
        let ethtool = |features: String| {
            run("ip", &format!("netns exec {namespace} ethtool -K {interface} {features}"))
        };
        ethtool("gro on".to_owned())?;
        if role == Role::Server {
            lab::udp_segmentation(config)?;
        }
    }
    lab::finish(config)?;
    for role in Role::ALL {
        let (namespace, interface) = (config.namespace(role), role.interface());
        let (peer, addresses) = (role.peer(), Addresses::of(config, role.peer()));
        let file = format!("/sys/class/net/{}/address", peer.interface());
        let mac = run("ip", &format!("netns exec {} cat {file}", config.namespace(peer)))?;
        for address in [addresses.ipv4.to_string(), addresses.ipv6.to_string()] {
            let entry = format!("{address} lladdr {} dev {interface} nud permanent", mac.trim());
            run("ip", &format!("-n {namespace} neigh replace {entry}"))?;
        }
    }
    Ok(())
}

/// Moves the interface of `role` back to the first process's namespace, under its old name.
pub(crate) fn give_back(namespace: &str, role: Role, device: &str) -> Result<(), LabError> {
    run("ip", &format!("-n {namespace} link set {} down", role.interface()))?;
    run("ip", &format!("-n {namespace} link set {} netns 1 name {device}", role.interface())).map(drop)
}
