//! What the tests of this crate share.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use expressway_lab::{Lab, LabConfig, LabError, Role};
use expressway_observe::{
    Capture, CaptureError, CaptureOptions, Filter, Packet, Point, Points, Verdict, XdpPoints,
};

/// How long something that must come may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A lab of one test, removed when the test ends, however it ends.
pub(crate) struct TestLab(pub(crate) Lab);

impl TestLab {
    /// `None` where the test has to be skipped for lack of privilege.
    pub(crate) fn up(test: &str, change: impl FnOnce(&mut LabConfig)) -> Option<Self> {
        let root = rustix::process::geteuid().is_root();
        let needed = required("EXPRESSWAY_REQUIRE_ROOT_TESTS");
        assert!(root || !needed, "EXPRESSWAY_REQUIRE_ROOT_TESTS=1, but not root");
        if !root {
            eprintln!("skipped: needs root");
            return None;
        }
        let mut config = LabConfig::named(format!("obs-{test}-{}", std::process::id()));
        change(&mut config);
        Lab::down(&config.name).expect("clean what an earlier run left");
        match Lab::up(config) {
            Ok(lab) => Some(Self(lab)),
            Err(error @ LabError::Unsupported(_)) if !required("EXPRESSWAY_REQUIRE_KERNEL_TESTS") => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("up: {error}"),
        }
    }

    /// Runs `work` in the server's namespace.
    pub(crate) fn server<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.run(Role::Server, work).expect("server's namespace")
    }

    /// A socket of the server or client, on its IPv4 address.
    pub(crate) fn socket(&self, role: Role, port: u16) -> UdpSocket {
        let address = SocketAddr::from((self.0.addresses(role).ipv4, port));
        let socket = self.0.run(role, || UdpSocket::bind(address)).expect("namespace").expect("bind");
        socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
        socket
    }

    /// The index of the server's interface.
    pub(crate) fn index(&self) -> u32 {
        let name = self.0.interface(Role::Server).to_owned();
        self.server(move || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
            rustix::net::netdevice::name_to_index(&socket, &name).expect("index")
        })
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        let _ = Lab::down(&self.0.config().name);
    }
}

fn required(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value == "1")
}

/// Whether the kernel takes fentry programs; where they are required, not taking them is a failure.
pub(crate) fn has_fentry(capture: &Capture) -> bool {
    let refused = capture.notes().iter().find(|note| note.text.contains("security policy"));
    if let Some(note) = refused {
        assert!(!required("EXPRESSWAY_REQUIRE_KERNEL_TESTS"), "{note}");
        eprintln!("skipped: {note}");
    }
    refused.is_none()
}

/// Opens a capture for which the kernel has to take fentry programs; none where it does not and need not.
pub(crate) fn open_traced(options: CaptureOptions) -> Option<Capture> {
    match Capture::open(options) {
        Ok(capture) => has_fentry(&capture).then_some(capture),
        Err(CaptureError::Nothing(notes)) if notes.contains("security policy") => {
            assert!(!required("EXPRESSWAY_REQUIRE_KERNEL_TESTS"), "{notes}");
            eprintln!("skipped: {notes}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A packet that can be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) time: u64,
    pub(crate) point: Point,
    pub(crate) queue: Option<u32>,
    pub(crate) id: Option<u64>,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) drop: Option<String>,
    pub(crate) process: Option<(u32, String)>,
    pub(crate) length: u32,
    pub(crate) data: Vec<u8>,
}

impl From<&Packet<'_>> for Seen {
    fn from(packet: &Packet<'_>) -> Self {
        Self {
            time: packet.time,
            point: packet.point,
            queue: packet.queue,
            id: packet.id,
            verdict: packet.verdict,
            drop: packet.drop.map(str::to_owned),
            process: packet.process.map(|process| (process.id, process.name.to_owned())),
            length: packet.length,
            data: packet.data.to_vec(),
        }
    }
}

impl Seen {
    /// The UDP payload over IPv4 without options.
    pub(crate) fn payload(&self) -> &[u8] {
        self.data.get(42..).unwrap_or(&[])
    }
}

/// Options for one interface and filter, with buffers that hold a test's packets.
pub(crate) fn options(interface: u32, filter: &str, points: Points) -> CaptureOptions {
    let filter = Some(Filter::compile(filter, 65535).expect("filter"));
    CaptureOptions { interfaces: vec![interface], snaplen: 65535, filter, points, buffer: 1 << 22 }
}

/// Only XDP.
pub(crate) fn xdp(xdp: XdpPoints) -> Points {
    Points { xdp, xsk: false, kernel: false, drops: false }
}

/// Everything at once, XDP programs as they come.
pub(crate) fn kernel() -> Points {
    Points { xdp: XdpPoints::None, xsk: false, kernel: true, drops: false }
}

/// Polls until as many packets have come.
pub(crate) fn take(capture: &mut Capture, count: usize) -> Vec<Seen> {
    let mut seen = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while seen.len() < count {
        assert!(Instant::now() < deadline, "{} of {count}: {seen:?} {:?}", seen.len(), capture.notes());
        capture.poll(Duration::from_millis(50), &mut |packet| seen.push(Seen::from(packet))).expect("poll");
    }
    seen
}

/// Polls until `done`, and returns what has come.
pub(crate) fn take_until(
    capture: &mut Capture,
    mut done: impl FnMut(&Capture, &[Seen]) -> bool,
) -> Vec<Seen> {
    let mut seen = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while !done(capture, &seen) {
        assert!(Instant::now() < deadline, "{seen:?} {:?}", capture.notes());
        capture.poll(Duration::from_millis(50), &mut |packet| seen.push(Seen::from(packet))).expect("poll");
    }
    seen
}

/// Everything that is left.
pub(crate) fn rest(capture: &mut Capture) -> Vec<Seen> {
    let mut seen = Vec::new();
    capture.flush(&mut |packet| seen.push(Seen::from(packet)));
    seen
}
