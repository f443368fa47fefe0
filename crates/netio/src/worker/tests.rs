use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::io::{Datagram, Flow};
use crate::mailbox::mailbox;
use crate::sim::{Link, Network, SimIo};

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 4000))
}

/// A message that does nothing.
const SILENT: u32 = u32::MAX;

/// Writes down what happens to it, and answers each datagram.
#[derive(Default)]
struct Recorder {
    log: Rc<RefCell<Vec<String>>>,
    replies: Vec<(Flow, Vec<u8>)>,
    finished: bool,
    /// What `handle_timer` of token 1 cancels.
    cancels: Option<usize>,
    left: Transmit,
    /// How long it sleeps over a datagram.
    takes: Duration,
    /// How many more turns it takes part in.
    turns_left: Option<u32>,
    handled: u64,
    /// What other threads see of `handled`.
    shown: Arc<AtomicU64>,
}

impl Recorder {
    fn note(&self, entry: impl Into<String>) {
        self.log.borrow_mut().push(entry.into());
    }
}

impl Service for Recorder {
    type Message = u32;

    fn handle_datagram(&mut self, _: &mut Context<'_, u32>, datagram: Datagram<'_>) {
        std::thread::sleep(self.takes);
        self.note(format!("datagram {}", datagram.payload.len()));
        self.replies.push((Flow::new(datagram.local, datagram.remote), datagram.payload.to_vec()));
    }

    fn handle_message(&mut self, context: &mut Context<'_, u32>, message: u32) {
        self.note(format!("message {message}"));
        self.handled += 1;
        match message {
            0 => self.finished = true,
            SILENT => {}
            token => context.timers.arm(token as usize, context.now + Duration::from_millis(5)),
        }
    }

    fn handle_timer(&mut self, context: &mut Context<'_, u32>, token: usize) {
        self.note(format!("timer {token}"));
        if let Some(other) = self.cancels.take() {
            context.timers.cancel(other);
        }
        self.finished |= token == 99;
    }

    fn poll_transmit(
        &mut self,
        _: &mut Context<'_, u32>,
        io: &mut dyn PacketIo,
    ) -> Result<Transmit, IoError> {
        self.note("transmit");
        for (flow, payload) in self.replies.drain(..) {
            let mut once = Some(payload);
            io.transmit(&flow, 1400, &mut |slot| {
                let Some(payload) = once.take() else { return 0 };
                slot[..payload.len()].copy_from_slice(&payload);
                payload.len()
            })?;
        }
        if let Some(left) = &mut self.turns_left {
            *left -= 1;
            self.finished = *left == 0;
        }
        Ok(self.left)
    }

    fn publish(&mut self) {
        self.shown.store(self.handled, Ordering::Relaxed);
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}

type Log = Rc<RefCell<Vec<String>>>;

/// Options with so many pieces in a slice, whatever the clock says.
fn pieces(pieces: u32) -> WorkerOptions {
    WorkerOptions { slice: SliceLimit::Pieces(pieces), ..WorkerOptions::default() }
}

fn bed(network: &Network, options: WorkerOptions) -> (Worker<Recorder, SimIo>, Mailbox<u32>, SimIo, Log) {
    let (sender, inbox) = mailbox(1024).expect("an eventfd");
    let service = Recorder::default();
    let log = Rc::clone(&service.log);
    let io = network.endpoint(&[address(1)]).expect("the address is free");
    let peer = network.endpoint(&[address(2)]).expect("the address is free");
    let peers = Arc::from([sender.clone()]);
    (Worker::new(options, Instant::now(), service, io, inbox, peers), sender, peer, log)
}

fn send_one(peer: &mut SimIo, now: Instant, len: usize) {
    let mut left = 1;
    peer.transmit(&Flow::new(address(2), address(1)), len, &mut |slot| {
        let length = slot.len() * left;
        left = 0;
        length
    })
    .expect("there is a buffer");
    peer.flush(now).expect("the simulated network takes all");
}

#[test]
fn one_turn_goes_datagrams_messages_timers_transmit() {
    let network = Network::new(1, Link::default());
    let (mut worker, sender, mut peer, log) = bed(&network, WorkerOptions::default());
    let now = Instant::now();
    worker.with_service(now, |_, context| context.timers.arm(3, now));
    sender.try_send(7).expect("there is room");
    send_one(&mut peer, now, 20);
    let turn = worker.turn(now + Duration::from_millis(1)).expect("nothing fails");
    assert_eq!(*log.borrow(), ["datagram 20", "message 7", "timer 3", "transmit"]);
    let expected = Turn { received: 1, messages: 1, timers: 1, transmitted: 1, ..Turn::default() };
    assert_eq!(turn, expected);
    assert_eq!(worker.stats().turns, 1);
    let mut echoed = 0;
    peer.receive(now + Duration::from_millis(1), &mut |datagram| echoed += datagram.payload.len())
        .expect("nothing fails");
    assert_eq!(echoed, 20, "flushed within the turn");
}

#[test]
fn a_flood_of_datagrams_does_not_starve_timers() {
    let network = Network::new(1, Link::default());
    let options = WorkerOptions { receive_batches: 2, ..pieces(u32::MAX) };
    let (mut worker, _sender, mut peer, log) = bed(&network, options);
    let now = Instant::now();
    for _ in 0..300 {
        send_one(&mut peer, now, 10);
    }
    worker.with_service(now, |_, context| context.timers.arm(3, now));
    let later = now + Duration::from_millis(1);
    let turn = worker.turn(later).expect("nothing fails");
    assert_eq!((turn.received, turn.timers), (128, 1));
    assert!(turn.input_left);
    assert_eq!(log.borrow()[128], "timer 3");
    worker.turn(later).expect("nothing fails");
    let last = worker.turn(later).expect("nothing fails");
    assert_eq!(last.received, 300 - 256);
    assert!(!last.input_left);
}

#[test]
fn messages_are_limited_in_a_turn_and_none_is_lost() {
    let network = Network::new(1, Link::default());
    let options = WorkerOptions { message_limit: 10, ..pieces(u32::MAX) };
    let (mut worker, sender, _peer, _log) = bed(&network, options);
    for token in 1..=15 {
        sender.try_send(token).expect("there is room");
    }
    let now = Instant::now();
    let first = worker.turn(now).expect("nothing fails");
    assert_eq!((first.messages, first.input_left), (10, true));
    let second = worker.turn(now).expect("nothing fails");
    assert_eq!((second.messages, second.input_left), (5, false));
    assert!(worker.turn(now).expect("nothing fails").is_idle());
}

#[test]
fn a_batch_goes_on_in_the_next_turn_when_the_slice_is_spent() {
    let network = Network::new(1, Link::default());
    let (mut worker, _sender, mut peer, log) = bed(&network, pieces(10));
    let now = Instant::now();
    for length in 1..=100 {
        send_one(&mut peer, now, length);
    }
    worker.with_service(now, |_, context| context.timers.arm(3, now));
    let later = now + Duration::from_millis(1);
    for turn in 0..10 {
        let done = worker.turn(later).expect("nothing fails");
        assert_eq!((done.received, done.transmitted, done.timers), (10, 10, usize::from(turn == 0)));
        // A batch of 64, then one of 36: no other is received before all of one was handled.
        let received = if turn < 6 { 64 } else { 100 };
        assert_eq!(worker.io().stats().rx_kernel_packets, received, "turn {turn}");
        assert_eq!(done.input_left, turn < 9, "turn {turn}");
    }
    assert_eq!(worker.turn(later).expect("nothing fails"), Turn::default());
    let handled: Vec<_> = log.borrow().iter().filter(|entry| entry.starts_with("data")).cloned().collect();
    let sent: Vec<_> = (1..=100).map(|length| format!("datagram {length}")).collect();
    assert_eq!(handled, sent, "each once, in order");
    assert_eq!(worker.stats().unfinished, 9);
}

#[test]
fn a_slice_of_time_ends_with_the_piece_that_exceeds_it() {
    let network = Network::new(1, Link::default());
    let (mut worker, sender, mut peer, _log) = bed(&network, WorkerOptions::default());
    let now = Instant::now();
    for _ in 0..5 {
        send_one(&mut peer, now, 10);
    }
    sender.try_send(SILENT).expect("there is room");
    worker.with_service(now, |_, context| context.timers.arm(3, now));
    worker.service_mut().takes = TURN_TIME;
    for turn in 0..5 {
        let done = worker.turn(now + Duration::from_millis(1)).expect("nothing fails");
        assert_eq!(done.received, 1, "turn {turn}");
        assert_eq!(
            (done.messages, done.timers),
            if turn == 0 { (1, 1) } else { (0, 0) },
            "they have their own"
        );
    }
}

#[test]
fn messages_and_timers_go_on_in_the_next_turn_when_the_slice_is_spent() {
    let network = Network::new(1, Link::default());
    let (mut worker, sender, _peer, log) = bed(&network, pieces(7));
    let now = Instant::now();
    worker.with_service(now, |_, context| {
        for token in 1000..2000 {
            context.timers.arm(token, now);
        }
    });
    for _ in 0..20 {
        sender.try_send(SILENT).expect("there is room");
    }
    let later = now + Duration::from_millis(1);
    let mut fired = 0;
    for turn in 0.. {
        let done = worker.turn(later).expect("nothing fails");
        assert_eq!(done.messages, [7, 7, 6].get(turn).copied().unwrap_or_default());
        assert!(done.timers <= 7, "turn {turn}: {} timers", done.timers);
        fired += done.timers;
        if turn == 2 {
            // Expired, not handled yet: one is called off, one put off, one is new.
            worker.with_service(later, |_, context| {
                let left = (1000..2000).filter(|token| !context.timers.is_armed(*token));
                let open: Vec<_> = left.collect();
                assert!(open.len() > 100, "some have expired");
                let unheard = |token: &usize| !log.borrow().contains(&format!("timer {token}"));
                let mut waiting = open.into_iter().filter(unheard);
                context.timers.cancel(waiting.next().expect("one waits"));
                context.timers.arm(waiting.next().expect("another waits"), later + Duration::from_secs(1));
                context.timers.arm(3, now);
            });
        }
        if !done.has_more() {
            break;
        }
    }
    assert_eq!(fired, 999, "1000, less two, and a new one");
    assert!(worker.next_deadline().expect("one is left") > later);
    let log = log.borrow();
    let mut timers: Vec<_> = log.iter().filter(|entry| entry.starts_with("timer")).collect();
    timers.sort_unstable();
    timers.dedup();
    assert_eq!(timers.len(), 999, "each once");
}

#[test]
fn a_worker_with_more_to_do_turns_again_without_a_pause() {
    let network = Network::real_time(1, Link::default());
    let (mut worker, _sender, _peer, _log) = bed(&network, WorkerOptions::default());
    worker.service_mut().left = Transmit::More;
    worker.service_mut().turns_left = Some(20);
    worker.run().expect("the service finishes");
    let stats = worker.stats();
    assert_eq!((stats.turns, stats.blocked, stats.sleeps, stats.unfinished), (20, 0, 0, 20));
}

#[test]
fn turns_are_counted_by_their_length() {
    let network = Network::real_time(1, Link::default());
    let (mut worker, sender, mut peer, _log) = bed(&network, WorkerOptions::default());
    worker.service_mut().takes = Duration::from_millis(3);
    let now = Instant::now();
    send_one(&mut peer, now, 10);
    send_one(&mut peer, now, 10);
    sender.try_send(SILENT).expect("there is room");
    worker.with_service(now, |_, context| context.timers.arm(99, now + Duration::from_millis(20)));
    worker.run().expect("the service finishes");
    let times = worker.stats_cell().turns();
    assert_eq!(times, worker.turn_times());
    assert_eq!(times.turns(), worker.stats().turns);
    assert!(times.buckets[6..].iter().sum::<u64>() >= 2, "two turns of more than 2.5 ms: {times:?}");
    assert!(times.longest >= 3_000_000 && times.sum >= 6_000_000);
}

#[test]
fn a_timer_cancelled_by_another_of_the_same_turn_does_not_fire() {
    let network = Network::new(1, Link::default());
    let (mut worker, _sender, _peer, log) = bed(&network, WorkerOptions::default());
    let now = Instant::now();
    worker.service_mut().cancels = Some(2);
    worker.with_service(now, |_, context| {
        context.timers.arm(2, now);
        context.timers.arm(1, now);
    });
    worker.turn(now + Duration::from_millis(1)).expect("nothing fails");
    assert_eq!(*log.borrow(), ["timer 1", "transmit"]);
}

#[test]
fn run_wakes_for_messages_from_other_threads() {
    let network = Network::real_time(1, Link::default());
    let (mut worker, sender, _peer, log) = bed(&network, WorkerOptions::default());
    let other = std::thread::spawn(move || {
        // Each waits until the one before was taken, so that the worker sleeps in between.
        for message in [5, 6, 0] {
            sender.try_send(message).expect("the worker runs");
            while !sender.is_empty() {
                std::thread::yield_now();
            }
        }
    });
    worker.run().expect("the service finishes");
    other.join().expect("the thread ends");
    let messages: Vec<_> =
        log.borrow().iter().filter(|entry| entry.starts_with("message")).cloned().collect();
    assert_eq!(messages, ["message 5", "message 6", "message 0"]);
    assert_eq!(worker.stats_cell().worker().messages, 3, "published at the end");
}

#[test]
fn what_a_worker_has_counted_is_seen_while_it_sleeps() {
    let network = Network::real_time(1, Link::default());
    let (mut worker, sender, _peer, _log) = bed(&network, WorkerOptions::default());
    let shown = Arc::clone(&worker.service().shown);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Each message but the first comes in another phase of the interval, and nothing after it wakes the
            // worker.
            for (before, phase) in [0, 0, 30, 60, 90].into_iter().enumerate() {
                std::thread::sleep(Duration::from_millis(phase));
                sender.try_send(SILENT).expect("there is room");
                let deadline = Instant::now() + Duration::from_secs(20);
                while shown.load(Ordering::Relaxed) == before as u64 && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if shown.load(Ordering::Relaxed) == before as u64 {
                    break;
                }
            }
            sender.try_send(0).expect("there is room");
        });
        worker.run().expect("nothing fails");
    });
    assert_eq!(worker.service().handled, 6, "each was shown before the next was sent");
    assert_eq!(worker.service().shown.load(Ordering::Relaxed), 6, "shown at the end");
}

#[test]
fn run_wakes_for_datagrams_and_timers() {
    let link = Link { delay: Duration::from_millis(3), ..Link::default() };
    let network = Network::real_time(1, link);
    let (mut worker, _sender, mut peer, log) = bed(&network, WorkerOptions::default());
    let now = Instant::now();
    send_one(&mut peer, now, 30);
    worker.with_service(now, |_, context| context.timers.arm(99, now + Duration::from_millis(20)));
    worker.run().expect("the service finishes");
    assert!(Instant::now() >= now + Duration::from_millis(20), "never early");
    assert!(log.borrow().contains(&"datagram 30".to_owned()));
    assert_eq!(worker.stats_cell().io().rx_kernel_packets, 1);
}

#[test]
fn a_blocked_worker_pauses_instead_of_spinning() {
    let network = Network::real_time(1, Link::default());
    let (mut worker, _sender, _peer, _log) = bed(&network, WorkerOptions::default());
    worker.service_mut().left = Transmit::Blocked;
    worker.service_mut().turns_left = Some(20);
    // Ends only if it tries again by itself: nothing else wakes it.
    worker.run().expect("the service finishes");
    let stats = worker.stats();
    assert_eq!((stats.turns, stats.blocked), (20, 20));
    assert_eq!(stats.sleeps, 19, "each turn but the last was followed by a sleep");
}

#[test]
fn a_core_that_does_not_exist_is_an_error() {
    for core in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
        let network = Network::new(1, Link::default());
        let options = WorkerOptions { core: Some(core), ..WorkerOptions::default() };
        let (mut worker, ..) = bed(&network, options);
        let error = worker.run().expect_err("there is no such core");
        assert!(error.to_string().contains(&format!("pin to core {core}")), "{error}");
    }
}

/// A backend whose descriptor is readable and gives nothing, and which is replaced once.
struct Stuck {
    readable: std::os::fd::OwnedFd,
    generation: u64,
    fail_after: usize,
    /// The `fail_after` at which the descriptor stops to be readable.
    recover_at: usize,
}

impl PacketIo for Stuck {
    fn receive(&mut self, _: Instant, _: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        self.fail_after -= 1;
        if self.fail_after == 50 {
            self.generation += 1;
        }
        if self.fail_after == self.recover_at {
            rustix::io::read(&self.readable, &mut [0u8; 8]).expect("it was readable");
        }
        match self.fail_after {
            0 => Err(IoError::InterfaceGone { interface: "veth7".to_owned(), ifindex: 7 }),
            _ => Ok(0),
        }
    }

    fn transmit(
        &mut self,
        _: &Flow,
        _: usize,
        _: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<crate::io::Sent, IoError> {
        Ok(crate::io::Sent::default())
    }

    fn flush(&mut self, _: Instant) -> Result<(), IoError> {
        Ok(())
    }

    fn max_payload(&mut self, _: &Flow) -> usize {
        1472
    }

    fn descriptors(&self, visit: &mut dyn FnMut(std::os::fd::BorrowedFd<'_>)) {
        visit(std::os::fd::AsFd::as_fd(&self.readable));
    }

    fn descriptors_generation(&self) -> u64 {
        self.generation
    }

    fn batch(&self) -> usize {
        64
    }

    fn stats(&self) -> crate::io::IoStats {
        crate::io::IoStats::default()
    }
}

#[test]
fn a_stuck_descriptor_is_paused_and_a_fatal_error_ends_the_run() {
    let readable = rustix::event::eventfd(1, rustix::event::EventfdFlags::empty()).expect("an eventfd");
    let io = Stuck { readable, generation: 0, fail_after: 200, recover_at: usize::MAX };
    let (sender, inbox) = mailbox(8).expect("an eventfd");
    let peers = Arc::from([sender]);
    let mut worker =
        Worker::new(WorkerOptions::default(), Instant::now(), Recorder::default(), io, inbox, peers);
    let error = worker.run().expect_err("the backend fails");
    assert!(matches!(error, IoError::InterfaceGone { ifindex: 7, .. }));
    let stats = worker.stats();
    assert!(stats.stuck_pauses > 0, "a descriptor that gives nothing is paused");
    assert_eq!(stats.descriptor_changes, 1);
    assert_eq!(stats.turns, 199);
}

#[test]
fn a_descriptor_that_recovers_lets_the_worker_sleep_again() {
    // Readable for 70 turns, 6 of them beyond the limit; then it sleeps until the timer.
    let readable = rustix::event::eventfd(1, rustix::event::EventfdFlags::empty()).expect("an eventfd");
    let io = Stuck { readable, generation: 0, fail_after: usize::MAX, recover_at: usize::MAX - 70 };
    let (sender, inbox) = mailbox(8).expect("an eventfd");
    let peers = Arc::from([sender]);
    let start = Instant::now();
    let mut worker = Worker::new(WorkerOptions::default(), start, Recorder::default(), io, inbox, peers);
    worker.with_service(start, |_, context| {
        context.timers.arm(99, start + Duration::from_millis(500));
    });
    worker.run().expect("the timer ends it");
    let stats = worker.stats();
    assert!(stats.stuck_pauses <= 70 - u64::from(STUCK_WAKES), "{stats:?}");
}

#[test]
fn a_spinning_worker_never_sleeps_and_hears_messages() {
    let network = Network::new(1, Link::default());
    let options = WorkerOptions { wait: Wait::Spin(Default::default()), ..WorkerOptions::default() };
    let (mut worker, sender, _peer, log) = bed(&network, options);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(5));
            sender.try_send(0).expect("there is room");
        });
        worker.run().expect("nothing fails");
    });
    let stats = worker.stats();
    assert_eq!((stats.sleeps, stats.messages), (0, 1));
    assert!(stats.spins > 0 && stats.turns > stats.spins);
    assert!(log.borrow().contains(&"message 0".to_owned()));
}
