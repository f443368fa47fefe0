//! Network namespaces for tests: made, entered by threads of their own, removed on drop.
#![allow(dead_code, unreachable_pub)] // Each test binary uses a part of it.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// How long a test waits for something that must come before it fails.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// False, after saying so, when namespaces cannot be made here; a failure where they must be.
pub fn is_privileged() -> bool {
    if rustix::process::geteuid().is_root() && Command::new("ip").args(["netns", "list"]).output().is_ok() {
        return true;
    }
    assert!(
        std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_none_or(|value| value != "1"),
        "EXPRESSWAY_REQUIRE_ROOT_TESTS=1 but network namespaces cannot be made"
    );
    eprintln!("skipped: needs root (CAP_NET_ADMIN)");
    false
}

/// Runs a command line that must succeed.
pub fn sh(line: &str) {
    let output = Command::new("sh").args(["-ec", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A network namespace with loopback up.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("udp-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        sh(&format!("ip netns add {name} && ip -n {name} link set lo up"));
        Self { name }
    }

    /// Two namespaces joined by a veth, `v0` with 10.9.0.1/24 and fd09::1/64 here, `v1` with .2 and ::2 there.
    pub fn pair() -> (Self, Self) {
        let (near, far) = (Self::new(), Self::new());
        sh(&format!("ip link add v0 netns {} type veth peer name v1 netns {}", near.name, far.name));
        for (space, device, host) in [(&near, "v0", 1), (&far, "v1", 2)] {
            space.ip(&format!("link set {device} up"));
            space.ip(&format!("addr add 10.9.0.{host}/24 dev {device}"));
            space.ip(&format!("addr add fd09::{host}/64 dev {device} nodad"));
        }
        (near, far)
    }

    /// `ip` inside the namespace; must succeed.
    pub fn ip(&self, arguments: &str) {
        sh(&format!("ip -n {} {arguments}", self.name));
    }

    /// Whether `ip` succeeds inside the namespace.
    pub fn can(&self, arguments: &str) -> bool {
        let output = Command::new("ip").args(["-n", &self.name]).args(arguments.split(' ')).output();
        output.is_ok_and(|output| output.status.success())
    }

    /// A command inside the namespace; must succeed.
    pub fn exec(&self, line: &str) {
        sh(&format!("ip netns exec {} {line}", self.name));
    }

    /// Runs `work` on a thread inside the namespace. Sockets made there stay there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Waits until `check` gives something; fails at the deadline with what was waited for.
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
