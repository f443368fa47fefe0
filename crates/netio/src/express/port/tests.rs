//! Tests of a port: what it makes of failures, on a veth where it takes the kernel to fail.

use std::sync::atomic::{AtomicU32, Ordering};

use super::health::{FAILURE_MEMORY, RECEIVE_FAILURES, REOPEN_LONGEST, STALL_TIME, Task, is_stalled};
use super::*;
use crate::express::config::{BindMode, Failing};
use crate::express::engine::check_mode;
use crate::express::interface::Interfaces;

#[test]
fn a_queue_is_stuck_when_kicked_often_and_long_without_a_completion() {
    let start = Instant::now();
    let mut quiet = None;
    for kick in 0..100 {
        assert!(!is_stalled(&mut quiet, start, 5, 7), "kicked {kick} times at once");
    }
    assert!(is_stalled(&mut quiet, start + STALL_TIME, 5, 7));
    assert!(!is_stalled(&mut quiet, start + STALL_TIME, 5, 8), "one was completed");
    assert!(!is_stalled(&mut quiet, start + STALL_TIME * 2, 5, 8), "long, but kicked twice");
    for _ in 0..100 {
        is_stalled(&mut quiet, start + STALL_TIME * 2, 5, 8);
    }
    assert!(!is_stalled(&mut quiet, start + STALL_TIME * 9, 0, 8), "nothing in flight");
}

#[test]
fn an_explicit_mode_is_obtained_or_an_error() {
    let config = |mode| PortConfig { mode, ..PortConfig::new("eth9", 3) };
    check_mode(&config(BindMode::Auto), ObtainedMode::Copy).unwrap();
    check_mode(&config(BindMode::ZeroCopy), ObtainedMode::ZeroCopy).unwrap();
    let error = check_mode(&config(BindMode::ZeroCopy), ObtainedMode::Copy).unwrap_err().to_string();
    assert!(error.starts_with("eth9 queue 3: AF_XDP bind asked for zero-copy and the kernel gave copy"));
}

/// A veth in a network namespace, one end of which a port is opened on; removed on drop.
struct Veth {
    name: String,
}

impl Veth {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            let required =
                std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_some_and(|value| value == "1");
            assert!(!required, "EXPRESSWAY_REQUIRE_ROOT_TESTS=1 but this is not root");
            eprintln!("skipped: needs root (CAP_NET_ADMIN)");
            return None;
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("xsk-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        run(&format!("ip netns add {name}"));
        let veth = Self { name };
        veth.ip(
            "link add xsk0 numrxqueues 1 numtxqueues 1 type veth peer name far0 numrxqueues 1 numtxqueues 1",
        );
        veth.ip("link set xsk0 up");
        veth.ip("link set far0 up");
        let file = std::fs::File::open(format!("/run/netns/{}", veth.name)).expect("just made");
        rustix::thread::move_into_link_name_space(
            file.as_fd(),
            Some(rustix::thread::LinkNameSpaceType::Network),
        )
        .expect("root may enter a namespace");
        Some(veth)
    }

    fn ip(&self, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.name));
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        // The kernel frees a namespace that cannot be named any more with its last socket.
        let _ = std::process::Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

fn run(command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command has a first word");
    let output = std::process::Command::new(program).args(words).output().expect("it can be started");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Sends one frame and waits until the kernel has completed it.
fn send_one(port: &mut Port) {
    let before = port.active.as_ref().expect("open").xsk().counters().completed;
    let mut frame = port.alloc().expect("a frame is idle");
    frame.bytes()[..64].fill(0xff);
    assert!(frame.submit(0..64));
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        port.send(Instant::now());
        let active = port.active.as_mut().expect("still open");
        let (xsk, umem) = active.engine.xsk(XSK);
        xsk.complete(umem);
        if active.xsk().counters().completed > before {
            return;
        }
        assert!(Instant::now() < deadline, "never completed: {:?}", port.report());
    }
}

#[test]
fn a_failed_socket_is_replaced_and_its_counters_stay() {
    let Some(_veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let config = PortConfig { rx_ring: 64, tx_ring: 64, ..PortConfig::new("xsk0", 0) };
    let mut port = Port::open(config, redirect.xsk_map()).unwrap();
    assert_eq!(port.state, PortState::Up);
    for _ in 0..100 {
        send_one(&mut port);
    }
    // One is built, but the socket fails before it is sent.
    assert!(port.alloc().unwrap().submit(0..64));
    port.active.as_mut().unwrap().engine.xsk(XSK).0.publish();
    let now = Instant::now();
    port.fail(now, Task::Send, "for the test");
    assert_eq!((port.state, port.mode(), port.is_up()), (PortState::Reopening, None, false));
    assert!(port.alloc().is_none() && port.descriptor().is_none());
    assert!(port.receive(64).is_none());
    port.send(now);
    assert!(!port.reopen(now), "not before its time");
    let mut lost = IoStats::default();
    port.count(&mut lost);
    assert_eq!(lost.dropped_send_refused, 1, "the one that was not sent is counted");
    let deadline = now + Duration::from_secs(20);
    while !port.reopen(Instant::now()) {
        assert_eq!(port.state, PortState::Reopening);
        assert!(port.next_turn(Instant::now()).is_some(), "a sleeping worker is woken for the next try");
        assert!(Instant::now() < deadline, "the queue never came free");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((port.state, port.report().reopened), (PortState::Up, 1));
    for _ in 0..100 {
        send_one(&mut port);
    }
    let mut stats = IoStats::default();
    port.count(&mut stats);
    assert_eq!(stats.dropped_send_refused, 1);

    let opened = port.opened;
    let pause = port.pause;
    port.fail(opened, Task::Send, "one that fails as soon as it is open");
    assert_eq!(port.next_try, opened + (pause * 2).min(REOPEN_LONGEST));
    port.fail(opened + REOPEN_LONGEST, Task::Send, "one that has served a while");
    assert_eq!(port.pause, REOPEN_FIRST);
}

/// Waits until the kernel says so of the link, and tells the port: carriers are reported by a work item of the
/// kernel (`net/core/link_watch.c`), some time after the command that changed them.
fn follow(port: &mut Port, interfaces: &Interfaces, link: LinkState) {
    await_link(interfaces, port.ifindex(), link);
    port.set_link(link);
}

fn await_link(interfaces: &Interfaces, ifindex: u32, link: LinkState) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while interfaces.state(ifindex) != link {
        assert!(Instant::now() < deadline, "the link never was {link:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn states_follow_the_link() {
    let Some(veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let interfaces = Interfaces::open(&OwnNamespace).unwrap();
    veth.ip("link set far0 down");
    await_link(&interfaces, interfaces.index("xsk0").unwrap(), LinkState::Down);
    let mut port = Port::open(PortConfig::new("xsk0", 0), redirect.xsk_map()).unwrap();
    assert_eq!(port.state, PortState::Down, "no carrier");
    veth.ip("link set far0 up");
    follow(&mut port, &interfaces, LinkState::Up);
    assert_eq!(port.state, PortState::Up);
    send_one(&mut port);
    interfaces.drain();
    veth.ip("link set xsk0 down");
    assert!(interfaces.drain(), "going down is told");
    // Nobody told the port; the kick meets it.
    assert!(port.alloc().unwrap().submit(0..64));
    port.send(Instant::now());
    assert_eq!(port.state, PortState::Down);
    assert_eq!(port.mode(), Some(ObtainedMode::Copy), "the socket is kept");
    veth.ip("link set xsk0 up");
    follow(&mut port, &interfaces, LinkState::Up);
    send_one(&mut port);
    veth.ip("link del xsk0");
    follow(&mut port, &interfaces, LinkState::Gone);
    assert_eq!((port.state, port.mode()), (PortState::Gone, None));
    port.set_link(LinkState::Up);
    assert_eq!(port.state, PortState::Gone, "another interface of that index is another interface");
}

#[test]
fn busy_poll_settings_are_on_the_socket_and_on_the_one_that_replaces_it() {
    let Some(_veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let mut port = Port::open(PortConfig::new("xsk0", 0), redirect.xsk_map()).unwrap();
    let read = |port: &Port| {
        let fd = port.descriptor().expect("open");
        // The budget cannot be read (`sk_getsockopt` in `net/core/sock.c`).
        [wait::SO_PREFER_BUSY_POLL, libc::SO_BUSY_POLL]
            .map(|name| crate::sys::option(fd, libc::SOL_SOCKET, name).unwrap())
    };
    assert_eq!(read(&port)[0], 0);
    let poll = wait::BusyPoll { time: Duration::from_micros(40), budget: 32 };
    port.set_wait(Wait::BusyPoll(poll)).unwrap();
    assert_eq!(read(&port), [1, 40]);
    assert_eq!(port.report().napi, None, "a veth's queue names no NAPI context");
    port.fail(Instant::now(), Task::Send, "for the test");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !port.reopen(Instant::now()) {
        assert!(Instant::now() < deadline, "the queue never came free");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(read(&port), [1, 40]);
}

#[test]
fn sending_that_fails_again_goes_to_the_kernel_where_that_is_allowed() {
    let Some(_veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    for (failing, kept) in [(Failing::Demote, false), (Failing::Replace, true)] {
        let config = PortConfig { rx_ring: 64, tx_ring: 64, failing, ..PortConfig::new("xsk0", 0) };
        let mut port = Port::open(config, redirect.xsk_map()).unwrap();
        let status = port.status();
        let mut now = Instant::now();
        for _ in 0..2 {
            assert!(port.transmits());
            port.fail(now, Task::Send, "for the test");
            assert_eq!(status.report().state, PortState::Reopening);
            now += REOPEN_LONGEST;
            reopen(&mut port, now);
        }
        assert_eq!(port.transmits(), kept);
        let report = status.report();
        assert_eq!(
            (report.state, report.mode),
            (PortState::Up, Some(ObtainedMode::Copy)),
            "it still receives"
        );
        assert_eq!(report.transmit == TransmitVia::Express, kept);
        assert_eq!(report.reason.as_deref(), (!kept).then_some("for the test"));
        // Failures that lie far apart are not held against each other.
        if kept {
            port.config.failing = Failing::Demote;
            port.fail(now + FAILURE_MEMORY * 2, Task::Send, "for the test");
            assert!(port.transmits());
        }
    }
}

#[test]
fn receiving_that_fails_again_and_again_goes_to_the_kernel() {
    let Some(_veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let config =
        PortConfig { rx_ring: 64, tx_ring: 64, failing: Failing::Demote, ..PortConfig::new("xsk0", 0) };
    let mut port = Port::open(config, redirect.xsk_map()).unwrap();
    let mut now = Instant::now();
    for _ in 1..RECEIVE_FAILURES {
        port.fail(now, Task::Receive, "for the test");
        now += REOPEN_LONGEST;
        reopen(&mut port, now);
    }
    port.fail(now, Task::Receive, "for the test");
    let report = port.status().report();
    assert_eq!((report.state, report.mode), (PortState::Gone, None));
    assert_eq!(report.reason.as_deref(), Some("for the test"));
}

/// Opens a failed socket anew; the kernel may hold its queue for a moment yet.
fn reopen(port: &mut Port, mut now: Instant) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !port.reopen(now) {
        assert!(Instant::now() < deadline, "the queue never came free");
        std::thread::sleep(Duration::from_millis(5));
        now += REOPEN_LONGEST;
    }
}

#[test]
fn a_raised_mtu_is_followed() {
    let Some(veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let config = PortConfig { rx_ring: 64, tx_ring: 64, ..PortConfig::new("xsk0", 0) };
    let mut port = Port::open(config, redirect.xsk_map()).unwrap();
    let interfaces = Interfaces::open(&OwnNamespace).unwrap();
    let now = Instant::now();
    port.set_mtu(now, interfaces.mtu(port.ifindex()).unwrap());
    assert_eq!((port.state, port.multi_buffer), (PortState::Up, false));
    veth.ip("link set xsk0 mtu 9000");
    assert!(interfaces.drain(), "a changed MTU is told");
    port.set_mtu(now, interfaces.mtu(port.ifindex()).unwrap());
    assert_eq!((port.state, port.multi_buffer), (PortState::Reopening, true));
    reopen(&mut port, now);
    assert!(port.report().multi_buffer);
    send_one(&mut port);
    // A smaller one changes nothing: the socket takes packets of any size now.
    port.set_mtu(now, 1500);
    assert_eq!((port.state, port.multi_buffer), (PortState::Up, true));
}

#[test]
fn a_raised_mtu_that_larger_frames_hold_takes_larger_frames() {
    let Some(veth) = Veth::new() else { return };
    veth.ip("link set xsk0 mtu 1000");
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let config = PortConfig { rx_ring: 64, tx_ring: 64, ..PortConfig::new("xsk0", 0) };
    let mut port = Port::open(config, redirect.xsk_map()).unwrap();
    assert_eq!((port.config.frame_size, port.multi_buffer), (2048, false));
    let now = Instant::now();
    port.set_mtu(now, 1500);
    assert_eq!(port.state, PortState::Reopening);
    reopen(&mut port, now);
    assert_eq!((port.config.frame_size, port.multi_buffer), (4096, false));
    assert_eq!(port.active.as_ref().unwrap().engine.umem.frame_size(), 4096);
    // One that is learnt of while there is no socket is that of the next.
    port.fail(now, Task::Send, "for the test");
    port.set_mtu(now, 9000);
    reopen(&mut port, now);
    assert_eq!((port.config.frame_size, port.multi_buffer), (2048, true));
}

/// Another process that makes sockets, once it is told to.
struct Slow {
    redirect: expressway_xbpf::Redirect,
    go_on: std::sync::mpsc::Receiver<()>,
}

impl SocketSource for Slow {
    fn bind(
        &mut self,
        config: &PortConfig,
        memory: BorrowedFd<'_>,
    ) -> Result<crate::express::source::Bound, OpenError> {
        let refused = OpenError::Refused {
            interface: config.interface.clone(),
            queue: config.queue,
            reason: "it has gone".into(),
            transient: false,
        };
        self.go_on.recv().map_err(|_| refused)?;
        crate::express::source::bind_for(config, memory, self.redirect.xsk_map())
    }

    fn namespace(&self) -> &dyn crate::route::NetlinkSource {
        &OwnNamespace
    }
}

#[test]
fn a_worker_does_not_wait_for_another_process_that_makes_its_socket() {
    let Some(_veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let (tell, go_on) = std::sync::mpsc::channel();
    tell.send(()).unwrap();
    let config = PortConfig { rx_ring: 64, tx_ring: 64, ..PortConfig::new("xsk0", 0) };
    let mut port = Port::open_from(config, Box::new(Slow { redirect, go_on })).unwrap();
    send_one(&mut port);
    let mut now = Instant::now();
    port.fail(now, Task::Send, "for the test");
    for _ in 0..10 {
        // Each of these would never return if it waited.
        now = port.next_turn(now).expect("the worker is woken for the next look");
        assert!(!port.reopen(now));
        assert_eq!(port.state, PortState::Reopening);
    }
    tell.send(()).unwrap();
    // Where the queue is not free yet it is asked again.
    tell.send(()).unwrap();
    tell.send(()).unwrap();
    reopen(&mut port, now);
    send_one(&mut port);
    assert_eq!(port.report().reopened, 1);
    // One that will never make another is given up.
    drop(tell);
    while port.state != PortState::Gone {
        port.fail(now, Task::Send, "for the test");
        now += REOPEN_LONGEST;
        while port.state == PortState::Reopening {
            port.reopen(now);
            now += REOPEN_LONGEST;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(port.report().reason.as_deref(), Some("xsk0 queue 0: it has gone"));
}
