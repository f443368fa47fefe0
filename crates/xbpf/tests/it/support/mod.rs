//! What the tests of this crate share.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod frame;
pub(crate) mod netns;
pub(crate) mod raw;
pub(crate) mod router;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use expressway_xbpf::{Counter, Error, Options, Redirect, TestRun, Verdict, XdpDrop, last_drops};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapInfo};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// The service's pairs in these tests.
pub(crate) fn pair4() -> SocketAddr {
    "192.0.2.1:443".parse().unwrap()
}

/// The same over IPv6.
pub(crate) fn pair6() -> SocketAddr {
    "[2001:db8::1]:443".parse().unwrap()
}

/// Whether a missing privilege fails the test instead of skipping it.
pub(crate) fn privileges_required() -> bool {
    std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_some_and(|value| value == "1")
}

/// What was loaded, or `None` where the test has to be skipped for lack of privilege.
pub(crate) fn permitted<T>(loaded: Result<T, Error>) -> Option<T> {
    match loaded {
        Ok(loaded) => Some(loaded),
        Err(Error::NotPermitted { .. }) if !privileges_required() => {
            eprintln!("skipped: needs root (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The program loaded, or `None` where the test has to be skipped.
pub(crate) fn load(options: &Options) -> Option<Redirect> {
    permitted(Redirect::load(options))
}

/// The program with the service's pairs, and an AF_XDP socket on queue 0 that holds the slot.
pub(crate) struct Service {
    pub(crate) redirect: Redirect,
    socket: OwnedFd,
}

impl Service {
    pub(crate) fn new() -> Option<Self> {
        let redirect = load(&Options::default())?;
        redirect.add_pair(pair4()).unwrap();
        redirect.add_pair(pair6()).unwrap();
        let socket = fill_slot(&redirect, 0);
        Some(Self { redirect, socket })
    }

    /// Runs `frame` and returns the one counter that grew, after checking that verdict and counter agree
    /// and that the frame came back unchanged.
    pub(crate) fn classify(&self, frame: &[u8]) -> Counter {
        self.observe(frame, || self.redirect.prog_test_run(frame, 1).unwrap())
    }

    /// The same with only `linear` bytes in the linear part.
    pub(crate) fn classify_split(&self, frame: &[u8], linear: usize) -> Counter {
        self.observe(frame, || self.redirect.prog_test_run_split(frame, linear as u32).unwrap())
    }

    fn observe(&self, frame: &[u8], run: impl FnOnce() -> TestRun) -> Counter {
        let before = self.redirect.counters().unwrap();
        let run = run();
        let grown = self.redirect.counters().unwrap().since(&before);
        assert_eq!(grown.total(), 1, "one counter a packet: {grown:?}");
        let (counter, _) = grown.iter().find(|(_, packets)| *packets == 1).unwrap();
        assert_eq!(run.verdict, counter.verdict(), "{counter}");
        assert_eq!(run.frame, frame, "the program changes no byte");
        if counter.verdict() == Verdict::Drop {
            let told = last_drops(self.redirect.program()).unwrap();
            assert!(told.contains(&XdpDrop::Redirect(counter)), "{counter} is told as {told:?}");
        }
        if counter == Counter::Taken {
            let layout = expressway_wire::parse_udp(&frame::with_ipv4_checksum(frame));
            let layout =
                layout.unwrap_or_else(|error| panic!("taken, but user space says {error}: {frame:?}"));
            assert!([pair4(), pair6()].contains(&layout.destination), "{}", layout.destination);
        }
        counter
    }
}

/// Puts an unbound AF_XDP socket into the slot of `queue`: enough for the program to redirect. Packets
/// that really come are then dropped by the kernel.
pub(crate) fn fill_slot(redirect: &Redirect, queue: u32) -> OwnedFd {
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
    let id = MapInfo::new(redirect.xsk_map()).unwrap().info.id;
    let map = MapHandle::from_map_id(id).unwrap();
    map.update(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes(), MapFlags::ANY).unwrap();
    socket
}

/// Whether `condition` comes true within a time that only a failure takes.
pub(crate) fn eventually(condition: impl Fn() -> bool) -> bool {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !condition() {
        if std::time::Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    true
}
