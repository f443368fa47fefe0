//! The route mirror follows a namespace's links, addresses, routes, rules and neighbours.

use std::net::{IpAddr, UdpSocket};

use expressway_netio::device::{self, DeviceFacts};
use expressway_netio::route::{LinkKind, Path, Resolution, Resolver, RouteMirror};
use expressway_netio::udp::{UdpConfig, UdpIo};
use expressway_netio::{Flow, PacketIo};
use expressway_wire::{MacAddr, VlanTag};

use crate::udp_netns::{Namespace, eventually, is_privileged, sh};

const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xbb]);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn start(space: &Namespace) -> (RouteMirror, Resolver) {
    space.run(|| {
        let mirror = RouteMirror::start().unwrap();
        let resolver = mirror.resolver().unwrap();
        (mirror, resolver)
    })
}

/// Waits until the way to `remote` is what `check` accepts.
fn resolve<T>(
    resolver: &mut Resolver,
    local: &str,
    remote: &str,
    check: impl Fn(Resolution) -> Option<T>,
) -> T {
    let mut last = None;
    eventually(&format!("the awaited way from {local} to {remote}"), || {
        let resolution = resolver.resolve(ip(local), ip(remote));
        if last != Some(resolution) {
            eprintln!("{local} -> {remote}: {resolution:?}");
            last = Some(resolution);
        }
        check(resolution)
    })
}

fn ready(resolution: Resolution) -> Option<Path> {
    match resolution {
        Resolution::Ready(path) => Some(path),
        _ => None,
    }
}

fn not_direct(resolution: Resolution) -> Option<()> {
    matches!(resolution, Resolution::NotDirect { .. }).then_some(())
}

fn unreachable(resolution: Resolution) -> Option<()> {
    (resolution == Resolution::Unreachable).then_some(())
}

fn mac(mirror: &RouteMirror, name: &str) -> MacAddr {
    mirror.snapshot().link_by_name(name).unwrap().mac.unwrap()
}

fn index(mirror: &RouteMirror, name: &str) -> u32 {
    mirror.snapshot().link_by_name(name).unwrap().index
}

#[test]
fn the_path_to_a_neighbour_has_all_that_a_frame_needs() {
    if !is_privileged() {
        return;
    }
    let (near, _far) = Namespace::pair();
    near.ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:bb dev v0 nud permanent");
    near.ip("neigh add fd09::2 lladdr 02:00:00:00:00:bb dev v0 nud stale");
    let (mirror, mut resolver) = start(&near);
    let expected = Path {
        ifindex: index(&mirror, "v0"),
        egress: index(&mirror, "v0"),
        source_mac: mac(&mirror, "v0"),
        destination_mac: PEER,
        vlan: Default::default(),
        mtu: 1500,
        source: ip("10.9.0.1"),
        stale: false,
    };
    assert_eq!(resolve(&mut resolver, "10.9.0.1", "10.9.0.2", ready), expected);
    assert_eq!(resolve(&mut resolver, "0.0.0.0", "10.9.0.2", ready), expected, "a wildcard gets the source");
    let v6 = Path { source: ip("fd09::1"), stale: true, ..expected };
    assert_eq!(resolve(&mut resolver, "fd09::1", "fd09::2", ready), v6);
    assert_eq!(resolve(&mut resolver, "::", "fd09::2", ready), v6);
    assert_eq!(resolver.asked(), 0, "the mirror knows it all");
}

#[test]
fn an_unresolved_neighbour_becomes_ready_through_a_kernel_socket() {
    if !is_privileged() {
        return;
    }
    let (near, far) = Namespace::pair();
    let (mirror, mut resolver) = start(&near);
    let far_mac = MacAddr(far.run(|| RouteMirror::start().map(|mirror| mac(&mirror, "v1").0)).unwrap());
    for (local, remote) in [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2")] {
        let expected =
            Resolution::Unresolved { egress: index(&mirror, "v0"), next_hop: ip(remote), mtu: 1500 };
        assert_eq!(resolver.resolve(ip(local), ip(remote)), expected);
        near.run(|| UdpSocket::bind((ip(local), 0)).unwrap().send_to(b"knock", (ip(remote), 9)).unwrap());
        assert_eq!(resolve(&mut resolver, local, remote, ready).destination_mac, far_mac);
    }
}

#[test]
fn neighbours_come_change_and_go() {
    if !is_privileged() {
        return;
    }
    let (near, _far) = Namespace::pair();
    let (mirror, mut resolver) = start(&near);
    near.ip("neigh add 10.9.0.9 lladdr 02:00:00:00:00:01 dev v0 nud permanent");
    resolve(&mut resolver, "10.9.0.1", "10.9.0.9", ready);
    let generation = mirror.generation();
    near.ip("neigh replace 10.9.0.9 lladdr 02:00:00:00:00:bb dev v0 nud stale");
    let path = resolve(&mut resolver, "10.9.0.1", "10.9.0.9", |resolution| {
        ready(resolution).filter(|path| path.destination_mac == PEER)
    });
    assert!(path.stale && mirror.generation() > generation);
    near.ip("neigh del 10.9.0.9 dev v0");
    resolve(&mut resolver, "10.9.0.1", "10.9.0.9", |resolution| {
        matches!(resolution, Resolution::Unresolved { .. }).then_some(())
    });
}

#[test]
fn routes_by_prefix_metric_gateway_and_mtu() {
    if !is_privileged() {
        return;
    }
    let (near, _far) = Namespace::pair();
    near.ip("neigh add 10.9.0.254 lladdr 02:00:00:00:00:bb dev v0 nud permanent");
    near.ip("neigh add 10.9.0.253 lladdr 02:00:00:00:00:cc dev v0 nud permanent");
    near.ip("neigh add fd09::fe lladdr 02:00:00:00:00:bb dev v0 nud permanent");
    let (_mirror, mut resolver) = start(&near);
    unreachable(resolver.resolve(ip("10.9.0.1"), ip("203.0.113.7"))).unwrap();
    near.ip("route add default via 10.9.0.254");
    near.ip("route add default via fd09::fe");
    assert_eq!(resolve(&mut resolver, "10.9.0.1", "203.0.113.7", ready).destination_mac, PEER);
    assert_eq!(resolve(&mut resolver, "fd09::1", "2001:db8::7", ready).destination_mac, PEER);
    near.ip("route add 203.0.113.0/24 via 10.9.0.253 mtu 1300 metric 9");
    let path = resolve(&mut resolver, "10.9.0.1", "203.0.113.7", |resolution| {
        ready(resolution).filter(|path| path.destination_mac != PEER)
    });
    assert_eq!(path.mtu, 1300);
    near.ip("route add 203.0.113.0/24 via inet6 fd09::fe metric 1 src 10.9.0.1");
    resolve(&mut resolver, "0.0.0.0", "203.0.113.7", |resolution| {
        ready(resolution).filter(|path| path.destination_mac == PEER && path.mtu == 1500)
    });
    near.ip("route add blackhole 203.0.113.7/32");
    resolve(&mut resolver, "10.9.0.1", "203.0.113.7", unreachable);
    near.ip("route del blackhole 203.0.113.7/32");
    resolve(&mut resolver, "10.9.0.1", "203.0.113.7", ready);
    assert_eq!(resolver.asked(), 0, "the mirror knows it all");
}

#[test]
fn routes_of_an_interface_that_goes_down_vanish_without_notice_and_are_missed() {
    if !is_privileged() {
        return;
    }
    let (near, _far) = Namespace::pair();
    near.ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:bb dev v0 nud permanent");
    near.ip("route add 203.0.113.0/24 via 10.9.0.2");
    let (mirror, mut resolver) = start(&near);
    resolve(&mut resolver, "10.9.0.1", "203.0.113.7", ready);
    near.ip("link set v0 down");
    resolve(&mut resolver, "10.9.0.1", "203.0.113.7", unreachable);
    assert!(!mirror.snapshot().link_by_name("v0").unwrap().is_running());
    near.ip("link set v0 up");
    near.ip("neigh replace 10.9.0.2 lladdr 02:00:00:00:00:bb dev v0 nud permanent");
    resolve(&mut resolver, "10.9.0.1", "10.9.0.2", ready);
    near.ip("link del v0");
    resolve(&mut resolver, "10.9.0.1", "10.9.0.2", unreachable);
    assert!(mirror.snapshot().link_by_name("v0").is_none());
    assert!(mirror.snapshot().interface_of(ip("10.9.0.1")).is_none());
}

#[test]
fn several_next_hops_share_the_flows() {
    if !is_privileged() {
        return;
    }
    let (near, _far) = Namespace::pair();
    for (space, host) in [("10.9.0.", "251"), ("10.9.0.", "252"), ("fd09::", "251"), ("fd09::", "252")] {
        near.ip(&format!(
            "neigh add {space}{host} lladdr 02:00:00:00:02:{} dev v0 nud permanent",
            &host[1..]
        ));
    }
    near.ip("route add default nexthop via 10.9.0.251 nexthop via 10.9.0.252");
    near.ip("route add default nexthop via fd09::251 nexthop via fd09::252");
    let (_mirror, mut resolver) = start(&near);
    for prefix in ["203.0.113.", "2001:db8::"] {
        let local = if prefix.contains(':') { "fd09::1" } else { "10.9.0.1" };
        let macs: std::collections::HashSet<_> = (1..100)
            .map(|host| resolve(&mut resolver, local, &format!("{prefix}{host}"), ready).destination_mac)
            .collect();
        assert_eq!(macs.len(), 2, "{prefix}");
    }
    assert_eq!(resolver.asked(), 0, "the mirror knows it all");
}

#[test]
fn vlans_go_by_the_device_below_with_their_tags() {
    if !is_privileged() {
        return;
    }
    let (near, _far) = Namespace::pair();
    if !near.can("link add link v0 name probe type vlan id 1") {
        eprintln!("skipped: this kernel has no VLAN devices (CONFIG_VLAN_8021Q)");
        return;
    }
    near.ip("link add link v0 name v0.7 type vlan proto 802.1ad id 7");
    near.ip("link add link v0.7 name v0.7.42 address 02:00:00:00:00:aa mtu 1400 type vlan id 42");
    near.ip("link add link v0.7.42 name deep type vlan id 3");
    for (device, net) in [("v0.7", 7), ("v0.7.42", 42), ("deep", 3)] {
        near.ip(&format!("link set {device} up"));
        near.ip(&format!("addr add 10.7.{net}.1/24 dev {device}"));
        near.ip(&format!("neigh add 10.7.{net}.2 lladdr 02:00:00:00:00:bb dev {device} nud permanent"));
    }
    let (mirror, mut resolver) = start(&near);
    let tag = |tpid, id| VlanTag { tpid, priority: 0, drop_eligible: false, id };
    let path = resolve(&mut resolver, "10.7.7.1", "10.7.7.2", ready);
    assert_eq!((path.ifindex, path.egress), (index(&mirror, "v0"), index(&mirror, "v0.7")));
    assert_eq!(path.vlan.as_slice(), [tag(0x88a8, 7)]);
    let path = resolve(&mut resolver, "10.7.42.1", "10.7.42.2", ready);
    assert_eq!((path.ifindex, path.egress), (index(&mirror, "v0"), index(&mirror, "v0.7.42")));
    assert_eq!(path.vlan.as_slice(), [tag(0x88a8, 7), tag(0x8100, 42)]);
    assert_eq!((path.source_mac, path.mtu), (MacAddr([2, 0, 0, 0, 0, 0xaa]), 1400));
    resolve(&mut resolver, "10.7.3.1", "10.7.3.2", not_direct);
    let snapshot = mirror.snapshot();
    assert_eq!(snapshot.device_of(index(&mirror, "v0.7.42")).unwrap().name, "v0");
    assert!(matches!(snapshot.link_by_name("v0.7").unwrap().kind, LinkKind::Vlan { id: 7, .. }));
    near.ip("link set v0 down");
    resolve(&mut resolver, "10.7.42.1", "10.7.42.2", |resolution| ready(resolution).is_none().then_some(()));
}

#[test]
fn what_frames_cannot_take_goes_by_the_kernel() {
    if !is_privileged() {
        return;
    }
    let (near, _far) = Namespace::pair();
    near.ip("link add br0 type bridge");
    near.ip("link set br0 up");
    near.ip("addr add 10.6.0.1/24 dev br0");
    near.ip("neigh add 10.6.0.2 lladdr 02:00:00:00:00:bb dev br0 nud permanent");
    near.ip("link add link v0 name mv0 type macvlan");
    near.ip("link set mv0 up");
    near.ip("addr add 10.5.0.1/24 dev mv0");
    near.ip("neigh add 10.5.0.2 lladdr 02:00:00:00:00:bb dev mv0 nud permanent");
    let (mirror, mut resolver) = start(&near);
    for (local, remote) in [
        ("10.6.0.1", "10.6.0.2"),
        ("10.5.0.1", "10.5.0.2"),
        ("10.9.0.1", "10.9.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("10.9.0.1", "10.9.0.255"),
        ("10.9.0.1", "255.255.255.255"),
        ("10.9.0.1", "224.0.0.1"),
        ("fd09::1", "ff02::1"),
        ("fe80::1", "fe80::2"),
    ] {
        resolve(&mut resolver, local, remote, not_direct);
    }
    assert_eq!(mirror.snapshot().link_by_name("br0").unwrap().kind, LinkKind::Other("bridge".into()));
    assert_eq!(mirror.snapshot().link_by_name("lo").unwrap().kind, LinkKind::Loopback);
}

#[test]
fn policy_rules_make_the_kernel_decide() {
    if !is_privileged() {
        return;
    }
    let (near, _far) = Namespace::pair();
    near.ip("addr add 10.9.0.77/24 dev v0");
    for (host, last) in [("10.9.0.251", "51"), ("10.9.0.252", "52"), ("fd09::251", "51"), ("fd09::252", "52")]
    {
        near.ip(&format!("neigh add {host} lladdr 02:00:00:00:02:{last} dev v0 nud permanent"));
    }
    near.ip("route add default via 10.9.0.251");
    near.ip("route add default via fd09::251");
    let (_mirror, mut resolver) = start(&near);
    let last = |resolver: &mut Resolver, local: &str, remote: &str, octet: u8| {
        resolve(resolver, local, remote, |resolution| {
            ready(resolution).filter(|path| path.destination_mac.0[5] == octet)
        })
    };
    last(&mut resolver, "10.9.0.77", "203.0.113.7", 0x51);
    assert_eq!(resolver.asked(), 0);
    near.ip("route add default via 10.9.0.252 mtu 1350 table 100");
    near.ip("rule add from 10.9.0.77 lookup 100");
    assert_eq!(last(&mut resolver, "10.9.0.77", "203.0.113.7", 0x52).mtu, 1350);
    last(&mut resolver, "10.9.0.1", "203.0.113.7", 0x51);
    let asked = resolver.asked();
    assert!(asked > 0);
    last(&mut resolver, "10.9.0.1", "203.0.113.7", 0x51);
    assert_eq!(resolver.asked(), asked, "answers are remembered");
    last(&mut resolver, "fd09::1", "2001:db8::7", 0x51);
    assert_eq!(resolver.asked(), asked, "IPv6 has no rules of its own");
    // A change in a table that is not mirrored counts too.
    near.ip("route replace default via 10.9.0.251 table 100");
    last(&mut resolver, "10.9.0.77", "203.0.113.7", 0x51);
    near.ip("route add unreachable 203.0.113.7/32 table 100");
    resolve(&mut resolver, "10.9.0.77", "203.0.113.7", unreachable);
    near.ip("rule del from 10.9.0.77 lookup 100");
    last(&mut resolver, "10.9.0.77", "203.0.113.7", 0x51);
    near.ip("-6 route add default via fd09::252 table 100");
    near.ip("-6 rule add to 2001:db8::/32 lookup 100");
    last(&mut resolver, "fd09::1", "2001:db8::7", 0x52);
}

#[test]
fn next_hop_objects_make_the_kernel_decide() {
    if !is_privileged() {
        return;
    }
    let (near, _far) = Namespace::pair();
    near.ip("neigh add 10.9.0.251 lladdr 02:00:00:00:02:51 dev v0 nud permanent");
    near.ip("neigh add 10.9.0.252 lladdr 02:00:00:00:02:52 dev v0 nud permanent");
    near.ip("nexthop add id 5 via 10.9.0.251 dev v0");
    near.ip("route add default nhid 5");
    let (_mirror, mut resolver) = start(&near);
    let last =
        |octet: u8| move |resolution| ready(resolution).filter(|path| path.destination_mac.0[5] == octet);
    resolve(&mut resolver, "10.9.0.1", "203.0.113.7", last(0x51));
    assert_eq!(resolver.asked(), 1);
    near.ip("nexthop replace id 5 via 10.9.0.252 dev v0");
    resolve(&mut resolver, "10.9.0.1", "203.0.113.7", last(0x52));
}

#[test]
fn the_snapshot_answers_about_links_and_addresses() {
    if !is_privileged() {
        return;
    }
    let (near, far) = (Namespace::new(), Namespace::new());
    sh(&format!(
        "ip link add q0 netns {} numrxqueues 4 numtxqueues 4 type veth peer name q1 netns {}",
        near.name, far.name
    ));
    let (mirror, _resolver) = start(&near);
    let before = mirror.generation();
    near.ip("link set q0 up mtu 1234");
    far.ip("link set q1 up");
    near.ip("addr add 10.1.0.1/24 dev q0");
    let snapshot = eventually("the link with its address and carrier", || {
        let snapshot = mirror.snapshot();
        let link = snapshot.interface_of(ip("10.1.0.1"))?;
        (link.is_running() && link.mtu == 1234).then(|| snapshot.clone())
    });
    assert!(snapshot.generation() > before);
    let link = snapshot.link_by_name("q0").unwrap();
    assert_eq!((link.rx_queues, link.tx_queues, &link.kind), (4, 4, &LinkKind::Veth));
    assert!(link.is_direct() && link.controller.is_none());
    let address = snapshot.addresses(link.index).find(|address| address.address == ip("10.1.0.1")).unwrap();
    assert_eq!((address.prefix_length, address.is_global), (24, true));
    assert_eq!(snapshot.links().len(), 2);
    let channels = near.run(|| device::channels("q0")).unwrap();
    assert_eq!((channels.rx, channels.tx), (4, 4));
    assert_eq!(near.run(|| device::channels("absent")).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    assert!(device::channels("a-name-too-long-for-linux").is_err());
    let facts = near.run(|| DeviceFacts::read("q0", link.index)).unwrap();
    assert_eq!((facts.driver_name(), facts.channels), ("veth", Some(channels)));
    assert!(facts.spread.is_none() && facts.locality.is_none(), "a veth hashes nothing and sits nowhere");
    if let Some(offer) = facts.xdp {
        assert!(offer.xdp && !offer.zero_copy && !offer.offload);
    }
    assert!(!facts.has(device::GRO_FORWARDING));
    near.run(|| device::set_feature("q0", device::GRO_FORWARDING, true)).unwrap();
    let facts = near.run(|| DeviceFacts::read("q0", link.index)).unwrap();
    assert!(facts.can_turn_off(device::GRO_FORWARDING));
    assert_eq!(
        near.run(|| device::hash_ports("q0", "udp4")).unwrap_err().raw_os_error(),
        Some(libc::EOPNOTSUPP)
    );
    far.ip("link set q1 down");
    eventually("the loss of carrier", || {
        let snapshot = mirror.snapshot();
        let link = snapshot.link_by_name("q0")?;
        (link.is_up && !link.is_running()).then_some(())
    });
}

#[test]
fn a_quiet_namespace_keeps_its_generation() {
    if !is_privileged() {
        return;
    }
    let (near, _far) = Namespace::pair();
    near.ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:bb dev v0 nud permanent");
    let (mirror, mut resolver) = start(&near);
    // Link-local duplicate address detection ends on its own time: wait for it.
    eventually("link-local addresses to settle", || {
        let snapshot = mirror.snapshot();
        let v0 = index(&mirror, "v0");
        snapshot.addresses(v0).any(|a| a.address.is_ipv6() && !a.is_global && !a.is_avoided).then_some(())
    });
    // A change that is none: the generation stays, and the change after it is seen.
    let count = || mirror.snapshot().addresses(index(&mirror, "v0")).count();
    let (before, addresses) = (mirror.generation(), count());
    near.ip("link set v0 up");
    near.ip("neigh replace 10.9.0.2 lladdr 02:00:00:00:00:bb dev v0 nud permanent");
    near.ip("addr add 10.9.0.99/24 dev v0");
    eventually("the new address", || (count() == addresses + 1).then_some(()));
    assert!(mirror.generation() > before);
    resolve(&mut resolver, "10.9.0.99", "10.9.0.2", ready);
    drop(mirror);
    resolve(&mut resolver, "10.9.0.99", "10.9.0.2", ready);
}

#[test]
fn the_payload_follows_the_mtu_of_the_first_hop() {
    if !is_privileged() {
        return;
    }
    let (near, _far) = Namespace::pair();
    let (mirror, resolver) = start(&near);
    let mut io = near.run(|| UdpIo::bind(&UdpConfig::new(vec!["10.9.0.1:443".parse().unwrap()])).unwrap());
    io.set_resolver(resolver);
    let flow = Flow::new("10.9.0.1:443".parse().unwrap(), "10.9.0.2:9".parse().unwrap());
    assert_eq!(io.max_payload(&flow), 1472);
    near.ip("link set v0 mtu 1300");
    eventually("the smaller payload", || (io.max_payload(&flow) == 1272).then_some(()));
    near.ip("link set v0 mtu 9000");
    eventually("the larger payload", || (io.max_payload(&flow) == 8972).then_some(()));
    drop(mirror);
}
