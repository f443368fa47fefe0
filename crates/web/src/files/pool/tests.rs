//! The pool alone, with jobs that the test holds and releases.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use super::*;
use crate::Notify;

type TestPool = Pool<u32, u32>;

const LOST: u32 = u32::MAX;

/// Tells which tokens were woken.
struct Woken(Mutex<Sender<u64>>);

impl Notify for Woken {
    fn notify(&self, token: u64) {
        let _ = self.0.lock().unwrap().send(token);
    }
}

struct Bench {
    pool: TestPool,
    woken: Arc<Woken>,
    wakes: Receiver<u64>,
}

impl Bench {
    fn new(threads: usize, capacity: usize) -> Self {
        let (sender, wakes) = channel();
        let pool = Pool::start(threads, capacity, LOST).unwrap();
        Self { pool, woken: Arc::new(Woken(Mutex::new(sender))), wakes }
    }

    fn wake(&self, token: u64) -> Wake {
        Wake::new(self.woken.clone(), token)
    }

    fn ticket(&self, key: u32, token: u64, work: impl FnOnce() -> u32 + Send + 'static) -> Ticket<u32, u32> {
        match self.pool.submit(key, 0, &self.wake(token), None, work) {
            Submitted::Ticket(ticket) => ticket,
            Submitted::Full(_) => panic!("the queue is full"),
        }
    }

    fn blocked(&self, key: u32, token: u64) -> Blocked<u32, u32> {
        match self.pool.submit(key, 0, &self.wake(token), None, move || key) {
            Submitted::Ticket(_) => panic!("the queue has room"),
            Submitted::Full(blocked) => blocked,
        }
    }

    fn next_wake(&self) -> u64 {
        self.wakes.recv_timeout(Duration::from_secs(60)).expect("a wake-up")
    }

    /// Occupies the pool's one thread until the sender is dropped; returns when the job runs.
    fn hold(&self, key: u32) -> (Sender<()>, Ticket<u32, u32>) {
        let (release, held) = channel::<()>();
        let (started, running) = channel();
        let ticket = self.ticket(key, u64::MAX, move || {
            started.send(()).unwrap();
            let _ = held.recv();
            key
        });
        running.recv_timeout(Duration::from_secs(60)).expect("the job starts");
        (release, ticket)
    }
}

#[test]
fn waiters_of_one_key_share_one_job() {
    let bench = Bench::new(1, 4);
    let (release, _held) = bench.hold(0);
    let runs = Arc::new(AtomicU64::new(0));
    let work = |runs: &Arc<AtomicU64>| {
        let runs = Arc::clone(runs);
        move || {
            runs.fetch_add(1, Ordering::Relaxed);
            77
        }
    };
    let tickets: Vec<_> = (1..=3).map(|token| bench.ticket(7, token, work(&runs))).collect();
    assert!(tickets.iter().all(|ticket| ticket.poll().is_none()));
    drop(release);
    let mut tokens: Vec<_> = (0..4).map(|_| bench.next_wake()).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [1, 2, 3, u64::MAX]);
    assert!(tickets.iter().all(|ticket| ticket.poll() == Some(77)));
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(bench.pool.counters().reader_coalesced.load(Ordering::Relaxed), 2);
}

#[test]
fn a_job_that_nobody_waits_for_is_not_run() {
    let bench = Bench::new(1, 4);
    let (release, _held) = bench.hold(0);
    drop(bench.ticket(1, 1, || panic!("must not run")));
    let wanted = bench.ticket(2, 2, || 22);
    drop(release);
    assert_eq!(bench.next_wake(), u64::MAX);
    assert_eq!(bench.next_wake(), 2);
    assert_eq!(wanted.poll(), Some(22));
    assert_eq!(bench.pool.counters().reader_cancelled.load(Ordering::Relaxed), 1);
    assert_eq!(bench.pool.counters().reader_panics.load(Ordering::Relaxed), 0);
}

#[test]
fn a_full_queue_calls_back() {
    let bench = Bench::new(1, 1);
    let (release, _held) = bench.hold(0);
    let queued = bench.ticket(1, 1, || 11);
    let blocked = bench.blocked(2, 2);
    assert_eq!(bench.pool.levels(), (1, 1));
    // Asking again keeps the one place.
    let Submitted::Full(blocked) = bench.pool.submit(2, 0, &bench.wake(2), Some(blocked), || 22) else {
        panic!("still full")
    };
    assert_eq!(bench.pool.levels(), (1, 1));
    drop(release);
    let mut ticket = None;
    let mut blocked = Some(blocked);
    while ticket.as_ref().and_then(Ticket::poll).is_none() {
        if bench.next_wake() == 2 && ticket.is_none() {
            match bench.pool.submit(2, 0, &bench.wake(2), blocked.take(), || 22) {
                Submitted::Ticket(new) => ticket = Some(new),
                Submitted::Full(again) => blocked = Some(again),
            }
        }
    }
    assert_eq!(ticket.unwrap().poll(), Some(22));
    assert_eq!(queued.poll(), Some(11));
    assert_eq!(bench.pool.levels(), (0, 0));
}

#[test]
fn a_place_that_is_given_up_leaves_nothing() {
    let bench = Bench::new(1, 1);
    let (_release, _held) = bench.hold(0);
    let _queued = bench.ticket(1, 1, || 11);
    for _ in 0..1000 {
        drop(bench.blocked(2, 2));
        drop(bench.pool.join(&1, &bench.wake(3)));
    }
    assert_eq!(bench.pool.levels(), (1, 0));
    assert_eq!(bench.pool.shared.lock().flights[&1].waiters.len(), 1);
}

/// Those woken may have nothing to submit any more; the ones behind them must be woken all the same.
#[test]
fn silent_waiters_do_not_starve_the_others() {
    let bench = Bench::new(1, 1);
    let (release, _held) = bench.hold(0);
    let _queued = bench.ticket(1, 1, || 11);
    let _places: Vec<_> = (10..20).map(|token| bench.blocked(token as u32, token)).collect();
    drop(release);
    let mut tokens: Vec<_> =
        (0..12).map(|_| bench.next_wake()).filter(|token| (10..20).contains(token)).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (10..20).collect::<Vec<_>>());
}

#[test]
fn a_job_that_panics_answers_its_waiters_and_spares_the_thread() {
    let bench = Bench::new(1, 4);
    let broken = bench.ticket(1, 1, || panic!("on purpose"));
    assert_eq!(bench.next_wake(), 1);
    assert_eq!(broken.poll(), Some(LOST));
    let sound = bench.ticket(2, 2, || 22);
    assert_eq!(bench.next_wake(), 2);
    assert_eq!(sound.poll(), Some(22));
}

#[test]
fn prefetching_yields_to_need() {
    let bench = Bench::new(1, 4);
    let (release, _held) = bench.hold(0);
    for key in 1..=10 {
        bench.pool.prefetch(key, 0, move || key);
    }
    assert_eq!(bench.pool.levels().0, 2, "half of the queue at most");
    let joined = bench.ticket(1, 1, || panic!("the prefetch is joined"));
    drop(release);
    while joined.poll().is_none() {
        bench.next_wake();
    }
    assert_eq!(joined.poll(), Some(1));
}

#[test]
fn dropping_the_pool_answers_everyone() {
    let bench = Bench::new(1, 1);
    let (release, held) = bench.hold(0);
    let queued = bench.ticket(1, 1, || 11);
    let _blocked = bench.blocked(2, 2);
    let Bench { pool, wakes, .. } = bench;
    let dropping = std::thread::spawn(move || drop(pool));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !queued.shared.lock().stopping {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    drop(release);
    dropping.join().unwrap();
    assert_eq!(held.poll(), Some(0), "a running job ends well");
    assert_eq!(queued.poll(), Some(LOST));
    let mut tokens: Vec<_> = wakes.try_iter().collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [1, 2, u64::MAX]);
}

/// A connection's hundred cold requests do not stand before another's one.
#[test]
fn owners_are_served_in_turn_and_leave_room_for_each_other() {
    let bench = Bench::new(1, 64);
    let (release, _held) = bench.hold(0);
    let submit =
        |key: u32, owner| bench.pool.submit(key, owner, &bench.wake(u64::from(key)), None, move || key);
    let mut places = Vec::new();
    let mut tickets: Vec<_> = (1..=100)
        .filter_map(|key| match submit(key, 1) {
            Submitted::Ticket(ticket) => Some(ticket),
            Submitted::Full(place) => {
                places.push(place);
                None
            }
        })
        .collect();
    assert_eq!((tickets.len(), places.len()), (32, 68), "half of the queue");
    for owner in 2..=20 {
        let Submitted::Ticket(ticket) = submit(1000 + owner as u32, owner) else {
            panic!("no room for {owner}")
        };
        tickets.push(ticket);
    }
    drop(release);
    let (mut others, mut hog) = (Vec::new(), 0);
    while others.len() < 19 {
        match bench.next_wake() {
            token @ 1002..=1020 => others.push(token),
            // Of those in the queue; the others are woken for their places.
            1..=32 => hog += 1,
            _ => {}
        }
    }
    assert_eq!(others, (1002..=1020).collect::<Vec<_>>());
    assert!(hog <= 2, "{hog} jobs stood before the others'");
}

#[test]
fn a_job_wakes_no_more_of_the_blocked_than_can_have_its_place() {
    let bench = Bench::new(1, 8);
    let (release, _held) = bench.hold(0);
    let _queued: Vec<_> = (1..=4).map(|key| bench.ticket(key, u64::from(key), move || key)).collect();
    let _places: Vec<_> = (100..200).map(|token| bench.blocked(token as u32, token)).collect();
    assert_eq!(bench.pool.levels(), (4, 100));
    let (sender, waiting) = channel::<()>();
    let (started, running) = channel();
    let _last = bench.pool.submit(5, 7, &bench.wake(5), None, move || {
        started.send(()).unwrap();
        let _ = waiting.recv();
        5
    });
    drop(release);
    running.recv_timeout(Duration::from_secs(60)).expect("it runs");
    let left = bench.pool.levels().1;
    assert!(left >= 100 - 5 * WOKEN, "{left} of 100 are left");
    drop(sender);
}
