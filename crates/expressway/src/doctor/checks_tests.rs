//! Each check on facts that call for it, and on facts that do not.

use expressway_netio::device::{
    Channels, Driver, Feature, FlowHash, GRO_FORWARDING, GRO_LIST, Spread, VLAN_STRIPPING,
};
use expressway_netio::netdev::Features;
use expressway_netio::route::Link;
use expressway_wire::MacAddr;
use expressway_xbpf::{AttachMode, ForeignProgram, Holder};

use super::super::interface::Program;
use super::*;

/// A host on which nothing is wrong.
pub(crate) fn good_host() -> HostFacts {
    HostFacts {
        release: "6.18.1".into(),
        version: (6, 18),
        locks_freely: true,
        files: Some(1 << 20),
        cores: 8,
        jit: Some(1),
        buffers: [Some(212_992); 2],
        ..HostFacts::default()
    }
}

/// A NIC on which nothing is wrong.
pub(crate) fn good_nic() -> InterfaceFacts {
    let link = Link {
        index: 3,
        name: "enp59s0f0np0".into(),
        mac: Some(MacAddr([2, 0, 0, 0, 0, 1])),
        mtu: 1500,
        is_up: true,
        has_carrier: true,
        kind: LinkKind::Physical,
        controller: None,
        rx_queues: 8,
        tx_queues: 8,
    };
    let feature = |name: &str| Feature { name: name.into(), active: true, fixed: false };
    let device = DeviceFacts {
        name: link.name.clone(),
        ifindex: 3,
        driver: Some(Driver { name: "ice".into(), bus: "0000:3b:00.0".into(), ..Driver::default() }),
        channels: Some(Channels { rx: 8, tx: 8, max_rx: 8, max_tx: 8 }),
        features: [UDP_SEGMENTATION, TX_CHECKSUM, GRO].map(feature).to_vec(),
        hashes: ["udp4", "udp6"].map(|flow| FlowHash { flow: flow.into(), ports: true }).to_vec(),
        spread: Some(Spread { entries: 128, queues: (0..8).collect() }),
        xdp: Some(Features { xdp: true, zero_copy: true, ..Features::default() }),
        ..DeviceFacts::default()
    };
    InterfaceFacts { link, device, vlans: Vec::new(), members: Vec::new(), is_member: false, program: None }
}

/// The one finding of a check that is worse than ok, and its command.
fn one(found: &[Finding], check: &str, severity: Severity) -> (String, String) {
    let mut worse = found.iter().filter(|finding| finding.check == check && finding.severity > Ok);
    let finding = worse.next().unwrap_or_else(|| panic!("{check}: not found in {found:#?}"));
    assert!(worse.next().is_none(), "{check}: found twice in {found:#?}");
    assert_eq!(finding.severity, severity, "{finding:?}");
    (finding.text.clone(), finding.fix.as_ref().map_or_else(String::new, |fix| fix.command.clone()))
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let (host_facts, nic) = (good_host(), good_nic());
    for finding in host(&host_facts).iter().chain(&interface(&nic, &host_facts)) {
        assert_eq!((finding.severity, &finding.fix), (Ok, &None), "{finding:?}");
    }
}

#[test]
fn the_host_is_examined() {
    let with = |change: fn(&mut HostFacts)| {
        let mut facts = good_host();
        change(&mut facts);
        host(&facts)
    };
    let found = with(|facts| facts.version = (5, 10));
    let (text, command) = one(&found, "kernel", Warn);
    assert!(text.contains("5.11") && command.contains("5.18"));
    let found = with(|facts| facts.version = (5, 15));
    let (text, command) = one(&found, "kernel", Warn);
    assert!(text.contains("mode udp works") && command.contains("5.18"));
    let found = with(|facts| facts.version = (6, 1));
    assert!(one(&found, "kernel", Note).0.contains("before 6.6"));
    let found = with(|facts| facts.missing = vec!["CAP_BPF", "CAP_NET_RAW"]);
    let (text, command) = one(&found, "privileges", Warn);
    assert!(text.starts_with("CAP_BPF, CAP_NET_RAW missing") && command.contains("setcap"));
    let found = with(|facts| facts.quota = Some(1500));
    assert!(one(&found, "cpu", Warn).0.contains("8 cores, limited by the cgroup to 1.50"));
    let found = with(|facts| facts.memory = Some(64 << 20));
    assert!(one(&found, "memory", Warn).0.contains("64 MiB"));
    let found = with(|facts| {
        facts.missing = vec!["CAP_BPF"];
        facts.agent = Some("/run/agent.sock".into());
        (facts.locks_freely, facts.memlock) = (false, Some(4096));
    });
    assert!(found.iter().all(|one| one.severity == Severity::Ok), "{found:?}");
    let found = with(|facts| (facts.locks_freely, facts.memlock) = (false, Some(8 << 20)));
    assert!(one(&found, "memlock", Warn).1.contains("ulimit -l"));
    assert!(with(|facts| facts.memlock = Some(8 << 20)).iter().all(|finding| finding.check != "memlock"));
    let found = with(|facts| facts.jit = Some(0));
    assert_eq!(one(&found, "jit", Warn).1, "sysctl -w net.core.bpf_jit_enable=1");
    let found = with(|facts| facts.files = Some(1024));
    assert!(one(&found, "files", Note).0.contains("1024"));
    let found = with(|facts| facts.container = Some("podman".into()));
    assert!(one(&found, "container", Note).0.contains("podman"));
    let found = with(|facts| facts.filtered = true);
    one(&found, "seccomp", Note);
    let found = with(|facts| (facts.missing, facts.buffers) = (vec!["CAP_NET_ADMIN"], [Some(1000), None]));
    assert_eq!(one(&found, "buffers", Note).1, "sysctl -w net.core.rmem_max=4194304");
}

#[test]
fn interfaces_are_examined() {
    let with = |change: fn(&mut InterfaceFacts)| {
        let mut facts = good_nic();
        change(&mut facts);
        interface(&facts, &good_host())
    };
    let found = with(|facts| facts.link.is_up = false);
    assert_eq!(one(&found, "link", Note).1, "ip link set enp59s0f0np0 up");
    one(&with(|facts| facts.link.has_carrier = false), "link", Warn);
    let bond = with(|facts| {
        facts.link.kind = LinkKind::Other("bond".into());
        facts.members = vec!["eth1".into(), "eth2".into()];
    });
    assert!(one(&bond, "link", Note).0.contains("bond of eth1, eth2"));
    let found = with(|facts| facts.device.channels.as_mut().unwrap().rx = 2);
    assert!(one(&found, "channels", Note).1.starts_with("ethtool -L enp59s0f0np0 combined 8"));
    one(&with(|facts| facts.device.channels = None), "channels", Note);
    let found = with(|facts| facts.device.spread.as_mut().unwrap().queues = vec![0, 1]);
    assert_eq!(one(&found, "rss", Note).1, "ethtool -X enp59s0f0np0 equal 8");
    let found = with(|facts| facts.device.hashes[0].ports = false);
    assert_eq!(one(&found, "rss", Warn).1, "ethtool -N enp59s0f0np0 rx-flow-hash udp4 sdfn");
    let one_queue = with(|facts| {
        facts.device.hashes[0].ports = false;
        facts.device.channels = Some(Channels { rx: 1, tx: 1, max_rx: 1, max_tx: 1 });
    });
    assert!(one_queue.iter().all(|finding| finding.check != "rss"), "one queue takes all");
    let found = with(|facts| facts.link.mtu = 9000);
    one(&found, "mtu", Note);
    let found = with(|facts| facts.device.features.retain(|feature| feature.name != TX_CHECKSUM));
    one(&found, "checksum", Note);
    let found = with(|facts| facts.device.features[0].active = false);
    assert!(one(&found, "offload", Note).1.ends_with("tx-udp-segmentation on"));
}

#[test]
fn a_program_on_the_interface_is_named_with_its_owner() {
    let with = |name: &str| {
        let program = ForeignProgram { id: 17, name: name.into(), holder: Holder::Link(4) };
        let owners = vec!["katran (4711)".into()];
        let program = Some(Program { program, mode: AttachMode::Native, owners });
        interface(&InterfaceFacts { program, ..good_nic() }, &good_host())
    };
    let (text, command) = one(&with("balancer"), "xdp", Warn);
    assert!(
        text.contains("program balancer (id 17), held by bpf_link 4 in native mode, owned by katran (4711)"),
        "{text}"
    );
    assert!(command.contains("--replace"));
    assert!(one(&with("expressway_udp"), "xdp", Note).0.starts_with("Expressway's own"));
    assert!(one(&with("xdp_dispatcher"), "xdp", Note).0.ends_with("Expressway joins it"));
}

#[test]
fn only_what_harms_and_can_be_undone_is_mended_unasked() {
    let mut facts = good_nic();
    for name in [GRO_FORWARDING, GRO_LIST, VLAN_STRIPPING] {
        facts.device.features.push(Feature { name: name.into(), active: true, fixed: false });
    }
    facts.device.hashes.iter_mut().for_each(|hash| hash.ports = false);
    facts.device.channels.as_mut().unwrap().rx = 4;
    facts.vlans.push("vlan7".into());
    let found = interface(&facts, &good_host());
    let fixes: Vec<_> = found.iter().filter_map(|finding| finding.fix.as_ref()).collect();
    let commands = |has: bool| -> Vec<&str> {
        let chosen = fixes.iter().filter(|fix| fix.action.is_some() == has);
        chosen.map(|fix| fix.command.strip_prefix("ethtool -").unwrap()).collect()
    };
    let name = "enp59s0f0np0";
    assert_eq!(
        commands(true),
        [
            format!("N {name} rx-flow-hash udp4 sdfn"),
            format!("N {name} rx-flow-hash udp6 sdfn"),
            format!("K {name} rx-udp-gro-forwarding off"),
            format!("K {name} rx-gro-list off"),
            format!("K {name} rx-vlan-hw-parse off"),
        ]
    );
    assert_eq!(commands(false), [format!("L {name} combined 8 # or: rx 8 tx 8")]);
    // Without VLANs their tags matter to nobody; what is fixed has no command.
    facts.vlans.clear();
    facts.device.features.iter_mut().for_each(|feature| feature.fixed = true);
    let found = findings::settings(&facts.device, false);
    assert!(found.iter().all(|finding| finding.check != "vlan"));
    assert!(found.iter().filter(|finding| finding.check == "gro").all(|finding| finding.fix.is_none()));
}
