//! Labs on the real kernel: made, used, killed half-way, removed.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use expressway_lab::{Lab, LabConfig, LabError, Offload, Removed, Role};

/// A lab of one test, removed when the test ends, however it ends.
struct TestLab(Lab);

impl TestLab {
    fn up(config: LabConfig) -> Self {
        Lab::down(&config.name).expect("clean what an earlier run left");
        Self(Lab::up(config).expect("up"))
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        let _ = Lab::down(&self.0.config().name);
    }
}

/// Whether tests that need root can run; where they are required, not running is a failure.
fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    let required = std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_some_and(|value| value == "1");
    assert!(root || !required, "EXPRESSWAY_REQUIRE_ROOT_TESTS=1, but not root");
    if !root {
        eprintln!("skipped: needs root (CAP_NET_ADMIN)");
    }
    root
}

fn name(test: &str) -> String {
    format!("elab-{test}-{}", std::process::id())
}

fn text(mut command: Command) -> String {
    let output = command.output().expect("run");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// One datagram from the client to the server and back; returns the address that the server saw.
fn echo(lab: &Lab, server: SocketAddr, client: SocketAddr, size: usize) -> SocketAddr {
    let bind = |address: SocketAddr| move || UdpSocket::bind(address).expect("bind");
    let server = lab.run(Role::Server, bind(server)).expect("server");
    let client = lab.run(Role::Client, bind(client)).expect("client");
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
    }
    let sent: Vec<u8> = (0..size).map(|i| i as u8).collect();
    client.send_to(&sent, server.local_addr().expect("address")).expect("send");
    let mut buffer = vec![0; 65536];
    let (length, from) = server.recv_from(&mut buffer).expect("receive");
    assert_eq!(&buffer[..length], &sent[..]);
    server.send_to(&buffer[..length], from).expect("reply");
    assert_eq!(client.recv(&mut buffer).expect("receive"), size);
    from
}

#[test]
fn root_datagrams_cross_on_every_address() {
    if !root() {
        return;
    }
    let mut config = LabConfig::named(name("addr"));
    config.second_address = true;
    config.mtu = 9000;
    config.queues = 2;
    let lab = TestLab::up(config);
    let (server, client) = (lab.0.addresses(Role::Server), lab.0.addresses(Role::Client));
    let pairs: [(IpAddr, IpAddr); 4] = [
        (server.ipv4.into(), client.ipv4.into()),
        (server.ipv6.into(), client.ipv6.into()),
        (server.second_ipv4.unwrap().into(), client.ipv4.into()),
        (server.second_ipv6.unwrap().into(), client.ipv6.into()),
    ];
    for (server, client) in pairs {
        let seen = echo(&lab.0, SocketAddr::new(server, 4433), SocketAddr::new(client, 0), 8900);
        assert_eq!(seen.ip(), client);
    }
    let mut ls = lab.0.command(Role::Server, "ls");
    ls.arg("/sys/class/net/server0/queues");
    assert_eq!(text(ls).split_whitespace().collect::<Vec<_>>(), ["rx-0", "rx-1", "tx-0", "tx-1"]);
}

#[test]
fn root_vlan_interfaces_work_or_their_absence_is_named() {
    if !root() {
        return;
    }
    let mut config = LabConfig::named(name("vlan"));
    config.vlan = Some(100);
    Lab::down(&config.name).expect("clean");
    let lab = match Lab::up(config.clone()) {
        Ok(lab) => TestLab(lab),
        Err(error) => {
            // Not every kernel has them; then nothing half-made may stay.
            assert!(matches!(error, LabError::Unsupported(_)), "{error}");
            assert!(!Lab::status().expect("status").iter().any(|lab| lab.name == config.name));
            return;
        }
    };
    let (server, client) = (lab.0.addresses(Role::Server), lab.0.addresses(Role::Client));
    let v4 = (server.vlan_ipv4.unwrap(), client.vlan_ipv4.unwrap());
    echo(&lab.0, (v4.0, 4433).into(), (v4.1, 0).into(), 1000);
    let v6 = (server.vlan_ipv6.unwrap(), client.vlan_ipv6.unwrap());
    echo(&lab.0, (v6.0, 4433).into(), (v6.1, 0).into(), 1000);
}

#[test]
fn root_up_is_refused_while_up_and_down_is_idempotent() {
    if !root() {
        return;
    }
    let name = name("twice");
    let lab = TestLab::up(LabConfig::named(&name));
    assert!(matches!(Lab::up(LabConfig::named(&name)), Err(LabError::AlreadyUp(_))));
    assert_eq!(Lab::open(&name).expect("open"), lab.0);
    assert_eq!(Lab::down(&name).expect("down"), Removed { namespaces: 2, processes: 0 });
    assert_eq!(Lab::down(&name).expect("again"), Removed::default());
    assert!(matches!(Lab::open(&name), Err(LabError::NotUp(_))));
    assert!(!Lab::status().expect("status").iter().any(|lab| lab.name == name));
}

#[test]
fn root_up_rebuilds_what_a_killed_run_left() {
    if !root() {
        return;
    }
    let config = LabConfig::named(name("half"));
    let half = config.namespace(Role::Server);
    let made = Command::new("ip").args(["netns", "add", &half]).status().expect("ip");
    assert!(made.success());
    let status =
        Lab::status().expect("status").into_iter().find(|lab| lab.name == config.name).expect("half");
    assert!(!status.complete);
    assert!(matches!(Lab::open(&config.name), Err(LabError::NotUp(_))));
    let lab = TestLab(Lab::up(config).expect("up"));
    let addresses = lab.0.addresses(Role::Server);
    echo(&lab.0, (addresses.ipv4, 4433).into(), (lab.0.addresses(Role::Client).ipv4, 0).into(), 100);
}

#[test]
fn root_down_ends_what_runs_inside() {
    if !root() {
        return;
    }
    let lab = TestLab::up(LabConfig::named(name("procs")));
    let mut sleep = lab.0.command(Role::Client, "sleep").arg("1000").spawn().expect("sleep");
    // The child is `ip` until it has entered the namespace.
    while !running_inside(&lab.0, sleep.id()) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let name = lab.0.config().name.clone();
    let reaper = std::thread::spawn(move || sleep.wait().expect("wait"));
    assert_eq!(Lab::down(&name).expect("down"), Removed { namespaces: 2, processes: 1 });
    assert!(!reaper.join().expect("reaper").success());
}

fn running_inside(lab: &Lab, pid: u32) -> bool {
    let labs = Lab::status().expect("status");
    let status = labs.iter().find(|status| status.name == lab.config().name).expect("up");
    status.namespaces.iter().any(|namespace| namespace.processes.contains(&pid))
}

#[test]
fn root_offloads_are_as_asked() {
    if !root() {
        return;
    }
    let mut config = LabConfig::named(name("offload"));
    config.udp_segmentation = Offload::Off;
    let lab = TestLab::up(config);
    let features = |role: Role| {
        let mut ethtool = lab.0.command(role, "ethtool");
        ethtool.args(["-k", role.interface()]);
        text(ethtool)
    };
    assert!(features(Role::Server).contains("tx-udp-segmentation: off"));
    assert!(features(Role::Server).contains("tx-checksumming: on"));
    assert!(features(Role::Client).contains("tx-checksumming: off"));
    assert!(features(Role::Client).contains("generic-receive-offload: on"));
}

#[test]
fn root_napi_threads_are_pinned_and_come_back_with_the_link() {
    if !root() {
        return;
    }
    let mut config = LabConfig::named(name("napi"));
    config.client_napi_core = Some(0);
    config.queues = 2;
    let lab = TestLab::up(config);
    let threaded = || {
        let mut cat = lab.0.command(Role::Client, "cat");
        cat.arg("/sys/class/net/client0/threaded");
        text(cat)
    };
    assert_eq!(threaded().trim(), "1");
    assert!(napi_threads_on_core_0().len() >= 2, "a thread a queue");
    lab.0.set_link(Role::Client, false).expect("down");
    lab.0.set_link(Role::Client, true).expect("up");
    assert_eq!(threaded().trim(), "1");
    assert!(napi_threads_on_core_0().len() >= 2, "a thread a queue");
    let (server, client) = (lab.0.addresses(Role::Server), lab.0.addresses(Role::Client));
    let waited = || napi_threads_on_core_0().iter().sum::<u64>();
    let before = waited();
    for _ in 0..50 {
        echo(&lab.0, (server.ipv6, 0).into(), (client.ipv6, 0).into(), 1000);
    }
    // Each wake-up ends in a wait.
    assert!(waited() >= before + 25, "what the server sends does not go through the client's NAPI threads");
}

/// How often each NAPI thread of interfaces named `client0` that may run on core 0 only has waited.
fn napi_threads_on_core_0() -> Vec<u64> {
    let status = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(entry.expect("entry").path().join("status")).unwrap_or_default()
    };
    let waits = |status: String| {
        let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("").trim();
        let pinned = line("Name:").starts_with("napi/client0-") && line("Cpus_allowed_list:") == "0";
        pinned.then(|| line("voluntary_ctxt_switches:").parse().expect("a count"))
    };
    std::fs::read_dir("/proc").expect("/proc").map(status).filter_map(waits).collect()
}

/// Two interfaces of the machine, made by the test, with names that nothing else has; removed with it.
struct Wire([String; 2]);

impl Wire {
    fn make() -> Self {
        let names = ["a", "b"].map(|end| format!("elab{}{end}", std::process::id()));
        let mut ip = Command::new("ip");
        ip.args(["link", "add", &names[0], "type", "veth", "peer", "name", &names[1]]);
        text(ip);
        Self(names)
    }

    fn there(&self) -> [bool; 2] {
        self.0.each_ref().map(|name| std::path::Path::new("/sys/class/net").join(name).exists())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.0[0]]).status();
    }
}

#[test]
fn root_a_lab_of_two_devices_gives_them_back() {
    if !root() {
        return;
    }
    let wire = Wire::make();
    let config = LabConfig { devices: Some(wire.0.clone()), ..LabConfig::named(name("devices")) };
    // Twice: what was given back can be taken again.
    for _ in 0..2 {
        let lab = TestLab::up(config.clone());
        assert_eq!(wire.there(), [false, false]);
        let (server, client) = (lab.0.addresses(Role::Server), lab.0.addresses(Role::Client));
        let seen = echo(&lab.0, (server.ipv4, 4433).into(), (client.ipv4, 0).into(), 1000);
        assert_eq!(seen.ip(), IpAddr::from(client.ipv4));
        let mut neighbours = lab.0.command(Role::Server, "ip");
        neighbours.args(["neigh", "show", &client.ipv4.to_string()]);
        assert!(text(neighbours).contains("PERMANENT"));
        drop(lab);
        assert_eq!(wire.there(), [true, true]);
    }
    let missing = [wire.0[0].clone(), "elab-none".to_owned()];
    let error = Lab::up(LabConfig { devices: Some(missing), ..config }).expect_err("no such device");
    assert!(error.to_string().contains("elab-none"), "{error}");
    assert_eq!(wire.there(), [true, true], "the one that was taken is given back");
}

#[test]
fn root_labs_that_go_while_they_are_listed_are_no_error() {
    if !root() {
        return;
    }
    let namespace = format!("expressway-{}-server", name("going"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                for what in ["add", "del"] {
                    let status = Command::new("ip").args(["netns", what, &namespace]).status();
                    assert!(status.expect("ip").success());
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        while !over.load(Ordering::Relaxed) {
            Lab::status().expect("status");
        }
    });
}
