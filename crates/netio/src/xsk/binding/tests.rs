//! Tests of a binding: what it makes of failures, on a veth where it takes the kernel to fail.

use std::sync::atomic::{AtomicU32, Ordering};

use super::health::{FAILURE_MEMORY, RECEIVE_FAILURES, REOPEN_LONGEST, STALL_TIME, Task, is_stalled};
use super::*;
use crate::xsk::config::{BindMode, FailurePolicy};
use crate::xsk::engine::check_mode;
use crate::xsk::interface::Interfaces;

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
    let config = |mode| XskConfig { mode, ..XskConfig::new("eth9", 3) };
    check_mode(&config(BindMode::Auto), ObtainedMode::Copy).unwrap();
    check_mode(&config(BindMode::ZeroCopy), ObtainedMode::ZeroCopy).unwrap();
    let error = check_mode(&config(BindMode::ZeroCopy), ObtainedMode::Copy).unwrap_err().to_string();
    assert!(error.starts_with("eth9 queue 3: AF_XDP bind asked for zero-copy and the kernel gave copy"));
}

/// A veth in a network namespace, one end of which a binding is opened on; removed on drop.
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
fn send_one(binding: &mut XskBinding) {
    let before = binding.active.as_ref().expect("open").xsk().counters().completed;
    let mut frame = binding.alloc().expect("a frame is idle");
    frame.bytes()[..64].fill(0xff);
    assert!(frame.submit(0..64));
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        binding.send(Instant::now());
        let active = binding.active.as_mut().expect("still open");
        let (xsk, umem) = active.engine.xsk(XSK);
        xsk.complete(umem);
        if active.xsk().counters().completed > before {
            return;
        }
        assert!(Instant::now() < deadline, "never completed: {:?}", binding.report());
    }
}

#[test]
fn a_failed_socket_is_replaced_and_its_counters_stay() {
    let Some(_veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let config = XskConfig { rx_ring: 64, tx_ring: 64, ..XskConfig::new("xsk0", 0) };
    let mut binding = XskBinding::open(config, redirect.xsk_map()).unwrap();
    assert_eq!(binding.state, BindingState::Up);
    for _ in 0..100 {
        send_one(&mut binding);
    }
    // One is built, but the socket fails before it is sent.
    assert!(binding.alloc().unwrap().submit(0..64));
    binding.active.as_mut().unwrap().engine.xsk(XSK).0.publish();
    let now = Instant::now();
    binding.fail(now, Task::Send, "for the test");
    assert_eq!((binding.state, binding.mode(), binding.is_up()), (BindingState::Reopening, None, false));
    assert!(binding.alloc().is_none() && binding.descriptor().is_none());
    assert!(binding.receive(64).is_none());
    binding.send(now);
    assert!(!binding.reopen(now), "not before its time");
    let mut lost = IoStats::default();
    binding.count(&mut lost);
    assert_eq!(lost.dropped_send_refused, 1, "the one that was not sent is counted");
    let deadline = now + Duration::from_secs(20);
    while !binding.reopen(Instant::now()) {
        assert_eq!(binding.state, BindingState::Reopening);
        assert!(binding.next_turn(Instant::now()).is_some(), "a sleeping worker is woken for the next try");
        assert!(Instant::now() < deadline, "the queue never came free");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((binding.state, binding.report().reopened), (BindingState::Up, 1));
    for _ in 0..100 {
        send_one(&mut binding);
    }
    let mut stats = IoStats::default();
    binding.count(&mut stats);
    assert_eq!(stats.dropped_send_refused, 1);

    let opened = binding.opened;
    let pause = binding.pause;
    binding.fail(opened, Task::Send, "one that fails as soon as it is open");
    assert_eq!(binding.next_try, opened + (pause * 2).min(REOPEN_LONGEST));
    binding.fail(opened + REOPEN_LONGEST, Task::Send, "one that has served a while");
    assert_eq!(binding.pause, REOPEN_FIRST);
}

/// Waits until the kernel says so of the link, and tells the binding: carriers are reported by a work item of the
/// kernel (`net/core/link_watch.c`), some time after the command that changed them.
fn follow(binding: &mut XskBinding, interfaces: &Interfaces, link: LinkState) {
    await_link(interfaces, binding.ifindex(), link);
    binding.set_link(link);
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
    let mut binding = XskBinding::open(XskConfig::new("xsk0", 0), redirect.xsk_map()).unwrap();
    assert_eq!(binding.state, BindingState::Down, "no carrier");
    veth.ip("link set far0 up");
    follow(&mut binding, &interfaces, LinkState::Up);
    assert_eq!(binding.state, BindingState::Up);
    send_one(&mut binding);
    interfaces.drain();
    veth.ip("link set xsk0 down");
    assert!(interfaces.drain(), "going down is told");
    // Nobody told the binding; the kick meets it.
    assert!(binding.alloc().unwrap().submit(0..64));
    binding.send(Instant::now());
    assert_eq!(binding.state, BindingState::Down);
    assert_eq!(binding.mode(), Some(ObtainedMode::Copy), "the socket is kept");
    veth.ip("link set xsk0 up");
    follow(&mut binding, &interfaces, LinkState::Up);
    send_one(&mut binding);
    veth.ip("link del xsk0");
    follow(&mut binding, &interfaces, LinkState::Gone);
    assert_eq!((binding.state, binding.mode()), (BindingState::Gone, None));
    binding.set_link(LinkState::Up);
    assert_eq!(binding.state, BindingState::Gone, "another interface of that index is another interface");
}

#[test]
fn busy_poll_settings_are_on_the_socket_and_on_the_one_that_replaces_it() {
    let Some(_veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let mut binding = XskBinding::open(XskConfig::new("xsk0", 0), redirect.xsk_map()).unwrap();
    let read = |binding: &XskBinding| {
        let fd = binding.descriptor().expect("open");
        // The budget cannot be read (`sk_getsockopt` in `net/core/sock.c`).
        [wait::SO_PREFER_BUSY_POLL, libc::SO_BUSY_POLL]
            .map(|name| crate::sys::option(fd, libc::SOL_SOCKET, name).unwrap())
    };
    assert_eq!(read(&binding)[0], 0);
    let poll = wait::BusyPoll { time: Duration::from_micros(40), budget: 32 };
    binding.set_wait(Wait::BusyPoll(poll)).unwrap();
    assert_eq!(read(&binding), [1, 40]);
    assert_eq!(binding.report().napi, None, "a veth's queue names no NAPI context");
    binding.fail(Instant::now(), Task::Send, "for the test");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !binding.reopen(Instant::now()) {
        assert!(Instant::now() < deadline, "the queue never came free");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(read(&binding), [1, 40]);
}

#[test]
fn sending_that_fails_again_goes_to_the_kernel_where_that_is_allowed() {
    let Some(_veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    for (failing, kept) in [(FailurePolicy::Demote, false), (FailurePolicy::Replace, true)] {
        let config = XskConfig { rx_ring: 64, tx_ring: 64, failing, ..XskConfig::new("xsk0", 0) };
        let mut binding = XskBinding::open(config, redirect.xsk_map()).unwrap();
        let status = binding.status();
        let mut now = Instant::now();
        for _ in 0..2 {
            assert!(binding.transmits());
            binding.fail(now, Task::Send, "for the test");
            assert_eq!(status.report().state, BindingState::Reopening);
            now += REOPEN_LONGEST;
            reopen(&mut binding, now);
        }
        assert_eq!(binding.transmits(), kept);
        let report = status.report();
        assert_eq!(
            (report.state, report.mode),
            (BindingState::Up, Some(ObtainedMode::Copy)),
            "it still receives"
        );
        assert_eq!(report.transmit == TransmitVia::Xsk, kept);
        assert_eq!(report.reason.as_deref(), (!kept).then_some("for the test"));
        // Failures that lie far apart are not held against each other.
        if kept {
            binding.config.failing = FailurePolicy::Demote;
            binding.fail(now + FAILURE_MEMORY * 2, Task::Send, "for the test");
            assert!(binding.transmits());
        }
    }
}

#[test]
fn receiving_that_fails_again_and_again_goes_to_the_kernel() {
    let Some(_veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let config =
        XskConfig { rx_ring: 64, tx_ring: 64, failing: FailurePolicy::Demote, ..XskConfig::new("xsk0", 0) };
    let mut binding = XskBinding::open(config, redirect.xsk_map()).unwrap();
    let mut now = Instant::now();
    for _ in 1..RECEIVE_FAILURES {
        binding.fail(now, Task::Receive, "for the test");
        now += REOPEN_LONGEST;
        reopen(&mut binding, now);
    }
    binding.fail(now, Task::Receive, "for the test");
    let report = binding.status().report();
    assert_eq!((report.state, report.mode), (BindingState::Gone, None));
    assert_eq!(report.reason.as_deref(), Some("for the test"));
}

/// Opens a failed socket anew; the kernel may hold its queue for a moment yet.
fn reopen(binding: &mut XskBinding, mut now: Instant) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !binding.reopen(now) {
        assert!(Instant::now() < deadline, "the queue never came free");
        std::thread::sleep(Duration::from_millis(5));
        now += REOPEN_LONGEST;
    }
}

#[test]
fn a_raised_mtu_is_followed() {
    let Some(veth) = Veth::new() else { return };
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let config = XskConfig { rx_ring: 64, tx_ring: 64, ..XskConfig::new("xsk0", 0) };
    let mut binding = XskBinding::open(config, redirect.xsk_map()).unwrap();
    let interfaces = Interfaces::open(&OwnNamespace).unwrap();
    let now = Instant::now();
    binding.set_mtu(now, interfaces.mtu(binding.ifindex()).unwrap());
    assert_eq!((binding.state, binding.multi_buffer), (BindingState::Up, false));
    veth.ip("link set xsk0 mtu 9000");
    assert!(interfaces.drain(), "a changed MTU is told");
    binding.set_mtu(now, interfaces.mtu(binding.ifindex()).unwrap());
    assert_eq!((binding.state, binding.multi_buffer), (BindingState::Reopening, true));
    reopen(&mut binding, now);
    assert!(binding.report().multi_buffer);
    send_one(&mut binding);
    // A smaller one changes nothing: the socket takes packets of any size now.
    binding.set_mtu(now, 1500);
    assert_eq!((binding.state, binding.multi_buffer), (BindingState::Up, true));
}

#[test]
fn a_raised_mtu_that_larger_frames_hold_takes_larger_frames() {
    let Some(veth) = Veth::new() else { return };
    veth.ip("link set xsk0 mtu 1000");
    let redirect = expressway_xbpf::Redirect::load(&expressway_xbpf::Options::default()).unwrap();
    let config = XskConfig { rx_ring: 64, tx_ring: 64, ..XskConfig::new("xsk0", 0) };
    let mut binding = XskBinding::open(config, redirect.xsk_map()).unwrap();
    assert_eq!((binding.config.frame_size, binding.multi_buffer), (2048, false));
    let now = Instant::now();
    binding.set_mtu(now, 1500);
    assert_eq!(binding.state, BindingState::Reopening);
    reopen(&mut binding, now);
    assert_eq!((binding.config.frame_size, binding.multi_buffer), (4096, false));
    assert_eq!(binding.active.as_ref().unwrap().engine.umem.frame_size(), 4096);
    // One that is learnt of while there is no socket is that of the next.
    binding.fail(now, Task::Send, "for the test");
    binding.set_mtu(now, 9000);
    reopen(&mut binding, now);
    assert_eq!((binding.config.frame_size, binding.multi_buffer), (2048, true));
}

/// Another process that makes sockets, once it is told to.
struct Slow {
    redirect: expressway_xbpf::Redirect,
    go_on: std::sync::mpsc::Receiver<()>,
}

impl RemoteBinder for Slow {
    fn bind(
        &mut self,
        config: &XskConfig,
        memory: BorrowedFd<'_>,
    ) -> Result<crate::xsk::remote::BoundXsk, OpenError> {
        let refused = OpenError::Refused {
            interface: config.interface.clone(),
            queue: config.queue,
            reason: "it has gone".into(),
            transient: false,
        };
        self.go_on.recv().map_err(|_| refused)?;
        crate::xsk::remote::bind_for(config, memory, self.redirect.xsk_map())
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
    let config = XskConfig { rx_ring: 64, tx_ring: 64, ..XskConfig::new("xsk0", 0) };
    let mut binding = XskBinding::open_from(config, Box::new(Slow { redirect, go_on })).unwrap();
    send_one(&mut binding);
    let mut now = Instant::now();
    binding.fail(now, Task::Send, "for the test");
    for _ in 0..10 {
        // Each of these would never return if it waited.
        now = binding.next_turn(now).expect("the worker is woken for the next look");
        assert!(!binding.reopen(now));
        assert_eq!(binding.state, BindingState::Reopening);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        // Where the queue is not free yet it is asked again.
        tell.send(()).unwrap();
        if binding.reopen(now) {
            break;
        }
        assert!(Instant::now() < deadline, "the queue never came free");
        std::thread::sleep(Duration::from_millis(5));
        now += REOPEN_LONGEST;
    }
    send_one(&mut binding);
    assert_eq!(binding.report().reopened, 1);
    // One that will never make another is given up.
    drop(tell);
    while binding.state != BindingState::Gone {
        binding.fail(now, Task::Send, "for the test");
        now += REOPEN_LONGEST;
        while binding.state == BindingState::Reopening {
            binding.reopen(now);
            now += REOPEN_LONGEST;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(binding.report().reason.as_deref(), Some("xsk0 queue 0: it has gone"));
}
