//! From the command line to what the receiver is to do.

use std::net::{SocketAddr, SocketAddrV6};

use expressway_dataplane::{Config, IoConfig, IoMode, Purpose};
use expressway_feed::receive::Options;
use expressway_netio::udp::group::Membership;
use expressway_netio::udp::{MAX_PAYLOAD, UdpConfig};
use expressway_netio::xsk::{ReaderAccess, interface_index};

use crate::args::Recv as Arguments;
use crate::fail::Failure;

/// Datagrams taken by one recvmmsg.
const RECEIVE_BATCH: usize = 64;

/// Checks what the parts of the command line are to each other.
pub(super) fn check(arguments: &Arguments) -> Result<(), Failure> {
    for address in arguments.addresses() {
        if address.port() == 0 {
            return Err(Failure::usage(format!("--listen {address}: port 0 is not allowed")));
        }
        if arguments.echo && address.ip().is_multicast() {
            return Err(Failure::usage(format!(
                "--echo: cannot send from a multicast group ({address}); listen on an address of this machine"
            )));
        }
        if let Some(source) = arguments.source.iter().find(|source| source.is_ipv4() != address.is_ipv4()) {
            return Err(Failure::usage(format!(
                "--source {source}: not of the address family of --listen {address}"
            )));
        }
    }
    let has_group = arguments.addresses().iter().any(|address| address.ip().is_multicast());
    if let (Some(interface), false) = (&arguments.interface, has_group) {
        return Err(Failure::usage(format!(
            "--interface {interface}: no --listen address is a multicast group"
        )));
    }
    if arguments.io == IoMode::Hybrid && !arguments.echo {
        return Err(Failure::usage(
            "--io hybrid: only affects sending, which needs --echo; use auto, zerocopy or copy",
        ));
    }
    check_lending(arguments)?;
    if arguments.plot.is_some() && !arguments.latency {
        return Err(Failure::usage("--plot: needs --latency"));
    }
    super::sequence::check(arguments)
}

/// Packets are lent as they come in, by this process, from AF_XDP sockets.
fn check_lending(arguments: &Arguments) -> Result<(), Failure> {
    let Some(folder) = &arguments.lend else { return Ok(()) };
    let refused = |why: &str| Err(Failure::usage(format!("--lend {}: {why}", folder.display())));
    if arguments.io == IoMode::Udp {
        return refused("kernel sockets have no frames to lend; use --io auto, zerocopy, copy or generic");
    }
    if arguments.agent.is_some() {
        return refused(
            "frames of an agent's sockets cannot be lent; run without --agent, or use --broadcast",
        );
    }
    if !arguments.source.is_empty() {
        return refused("--source does not apply to lent packets; readers must filter by source themselves");
    }
    if !folder.is_dir() {
        return refused("no such directory; create it for the readers' sockets");
    }
    Ok(())
}

/// Whether datagrams are to be stamped.
pub(super) fn timestamps(arguments: &Arguments) -> bool {
    arguments.timestamps || arguments.latency
}

/// How packets come.
pub(super) fn path(arguments: &Arguments) -> Config {
    let timestamps = timestamps(arguments);
    let io = IoConfig {
        mode: arguments.io,
        replace: arguments.replace,
        wait: arguments.wait.into(),
        // What sending costs does not matter.
        calibrate: false,
        // Half of the frames are for receiving.
        frames: arguments.ring.map(|ring| ring.0.saturating_mul(2)),
        ..IoConfig::default()
    };
    let udp = UdpConfig {
        groups: true,
        timestamps,
        // What GRO puts together has one stamp.
        gro: !timestamps,
        receive_batch: RECEIVE_BATCH,
        receive_buffer: MAX_PAYLOAD,
        socket_receive_buffer: arguments.receive_buffer.0 as usize,
        ..UdpConfig::new(scoped(arguments))
    };
    let lend = arguments.lend.as_ref().map(|folder| ReaderAccess {
        readers: arguments.lend_readers,
        quota: arguments.lend_quota,
        ..ReaderAccess::new(folder)
    });
    let purpose = Purpose { sends: arguments.echo, timestamps, lend };
    Config { purpose, groups_on: arguments.interface.clone(), ..Config::with(io, udp) }
}

/// The addresses, groups of a link (ff02::/16) with the link: a socket can be bound to those only so. What interfaces
/// an agent's network namespace has is not known here.
fn scoped(arguments: &Arguments) -> Vec<SocketAddr> {
    let index = arguments.interface.as_deref().filter(|_| arguments.agent.is_none());
    let index = index.and_then(|name| interface_index(name).ok());
    let of_link = |address: &SocketAddrV6| {
        let segments = address.ip().segments();
        address.scope_id() == 0 && segments[0] & 0xff0f == 0xff02
    };
    let mut addresses = arguments.addresses();
    for address in &mut addresses {
        if let (SocketAddr::V6(v6), Some(index)) = (address, index)
            && of_link(v6)
        {
            v6.set_scope_id(index);
        }
    }
    addresses
}

/// How the receiver runs.
pub(super) fn receiver(arguments: &Arguments) -> Options {
    Options {
        cpu: arguments.cpu,
        wait: arguments.wait.into(),
        sources: arguments.source.clone(),
        limit: arguments.count,
        echo: arguments.echo,
    }
}

/// The groups to join, each with the index of its address.
pub(super) fn memberships(arguments: &Arguments) -> Vec<(usize, Membership)> {
    let groups = arguments.addresses().into_iter().map(|address| address.ip()).enumerate();
    groups
        .filter(|(_, ip)| ip.is_multicast())
        .map(|(index, group)| {
            let (interface, sources) = (arguments.interface.clone(), arguments.source.clone());
            (index, Membership { group, interface, sources })
        })
        .collect()
}
