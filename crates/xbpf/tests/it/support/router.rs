//! A namespace with interfaces, routes and neighbours, and the router loaded for it. Its packets are test runs.

use std::collections::HashSet;
use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use expressway_xbpf::forward::{Feed, Forward, ForwardInterface, SourceCheck, Tag};

use super::netns::{index_of, inside, ip};

/// Hardware addresses of the interfaces.
pub(crate) const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
pub(crate) const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
pub(crate) const MAC_J: [u8; 6] = [2, 0, 0, 0, 0, 0x1a];
pub(crate) const MAC_V: [u8; 6] = [2, 0, 0, 0, 0, 0x15];
pub(crate) const MAC_Q: [u8; 6] = [2, 0, 0, 0, 0, 0x16];
/// That of every next hop.
pub(crate) const NEXT_HOP: [u8; 6] = [4, 0, 0, 0, 0, 2];

/// `a` is where packets come from, `b` where most go. `c` is not configured, `j` has jumbo frames. `v` and `q` stand for a
/// VLAN on `a` and one within another: interfaces of their own here, so that no kernel has to have VLANs.
pub(crate) struct Router {
    namespace: String,
    pub(crate) forward: Forward,
    pub(crate) a: u32,
    pub(crate) b: u32,
}

const SETUP: &str = "
    link add name a address 02:00:00:00:00:0a type veth peer name a-peer
    link add name b address 02:00:00:00:00:0b type veth peer name b-peer
    link add name c address 02:00:00:00:00:0c type veth peer name c-peer
    link add name j address 02:00:00:00:00:1a mtu 9000 type veth peer name j-peer mtu 9000
    link add name v address 02:00:00:00:00:15 type veth peer name v-peer
    link add name q address 02:00:00:00:00:16 type veth peer name q-peer
    address add 10.1.0.1/24 dev a
    address add 10.2.0.1/24 dev b
    address add 10.3.0.1/24 dev c
    address add 10.7.0.1/24 dev j
    address add 10.5.0.1/24 dev v
    address add 10.6.0.1/24 dev q
    address add 2001:db8:1::1/64 dev a nodad
    address add 2001:db8:2::1/64 dev b nodad
    address add 2001:db8:7::1/64 dev j nodad
    neighbour add 10.2.0.2 lladdr 04:00:00:00:00:02 dev b
    neighbour add 10.3.0.2 lladdr 04:00:00:00:00:02 dev c
    neighbour add 10.7.0.2 lladdr 04:00:00:00:00:02 dev j
    neighbour add 10.5.0.2 lladdr 04:00:00:00:00:02 dev v
    neighbour add 10.6.0.2 lladdr 04:00:00:00:00:02 dev q
    neighbour add 2001:db8:2::2 lladdr 04:00:00:00:00:02 dev b
    neighbour add 2001:db8:7::2 lladdr 04:00:00:00:00:02 dev j
    route add 198.51.100.0/24 via 10.2.0.2
    route add 198.51.101.0/24 via 10.2.0.2 mtu lock 600
    route add blackhole 203.0.113.0/24
    route add unreachable 203.0.112.0/24
    route add prohibit 203.0.114.0/24
    route add 198.18.0.0/16 nexthop via 10.2.0.2 nexthop via 10.7.0.2
    -6 route add 2001:db8:9::/48 via 2001:db8:2::2
    -6 route add blackhole 2001:db8:dead::/48
    -6 route add unreachable 2001:db8:bad::/48
    -6 route add 2001:db8:ec::/48 nexthop via 2001:db8:2::2 nexthop via 2001:db8:7::2";

impl Router {
    /// `None` where the test has to be skipped for lack of privilege.
    pub(crate) fn new() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        super::permitted(Forward::load())?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("xbpf-{}-{number}-r", std::process::id());
        ip(&format!("netns add {namespace}"));
        let lines: Vec<&str> = SETUP.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let (links, rest) = lines.split_at(6);
        let run = |line: &&str| drop(ip(&format!("-n {namespace} {line}")));
        links.iter().for_each(run);
        ip(&format!("-n {namespace} link set dev lo up"));
        for device in ["a", "b", "c", "j", "v", "q"] {
            ip(&format!("-n {namespace} link set dev {device} up"));
            ip(&format!("-n {namespace} link set dev {device}-peer up"));
        }
        for key in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            set(&namespace, &format!("net/{key}"), "1");
        }
        rest.iter().for_each(run);
        let (forward, [a, b]) = inside(&namespace, || (Forward::load().unwrap(), ["a", "b"].map(index_of)));
        let mut router = Self { namespace, forward, a, b };
        let ports = router.ports();
        router.set_interfaces(&ports);
        let locals = [1, 2, 3, 5, 6, 7].map(|net| [10, net, 0, 1].into());
        router.forward.set_locals(&HashSet::from(locals)).unwrap();
        Some(router)
    }

    /// The interfaces as they are configured.
    pub(crate) fn ports(&self) -> Vec<ForwardInterface> {
        let (c, s) = (Tag { protocol: 0x8100, vlan: 100 }, Tag { protocol: 0x88a8, vlan: 200 });
        let table = [
            ("a", "a", MAC_A, [None, None]),
            ("b", "b", MAC_B, [None, None]),
            ("j", "j", MAC_J, [None, None]),
            ("v", "a", MAC_V, [Some(c), None]),
            ("q", "a", MAC_Q, [Some(s), Some(c)]),
        ];
        let port = |(slot, (interface, device, mac, tags)): (u32, (&str, &str, _, _))| ForwardInterface {
            interface: self.inside(|| index_of(interface)),
            device: self.inside(|| index_of(device)),
            tags,
            mac,
            slot,
            source_check: SourceCheck::Local,
            ipv6_ports: true,
            sends: true,
            sends_fragments: true,
            replicates: false,
        };
        (1..).zip(table).map(port).collect()
    }

    /// Changes the interfaces. Devices are those of the calling thread's namespace.
    pub(crate) fn set_interfaces(&mut self, ports: &[ForwardInterface]) {
        let Self { namespace, forward, .. } = self;
        inside(namespace, || forward.set_interfaces(ports).unwrap());
    }

    /// Changes the feeds.
    pub(crate) fn set_feeds(&mut self, feeds: &[Feed]) {
        let Self { namespace, forward, .. } = self;
        inside(namespace, || forward.set_feeds(feeds).unwrap());
    }

    /// Runs `work` on a thread inside the namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.namespace, work)
    }

    /// The namespace's name.
    pub(crate) fn name(&self) -> &str {
        &self.namespace
    }

    /// `ip ARGUMENTS` in the namespace.
    pub(crate) fn ip(&self, arguments: &str) -> String {
        ip(&format!("-n {} {arguments}", self.namespace))
    }

    /// The same, where it may fail: whether it did what it should.
    pub(crate) fn try_ip(&self, arguments: &str) -> bool {
        let words = ["-n", &self.namespace].into_iter().chain(arguments.split_whitespace());
        Command::new("ip").args(words).output().expect("iproute2 installed").status.success()
    }

    /// Writes a file below /proc/sys.
    pub(crate) fn sysctl(&self, key: &str, value: &str) {
        set(&self.namespace, key, value);
    }
}

fn set(namespace: &str, key: &str, value: &str) {
    inside(namespace, || {
        use std::io::Write;
        let mut file = File::options().write(true).open(format!("/proc/sys/{key}")).unwrap();
        file.write_all(value.as_bytes()).unwrap();
    });
}

impl Drop for Router {
    fn drop(&mut self) {
        // Nothing is left to be done about a failure here; the name tells whose it was.
        let _ = Command::new("ip").args(["netns", "delete", &self.namespace]).status();
    }
}
