//! The checks: pure functions from facts to findings.

use expressway_dataplane::findings::{self, Finding, Severity};
use expressway_netio::device::{DeviceFacts, GRO, TX_CHECKSUM, TX_CHECKSUM_V4, UDP_SEGMENTATION};
use expressway_netio::route::LinkKind;

use super::host::HostFacts;
use super::interface::InterfaceFacts;

use Severity::{Note, Ok, Warn};

/// What the XDP program needs (BPF_LINK_CREATE of multi-buffer programs).
const OLDEST: (u32, u32) = (5, 18);
/// What workers need (epoll_pwait2).
const WORKERS: (u32, u32) = (5, 11);
/// AF_XDP packets of several frames.
const MULTI_BUFFER: (u32, u32) = (6, 6);
/// The largest MTU whose packets fit one frame of 2048 bytes, with two VLAN tags (`XskConfig`).
const ONE_FRAME: usize = 1770;
/// The UMEM of a queue with the default rings, bytes.
const UMEM: u64 = 8 << 20;
/// Socket buffers that kernel sockets ask for.
const BUFFER: u64 = 4 << 20;
/// Connections' files and sockets beyond which a limit does not matter.
const FILES: u64 = 65_536;

/// What is found of the machine and of what this process may do.
pub(super) fn host(facts: &HostFacts) -> Vec<Finding> {
    let mut found = vec![kernel(facts), privileges(facts), cpu(facts), memory(facts)];
    if !facts.locks_freely
        && facts.agent.is_none()
        && let Some(limit) = facts.memlock
        && limit < UMEM * facts.cores.max(1) as u64
    {
        let text =
            format!("locked memory is limited to {}; each AF_XDP socket needs {}", size(limit), size(UMEM));
        found.push(
            Finding::new("memlock", Warn, text)
                .command("ulimit -l unlimited # systemd: LimitMEMLOCK=infinity"),
        );
    }
    if facts.files.is_some_and(|files| files < FILES) {
        let text = format!("limit of {} open files", facts.files.unwrap_or(0));
        found.push(
            Finding::new("files", Note, text)
                .command(format!("ulimit -Hn {FILES} # systemd: LimitNOFILE={FILES}")),
        );
    }
    if facts.jit == Some(0) {
        found.push(
            Finding::new("jit", Warn, "BPF JIT is off: programs are interpreted, at a cost per packet")
                .command("sysctl -w net.core.bpf_jit_enable=1"),
        );
    }
    if facts.lacks().contains(&"CAP_NET_ADMIN") {
        for (name, value) in ["rmem_max", "wmem_max"].iter().zip(facts.buffers) {
            if value.is_some_and(|value| value < BUFFER) {
                let text = format!("kernel socket buffers are limited to {}", size(value.unwrap_or(0)));
                found.push(
                    Finding::new("buffers", Note, text)
                        .command(format!("sysctl -w net.core.{name}={BUFFER}")),
                );
            }
        }
    }
    if let Some(container) = &facts.container {
        let text = format!("inside {container}: only interfaces of this network namespace are visible");
        found.push(Finding::new("container", Note, text));
    }
    if facts.filtered {
        let text = "a seccomp filter is active; container runtimes' filters refuse bpf(2) without CAP_BPF";
        found.push(Finding::new("seccomp", Note, text));
    }
    found
}

fn kernel(facts: &HostFacts) -> Finding {
    let release = &facts.release;
    match facts.version {
        version if version < WORKERS => Finding::new(
            "kernel",
            Warn,
            format!("Linux {release}: workers need 5.11 or newer (epoll_pwait2), AF_XDP 5.18"),
        )
        .command("install Linux 5.18 or newer"),
        version if version < OLDEST => Finding::new(
            "kernel",
            Warn,
            format!("Linux {release}: AF_XDP needs 5.18 or newer; mode udp works"),
        )
        .command("install Linux 5.18 or newer"),
        version if version < MULTI_BUFFER => {
            let text = format!("Linux {release}: AF_XDP supports MTUs up to {ONE_FRAME} before 6.6");
            Finding::new("kernel", Note, text)
        }
        _ => Finding::new("kernel", Ok, format!("Linux {release}")),
    }
}

fn privileges(facts: &HostFacts) -> Finding {
    if let Some(agent) = &facts.agent {
        let text = format!("privileged set-up for AF_XDP is done by the agent at {}", agent.display());
        return Finding::new("privileges", Ok, text);
    }
    if facts.missing.is_empty() {
        return Finding::new("privileges", Ok, "all capabilities needed for AF_XDP");
    }
    let text = format!("{} missing: kernel UDP only", facts.missing.join(", "));
    Finding::new("privileges", Warn, text).command(
        "run as root, or: setcap cap_net_admin,cap_bpf,cap_perfmon,cap_net_raw+ep $(command -v expressway)",
    )
}

fn cpu(facts: &HostFacts) -> Finding {
    match facts.quota {
        Some(quota) if quota < facts.cores as u64 * 1000 => {
            let text = format!(
                "{} cores, limited by the cgroup to {}.{:02} (cpu.max): throttling stalls connections",
                facts.cores,
                quota / 1000,
                quota % 1000 / 10
            );
            Finding::new("cpu", Warn, text)
                .command("set cpu.max to whole cores, or lower [server] workers to match it")
        }
        _ => Finding::new("cpu", Ok, format!("{} cores", facts.cores)),
    }
}

fn memory(facts: &HostFacts) -> Finding {
    let wanted = UMEM * facts.cores.max(1) as u64 + (256 << 20);
    match facts.memory {
        Some(limit) if limit < wanted => {
            let text = format!(
                "the cgroup is limited to {} (memory.max); the defaults need {}",
                size(limit),
                size(wanted)
            );
            Finding::new("memory", Warn, text)
                .command("raise memory.max, or lower [files] cache and [io] frames")
        }
        Some(limit) => Finding::new("memory", Ok, format!("limited by the cgroup to {}", size(limit))),
        None => Finding::new("memory", Ok, "not limited by a cgroup"),
    }
}

/// What is found of one interface.
pub(super) fn interface(facts: &InterfaceFacts, host: &HostFacts) -> Vec<Finding> {
    let mut found = vec![link(facts), driver(&facts.device)];
    found.extend(channels(facts, host));
    found.extend(program(facts));
    found.extend(findings::settings(&facts.device, !facts.vlans.is_empty()));
    found.extend(offloads(&facts.device));
    if facts.link.mtu > ONE_FRAME {
        let text = format!("{}: packets span several frames and are reassembled by copying", facts.link.mtu);
        found.push(Finding::new("mtu", Note, text));
    }
    found
}

fn link(facts: &InterfaceFacts) -> Finding {
    let link = &facts.link;
    let name = &link.name;
    if !link.is_up {
        return Finding::new("link", Note, "administratively down").command(format!("ip link set {name} up"));
    }
    if !link.has_carrier {
        return Finding::new("link", Warn, "no carrier")
            .command("check the cable, the other end or the switch port");
    }
    match &link.kind {
        LinkKind::Loopback => Finding::new("link", Note, "loopback: kernel UDP only"),
        LinkKind::Other(kind) if !facts.members.is_empty() => {
            let text = format!("{kind} of {}: AF_XDP binds to those", facts.members.join(", "));
            Finding::new("link", Note, text)
        }
        LinkKind::Other(kind) => Finding::new("link", Note, format!("{kind}: kernel UDP only")),
        LinkKind::Vlan { id, .. } => {
            Finding::new("link", Note, format!("VLAN {id}: AF_XDP binds to the underlying device"))
        }
        _ if facts.is_member => Finding::new("link", Ok, format!("up, MTU {}, member of a bond", link.mtu)),
        _ => Finding::new("link", Ok, format!("up, MTU {}", link.mtu)),
    }
}

fn driver(device: &DeviceFacts) -> Finding {
    let mut text = device.driver_name().to_owned();
    if let Some(driver) = device.driver.as_ref().filter(|driver| !driver.bus.is_empty()) {
        text = format!("{text} at {}", driver.bus);
    }
    if let Some(node) = device.locality.as_ref().and_then(|locality| locality.node) {
        text = format!("{text}, NUMA node {node}");
    }
    if let Some(xdp) = device.xdp {
        let claims = [(xdp.xdp, "native XDP"), (xdp.zero_copy, "zero-copy"), (xdp.offload, "XDP offload")];
        let claims: Vec<&str> = claims.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
        text = format!(
            "{text}; claims {}",
            if claims.is_empty() { "no XDP".to_owned() } else { claims.join(", ") }
        );
    }
    Finding::new("driver", Ok, text)
}

fn channels(facts: &InterfaceFacts, host: &HostFacts) -> Vec<Finding> {
    let name = &facts.link.name;
    let Some(channels) = facts.device.channels else {
        return vec![Finding::new(
            "channels",
            Note,
            "not reported by the driver: one queue is assumed, or those allocated",
        )];
    };
    let most = channels.max_rx.max(1) as usize;
    let text = format!(
        "{} of {} receive, {} of {} transmit",
        channels.rx, channels.max_rx, channels.tx, channels.max_tx
    );
    let mut found = vec![if (channels.rx as usize) < host.cores.min(most) {
        let queues = host.cores.min(most);
        Finding::new("channels", Note, format!("{text}: {} cores could share the work", host.cores))
            .command(format!("ethtool -L {name} combined {queues} # or: rx {queues} tx {queues}"))
    } else {
        Finding::new("channels", Ok, text)
    }];
    if let Some(spread) = &facts.device.spread
        && channels.rx > 1
        && spread.queues.len() < channels.rx as usize
    {
        let text = format!("{} of {} queues receive packets", spread.queues.len(), channels.rx);
        found.push(
            Finding::new("rss", Note, text).command(format!("ethtool -X {name} equal {}", channels.rx)),
        );
    }
    found
}

fn program(facts: &InterfaceFacts) -> Option<Finding> {
    /// The name of our program (`bpf/redirect.bpf.c`), cut as the kernel does.
    const OURS: &str = "expressway_udp";
    let there = facts.program.as_ref()?;
    let owners = match there.owners.as_slice() {
        [] => String::new(),
        owners => format!(", owned by {}", owners.join(", ")),
    };
    let text = format!("{} in {} mode{owners}", there.program, there.mode.name());
    Some(if there.program.name == OURS {
        Finding::new("xdp", Note, format!("Expressway's own {text}"))
    } else if there.is_dispatcher() {
        Finding::new("xdp", Note, format!("libxdp's {text}: Expressway joins it"))
    } else {
        let name = &facts.link.name;
        Finding::new("xdp", Warn, format!("another {text}: Expressway does not replace it unless told to"))
            .command(format!("ip link set dev {name} xdp off # or stop its owner; or serve --replace"))
    })
}

fn offloads(device: &DeviceFacts) -> Vec<Finding> {
    let name = &device.name;
    let mut found = Vec::new();
    let inactive =
        |feature: &str| device.features.iter().any(|own| own.name == feature && !own.active && !own.fixed);
    if device.has(UDP_SEGMENTATION) {
        found.push(Finding::new("offload", Ok, "the device segments UDP: the cheapest way to send"));
    } else if inactive(UDP_SEGMENTATION) {
        let text = "tx-udp-segmentation is off: GSO is segmented in software";
        found.push(
            Finding::new("offload", Note, text).command(format!("ethtool -K {name} {UDP_SEGMENTATION} on")),
        );
    }
    if !device.has(TX_CHECKSUM) && !device.has(TX_CHECKSUM_V4) {
        let text =
            "the device does no checksum offload: GSO is refused before Linux 6.11 and costs more since";
        let finding = Finding::new("checksum", Note, text);
        found.push(if inactive(TX_CHECKSUM) {
            finding.command(format!("ethtool -K {name} tx on"))
        } else {
            finding
        });
    }
    if !device.has(GRO) && inactive(GRO) {
        let text = "GRO is off: kernel sockets receive one datagram at a time";
        found.push(Finding::new("gro", Note, text).command(format!("ethtool -K {name} gro on")));
    }
    found
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
#[path = "checks_tests.rs"]
pub(super) mod tests;
