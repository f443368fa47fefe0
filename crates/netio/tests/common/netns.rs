//! Two network namespaces joined by a veth, for tests with real packets.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// False, after saying so, when namespaces cannot be made here; a failure where they must be.
pub fn is_privileged() -> bool {
    if rustix::process::geteuid().is_root() && Command::new("ip").args(["netns", "list"]).output().is_ok() {
        return true;
    }
    let required = std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_some_and(|value| value == "1");
    assert!(!required, "EXPRESSWAY_REQUIRE_ROOT_TESTS=1 but network namespaces cannot be made");
    eprintln!("skipped: needs root (CAP_NET_ADMIN)");
    false
}

/// Runs a command that must succeed.
pub fn run(command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command has a first word");
    let output = Command::new(program).args(words).output().expect("the command can be started");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr).trim());
}

/// A network namespace with loopback up, removed on drop.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("conf-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        run(&format!("ip netns add {name}"));
        let namespace = Self { name };
        namespace.ip("link set lo up");
        namespace
    }

    /// `ip` inside the namespace; must succeed.
    pub fn ip(&self, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.name));
    }

    /// A command inside the namespace; must succeed.
    pub fn exec(&self, command: &str) {
        run(&format!("ip netns exec {} {command}", self.name));
    }

    /// Runs `work` on a thread inside the namespace. Sockets made there stay there.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).expect("the namespace has a file");
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root may enter a namespace");
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Nothing is left to do where it fails; the kernel frees it with its last socket.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// The device under test on `near`'s end, and the peer's.
pub const NEAR_DEVICE: &str = "near0";
pub const FAR_DEVICE: &str = "far0";

/// The near end's addresses: two a family, to see that replies leave from the one asked.
pub const NEAR: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 3)),
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 3)),
];

/// The far end's address of either family.
pub const FAR: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2))];

pub const NEAR_MAC: [u8; 6] = [0x02, 0xc0, 0x4f, 0, 0, 1];
pub const FAR_MAC: [u8; 6] = [0x02, 0xc0, 0x4f, 0, 0, 2];

/// Two namespaces joined by a veth.
pub struct Pair {
    pub near: Namespace,
    pub far: Namespace,
    pub mtu: usize,
}

impl Pair {
    pub fn new(mtu: usize, queues: usize) -> Self {
        let (near, far) = (Namespace::new(), Namespace::new());
        let shape = format!("mtu {mtu} numrxqueues {queues} numtxqueues {queues}");
        run(&format!(
            "ip link add {NEAR_DEVICE} address {} {shape} netns {} type veth peer name {FAR_DEVICE} address {} \
             {shape} netns {}",
            mac(NEAR_MAC),
            near.name,
            mac(FAR_MAC),
            far.name,
        ));
        let sides: [(&Namespace, &str, &[IpAddr]); 2] =
            [(&near, NEAR_DEVICE, &NEAR), (&far, FAR_DEVICE, &FAR)];
        for (namespace, device, addresses) in sides {
            // Without a queue veth drops what its ring of 256 has no room for.
            namespace.exec(&format!("tc qdisc replace dev {device} root pfifo limit 4000"));
            for address in addresses {
                match address {
                    IpAddr::V4(_) => namespace.ip(&format!("addr add {address}/24 dev {device}")),
                    IpAddr::V6(_) => namespace.ip(&format!("addr add {address}/64 dev {device} nodad")),
                }
            }
        }
        near.ip(&format!("link set {NEAR_DEVICE} up"));
        far.ip(&format!("link set {FAR_DEVICE} up"));
        Self { near, far, mtu }
    }
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}
