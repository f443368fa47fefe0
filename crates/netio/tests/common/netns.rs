//! Two network namespaces joined by a veth or by devices of the machine, for tests with real packets.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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

    /// Waits until the kernel has seen that `device` has a carrier, which it does in its own time.
    fn await_carrier(&self, device: &str) {
        let is_up = || {
            let show = ["-n", &self.name, "-oneline", "link", "show", device];
            let output = Command::new("ip").args(show).output().unwrap();
            String::from_utf8_lossy(&output.stdout).contains(" state UP ")
        };
        // A NIC negotiates for some seconds.
        for _ in 0..1000 {
            if is_up() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{device} has no carrier");
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

/// Two namespaces joined by a link.
pub struct Pair {
    /// Given back before the namespaces go.
    _devices: Option<Devices>,
    pub near: Namespace,
    pub far: Namespace,
    pub mtu: usize,
}

impl Pair {
    /// Joined by a veth.
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
        Self { _devices: None, near, far, mtu }.set_up()
    }

    /// Joined by two devices of the machine that are wired to each other, those that [`DEVICES`] names.
    pub fn of_devices(mtu: usize) -> Self {
        let (near, far) = (Namespace::new(), Namespace::new());
        let devices = Devices::lend([&near, &far]);
        near.ip(&format!("link set {NEAR_DEVICE} mtu {mtu} address {}", mac(NEAR_MAC)));
        far.ip(&format!("link set {FAR_DEVICE} mtu {mtu} address {}", mac(FAR_MAC)));
        Self { _devices: Some(devices), near, far, mtu }.set_up()
    }

    /// Gives both ends their addresses and sets them up.
    fn set_up(self) -> Self {
        let sides: [(&Namespace, &str, &[IpAddr]); 2] =
            [(&self.near, NEAR_DEVICE, &NEAR), (&self.far, FAR_DEVICE, &FAR)];
        for (namespace, device, addresses) in sides {
            // Without a queue veth drops what its ring of 256 has no room for; fq_codel, the default of many
            // devices, drops what waits.
            namespace.exec(&format!("tc qdisc replace dev {device} root pfifo limit 4000"));
            for address in addresses {
                match address {
                    IpAddr::V4(_) => namespace.ip(&format!("addr add {address}/24 dev {device}")),
                    IpAddr::V6(_) => namespace.ip(&format!("addr add {address}/64 dev {device} nodad")),
                }
            }
            namespace.ip(&format!("link set {device} up"));
        }
        for (namespace, device, _) in sides {
            namespace.await_carrier(device);
        }
        self
    }
}

/// The environment variable that names two devices of the machine which tests may take, `eth0 eth1`: what is
/// sent by one is received by the other.
pub const DEVICES: &str = "EXPRESSWAY_TEST_DEVICES";

/// The environment variable with the number of their queues, 1 unless it is set.
const QUEUES: &str = "EXPRESSWAY_TEST_QUEUES";

/// How many queues each of the two devices has.
pub fn device_queues() -> u32 {
    let value = std::env::var(QUEUES).unwrap_or_else(|_| "1".to_owned());
    value.parse().unwrap_or_else(|_| panic!("{QUEUES}={value}: must be a number"))
}

/// The two devices, moved into namespaces; moved back on drop.
struct Devices {
    names: [String; 2],
    namespaces: [String; 2],
    /// There is one pair of devices for all tests.
    _turn: MutexGuard<'static, ()>,
}

impl Devices {
    fn lend(namespaces: [&Namespace; 2]) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let value = std::env::var(DEVICES)
            .unwrap_or_else(|_| panic!("{DEVICES} must name two devices that are wired to each other"));
        let names: Vec<String> = value.split_whitespace().map(str::to_owned).collect();
        let names: [String; 2] =
            names.try_into().unwrap_or_else(|_| panic!("{DEVICES}={value}: must be two names"));
        for ((name, namespace), inside) in names.iter().zip(namespaces).zip([NEAR_DEVICE, FAR_DEVICE]) {
            run(&format!("ip link set {name} netns {} name {inside}", namespace.name));
        }
        Self { names, namespaces: namespaces.map(|namespace| namespace.name.clone()), _turn: turn }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        for ((name, namespace), inside) in
            self.names.iter().zip(&self.namespaces).zip([NEAR_DEVICE, FAR_DEVICE])
        {
            // Where it fails the next test fails to take it, and says so.
            let arguments = format!("-n {namespace} link set {inside} netns 1 name {name}");
            let _ = Command::new("ip").args(arguments.split(' ')).status();
        }
    }
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}
