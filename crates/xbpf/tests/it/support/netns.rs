//! Two network namespaces with a veth pair, for tests that need real packets.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{ToSocketAddrs, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The near end's device, which gets the program; its addresses are those of the service.
pub(crate) const NEAR: &str = "near";
/// The far end's device, from which clients send.
pub(crate) const FAR: &str = "far";

/// A veth pair between two namespaces, which live as long as this.
pub(crate) struct Link {
    near: String,
    far: String,
}

/// Shape of the pair.
pub(crate) struct Shape {
    pub(crate) near_queues: u32,
    pub(crate) far_queues: u32,
    pub(crate) mtu: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self { near_queues: 1, far_queues: 1, mtu: 1500 }
    }
}

/// Runs `ip` and returns what it printed.
pub(crate) fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().expect("iproute2 installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Link {
    pub(crate) fn new(shape: &Shape) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = |end: &str, number: u32| format!("xbpf-{}-{number}-{end}", std::process::id());
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let link = Self { near: name("n", number), far: name("f", number) };
        let Self { near, far } = &link;
        ip(&format!("netns add {near}"));
        ip(&format!("netns add {far}"));
        let (a, b) = (shape.near_queues, shape.far_queues);
        ip(&format!(
            "-n {near} link add {NEAR} numrxqueues {a} numtxqueues {a} type veth \
             peer name {FAR} netns {far} numrxqueues {b} numtxqueues {b}"
        ));
        for (namespace, device, host) in [(near, NEAR, 1), (far, FAR, 2)] {
            ip(&format!("-n {namespace} link set {device} mtu {} up", shape.mtu));
            ip(&format!("-n {namespace} link set lo up"));
            ip(&format!("-n {namespace} address add 192.0.2.{host}/24 dev {device}"));
            ip(&format!("-n {namespace} address add 2001:db8::{host}/64 dev {device} nodad"));
        }
        link
    }

    /// Runs `work` on a thread inside the near namespace.
    pub(crate) fn in_near<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.near, work)
    }

    /// A client's socket, in the far namespace.
    pub(crate) fn client(&self, address: &str) -> UdpSocket {
        inside(&self.far, || bind(address))
    }

    /// Runs `work` on a thread inside the far namespace.
    pub(crate) fn in_far<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.far, work)
    }

    /// `ip ARGUMENTS` in the near namespace.
    pub(crate) fn ip_near(&self, arguments: &str) -> String {
        ip(&format!("-n {} {arguments}", self.near))
    }

    /// `ip ARGUMENTS` in the far namespace.
    pub(crate) fn ip_far(&self, arguments: &str) -> String {
        ip(&format!("-n {} {arguments}", self.far))
    }

    /// The near namespace's name.
    pub(crate) fn near(&self) -> &str {
        &self.near
    }

    /// Whether the near device shows an XDP program.
    pub(crate) fn has_program(&self) -> bool {
        self.ip_near(&format!("-details link show dev {NEAR}")).contains("prog/xdp")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            // Nothing is left to be done about a failure here; the name tells whose it was.
            let _ = Command::new("ip").args(["netns", "delete", namespace]).status();
        }
    }
}

/// Runs `work` on a thread of its own inside the namespace `name`.
pub(crate) fn inside<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let namespace = File::open(format!("/run/netns/{name}")).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A socket of the calling thread's namespace. An IPv6 address that was just added may take a moment to count.
pub(crate) fn bind(address: impl ToSocketAddrs) -> UdpSocket {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match UdpSocket::bind(&address) {
            Ok(socket) => return socket,
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => panic!("bind: {error}"),
        }
    }
}

/// The index of `device` in the namespace of the calling thread.
pub(crate) fn index_of(device: &str) -> u32 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    rustix::net::netdevice::name_to_index(&socket, device).unwrap()
}
