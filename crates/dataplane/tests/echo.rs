//! The first example, on a lab of the kernel: it answers, by AF_XDP where the interface has it. Needs root.

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use expressway_dataplane::negotiate::Obtained;
use expressway_dataplane::{Config, DataPath, IoConfig, IoMode, Provider};
use expressway_lab::{Lab, LabConfig, Role};
use expressway_netio::udp::UdpConfig;

/// A lab of one test, removed when the test ends, however it ends.
struct TestLab(Lab);

impl TestLab {
    /// `None` without root; where tests that need it are required, that is a failure.
    fn up(test: &str) -> Option<Self> {
        let root = rustix::process::geteuid().is_root();
        let required = std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_some_and(|value| value == "1");
        assert!(root || !required, "EXPRESSWAY_REQUIRE_ROOT_TESTS=1, but not root");
        if !root {
            eprintln!("skipped: needs root (CAP_NET_ADMIN)");
            return None;
        }
        let config = LabConfig::named(format!("dataplane-{test}-{}", std::process::id()));
        Some(Self(Lab::up(config).unwrap()))
    }

    fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.0.addresses(Role::Server).ipv4.into(), port)
    }

    /// What `ip link` says of the server's interface.
    fn link(&self) -> String {
        let output =
            self.0.command(Role::Server, "ip").args(["link", "show", "dev", "server0"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Sends to that address until an answer comes.
    fn exchange(&self, to: SocketAddr, request: &[u8]) -> Vec<u8> {
        let client = self.0.run(Role::Client, || UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut buffer = [0; 2048];
        for _ in 0..100 {
            client.send_to(request, to).unwrap();
            if let Ok((length, from)) = client.recv_from(&mut buffer) {
                assert_eq!(from, to);
                return buffer[..length].to_vec();
            }
        }
        panic!("no answer from {to}");
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        let _ = Lab::down(&self.0.config().name);
    }
}

/// Killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when there is nothing left to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let binary = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(binary.exists(), "{} is missing: `cargo build --workspace --examples`", binary.display());
    binary
}

#[test]
fn the_example_is_short_and_needs_no_unsafe() {
    let text = include_str!("../examples/echo.rs");
    let code = text.lines().filter(|line| !line.is_empty() && !line.starts_with("//"));
    assert!(code.count() < 30);
    assert!(!text.contains("unsafe"));
}

#[test]
fn root_the_example_echoes_by_af_xdp() {
    let Some(lab) = TestLab::up("example") else { return };
    let address = lab.address(7001);
    let mut command: Command = lab.0.command(Role::Server, example("dataplane_echo"));
    let _running = Running(command.arg(address.to_string()).stdin(Stdio::null()).spawn().unwrap());
    assert_eq!(lab.exchange(address, b"there and back"), b"there and back");
    assert!(lab.link().contains("xdp"), "{}", lab.link());
}

#[test]
fn root_a_mode_that_is_asked_for_is_had_or_refused_and_leaves_nothing() {
    let Some(lab) = TestLab::up("modes") else { return };
    let address = lab.address(7002);
    let open = |mode| {
        let io = IoConfig { mode, ..IoConfig::default() };
        let config = Config::with(io, UdpConfig::new(vec![address]));
        lab.0.run(Role::Server, || DataPath::open(config, Provider::Own, 1)).unwrap()
    };
    for (mode, obtained) in
        [(IoMode::Udp, Obtained::Udp), (IoMode::Copy, Obtained::Copy), (IoMode::Generic, Obtained::Generic)]
    {
        // What was closed before is held for a moment more by processes that other tests start, until they run their program.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let (mut path, workers) = loop {
            match open(mode) {
                Err(error)
                    if error.to_string().contains("in use") && std::time::Instant::now() < deadline =>
                {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                opened => break opened.unwrap(),
            }
        };
        assert_eq!(path.modes(), [(address, obtained)]);
        assert_eq!((workers.len(), lab.link().contains("xdp")), (1, mode != IoMode::Udp));
        path.finish();
        drop(workers);
        assert!(!lab.link().contains("xdp"), "{mode}: {}", lab.link());
    }
    // A veth has no zero-copy: that is an error when it is asked for, and a step down in `auto`.
    let refused = open(IoMode::ZeroCopy).err().expect("no zero-copy").to_string();
    assert!(refused.starts_with("--io zerocopy: ") && refused.contains("server0"), "{refused}");
    let (path, _workers) = open(IoMode::Auto).unwrap();
    assert!(path.step_downs().iter().any(|step| step.from == "zero-copy"), "{:?}", path.step_downs());
}
