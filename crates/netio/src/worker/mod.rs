//! The per-core loop: receive, process, fill, flush, sleep.
//!
//! A [`Worker`] drives one [`Service`] over one [`PacketIo`] on one thread, which may be pinned. It runs to completion:
//! no locks, no allocation per packet, no waiting for other threads. [`Worker::run`] is the loop with the real clock;
//! [`Worker::turn`] is one pass with any clock, which the simulated network uses.
//!
//! No turn is long, whatever arrives, because one client's long turn would delay all others. Each part of a turn has a
//! slice of its time ([`crate::slice`]), and work that is left when the slice is used up is done in the next turn.
//! [`TurnTimes`] has the durations of turns.
//!
//! It sleeps in `epoll_pwait2` until a descriptor of the backend, a message or the next timer is ready, and only spins
//! if configured ([`Wait`]). After a turn that could send more but gets no buffers, it waits for a bounded, growing
//! time; it does the same if a descriptor stays readable without any progress.
//!
//! A connection moves its timer with each packet, which costs a store in the wheel or a move to another list. A timer
//! that was not moved would fire needlessly: at 1,000 requests per second, that was every fourth wake-up (counted by
//! strace).
//!
//! A turn is divided into slices by kind of work (datagrams, messages, timers, connections), each with a share of the
//! turn's time. Code that does several pieces of work checks between two whether the slice is used up; the first piece
//! is always done, so that nothing waits for ever. The rest of an interrupted batch is copied, because frames and GRO
//! messages cannot be left half read. Nothing more is received until it is done, so the copies are bounded by a batch,
//! and the queue remains in the socket. Slices are measured by the clock, which is read once per piece, but not for the
//! first. Tests count pieces instead, and a slice of one piece must lose nothing. The clock reading that ends a turn
//! also begins the next one, and gives the metrics its duration.
//!
//! A worker waits by interrupts, by busy polling in `epoll_wait` (which with `[io.napi]` keeps the device's interrupts
//! off while packets arrive), or by spinning. A spinning worker's sockets are not watched by epoll, because delivering
//! a packet would then cost a call into epoll and its locks. It also sends a turn's packets before it checks whether
//! the kernel waits for frames to receive into, which takes a full fence. Busy polling needs the NAPI context of a
//! queue; if the driver does not report it, nothing is polled, and that is logged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

use crate::io::{IoError, PacketIo};
use crate::mailbox::{Inbox, Mailbox};
use crate::service::{Context, Service, Transmit};
use crate::slice::{Share, Slice, SliceLimit};
use crate::stats::StatsCell;
pub use crate::stats::{TURN_BOUNDS, TurnTimes, WorkerStats};
use crate::timer::TimerWheel;
use crate::trace::{Hop, Tracer};
use crate::wait::Wait;

use backlog::Backlog;
use counting::Counting;
use sleep::Poller;

mod backlog;
mod busy_poll;
mod counting;
mod sleep;
#[cfg(test)]
mod tests;

/// How old published counters may get while the worker has something to do.
pub const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);

/// First and longest pause of a worker that could send more but finds no transmit buffer. The first is about
/// what a copy-mode socket takes to complete one batch; the longest bounds the cost of a link that is down.
const BLOCKED_PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

/// So many wake-ups in a row by a descriptor without any work count as a descriptor in error; each further
/// one is followed by a pause of `STUCK_PAUSE`.
const STUCK_WAKES: u32 = 64;
const STUCK_PAUSE: Duration = Duration::from_millis(1);

/// What a turn's slices take together by default. The pieces of work that cannot be cut, one at the end of each slice, and
/// the flush leave a turn below a millisecond.
pub const TURN_TIME: Duration = Duration::from_micros(600);

/// Timers that are looked at in one go.
const TIMERS_A_LOOK: usize = 256;

/// How a worker runs.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// This worker's index; its mailbox is `peers[index]`.
    pub index: usize,
    /// The CPU to pin its thread to.
    pub core: Option<usize>,
    /// The most batches received in one turn. More amortise transmission better under load; timers and
    /// messages wait for that many batches at most.
    pub receive_batches: usize,
    /// The most messages handled in one turn.
    pub message_limit: usize,
    /// Timer tokens below this number cost no allocation when first armed (32 bytes each).
    pub timer_tokens: usize,
    /// How long the parts of a turn may take before the rest waits for the next turn.
    pub slice: SliceLimit,
    /// How it waits when there is nothing to do.
    pub wait: Wait,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            index: 0,
            core: None,
            receive_batches: 4,
            message_limit: 256,
            timer_tokens: 1024,
            slice: SliceLimit::Time(TURN_TIME),
            wait: Wait::Interrupt,
        }
    }
}

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Datagrams handled.
    pub received: usize,
    /// Messages handled.
    pub messages: usize,
    /// Timers fired.
    pub timers: usize,
    /// Datagrams built for transmission.
    pub transmitted: usize,
    /// A limit of the turn was reached, so that more input may be waiting: turn again without sleeping.
    pub input_left: bool,
    /// The turn was over before the service had done all that it could: likewise.
    pub output_left: bool,
    /// The service could send more if there were buffers.
    pub blocked: bool,
}

impl Turn {
    /// Whether anything happened.
    pub fn is_idle(&self) -> bool {
        self.received + self.messages + self.timers + self.transmitted == 0
    }

    /// The next turn has something to do, whatever comes in.
    pub fn has_more(&self) -> bool {
        self.input_left || self.output_left
    }
}

/// One service on one core.
pub struct Worker<S: Service, P: PacketIo> {
    options: WorkerOptions,
    service: S,
    io: P,
    inbox: Inbox<S::Message>,
    peers: Arc<[Mailbox<S::Message>]>,
    /// Received, but not handled in the last turn.
    backlog: Backlog,
    timers: TimerWheel,
    /// Timers that have expired, of which the first `fired` were handled.
    due: Vec<usize>,
    fired: usize,
    stats: WorkerStats,
    times: TurnTimes,
    cell: Arc<StatsCell>,
    tracer: Tracer,
    /// The last burst that was told as flushed.
    flushed: u64,
}

impl<S: Service, P: PacketIo> Worker<S, P> {
    /// A worker whose time begins at `now`: `Instant::now()`, or the beginning of virtual time.
    ///
    /// `inbox` receives what is sent to `peers[options.index]`.
    pub fn new(
        options: WorkerOptions,
        now: Instant,
        service: S,
        io: P,
        inbox: Inbox<S::Message>,
        peers: Arc<[Mailbox<S::Message>]>,
    ) -> Self {
        let timers = TimerWheel::with_capacity(now, options.timer_tokens);
        let due = Vec::with_capacity(options.timer_tokens);
        Self {
            options,
            service,
            io,
            inbox,
            peers,
            backlog: Backlog::default(),
            timers,
            due,
            fired: 0,
            stats: WorkerStats::default(),
            times: TurnTimes::default(),
            cell: Arc::default(),
            tracer: Tracer::default(),
            flushed: 0,
        }
    }

    /// Has the worker and its backend record what somebody follows. The service has a clone of its own.
    pub fn set_tracer(&mut self, tracer: Tracer) {
        self.io.set_tracer(tracer.clone());
        self.tracer = tracer;
    }

    /// The service.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// The service, to be changed between turns.
    pub fn service_mut(&mut self) -> &mut S {
        &mut self.service
    }

    /// The backend.
    pub fn io(&self) -> &P {
        &self.io
    }

    /// The backend, to be changed between turns.
    pub fn io_mut(&mut self) -> &mut P {
        &mut self.io
    }

    /// Ends the worker and gives back its service and backend.
    pub fn into_parts(self) -> (S, P) {
        (self.service, self.io)
    }

    /// Counters of the worker itself.
    pub fn stats(&self) -> WorkerStats {
        self.stats
    }

    /// How long turns of [`Self::run`] took.
    pub fn turn_times(&self) -> TurnTimes {
        self.times
    }

    /// Where this worker publishes its counters and its backend's; keep a clone to show them.
    pub fn stats_cell(&self) -> Arc<StatsCell> {
        Arc::clone(&self.cell)
    }

    /// When the next turn is due for a timer, if one is armed; see [`TimerWheel::next_deadline`].
    pub fn next_deadline(&mut self) -> Option<Instant> {
        self.timers.next_deadline()
    }

    /// Whether messages wait.
    pub fn has_messages(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// Calls `act` with the service and a context, outside a turn: to start something at the beginning, or
    /// from a test. What it wants to send leaves in the next turn.
    pub fn with_service<R>(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut S, &mut Context<'_, S::Message>) -> R,
    ) -> R {
        let mut slice = Slice::alone(self.options.slice);
        let mut context = Context {
            now,
            timers: &mut self.timers,
            worker: self.options.index,
            peers: &self.peers,
            slice: &mut slice,
        };
        act(&mut self.service, &mut context)
    }

    /// One pass: receive, messages, timers, transmit, flush. Never blocks.
    pub fn turn(&mut self, now: Instant) -> Result<Turn, IoError> {
        // `now` may be virtual, while slices are of real time.
        let begun = match self.options.slice {
            SliceLimit::Time(_) => Instant::now(),
            SliceLimit::Pieces(_) => now,
        };
        self.turn_begun_at(begun, now)
    }

    fn turn_begun_at(&mut self, begun: Instant, now: Instant) -> Result<Turn, IoError> {
        let mut turn = Turn::default();
        let mut slice = Slice::begin(self.options.slice, begun);
        self.receive(now, &mut slice, &mut turn)?;
        slice.enter(Share::Messages);
        self.handle_messages(now, &mut slice, &mut turn);
        slice.enter(Share::Timers);
        self.fire_timers(now, &mut slice, &mut turn);
        slice.enter(Share::Transmit);
        self.transmit(now, &mut slice, &mut turn)?;
        match self.tracer.is_on() {
            false => self.io.flush(now)?,
            true => self.flush_traced(now)?,
        }
        self.stats.turns += 1;
        self.stats.received += turn.received as u64;
        self.stats.transmitted += turn.transmitted as u64;
        self.stats.messages += turn.messages as u64;
        self.stats.timers += turn.timers as u64;
        self.stats.blocked += u64::from(turn.blocked);
        self.stats.unfinished += u64::from(turn.output_left || !self.backlog.is_empty());
        Ok(turn)
    }

    #[cold]
    fn flush_traced(&mut self, now: Instant) -> Result<(), IoError> {
        let began = self.tracer.now();
        self.io.flush(now)?;
        let mark = self.tracer.last_mark();
        if std::mem::replace(&mut self.flushed, mark) != mark {
            self.tracer.record(0, Hop::Flushed { mark, began });
        }
        Ok(())
    }

    /// What was left of the last batch comes first. When the slice is spent within a batch, the rest of that is kept.
    fn receive(&mut self, now: Instant, slice: &mut Slice, turn: &mut Turn) -> Result<(), IoError> {
        let Self { options, service, io, backlog, timers, peers, .. } = self;
        let mut context = Context { now, timers, worker: options.index, peers, slice };
        let handled = &mut turn.received;
        let must_look = |handled: usize| handled != 0 && handled.is_multiple_of(S::DATAGRAMS_A_LOOK);
        turn.input_left = true;
        while !backlog.is_empty() {
            if must_look(*handled) && context.slice.spend() {
                return Ok(());
            }
            backlog.pop(|datagram| service.handle_datagram(&mut context, datagram));
            *handled += 1;
        }
        for _ in 0..options.receive_batches.max(1) {
            let received = io.receive(now, &mut |datagram| {
                if context.slice.is_spent() || must_look(*handled) && context.slice.spend() {
                    backlog.push(&datagram);
                } else {
                    service.handle_datagram(&mut context, datagram);
                    *handled += 1;
                }
            })?;
            // No socket had a full batch: all are drained, as far as can be known without another call.
            // What has come in since makes a descriptor readable.
            if !io.may_have_more(received) {
                turn.input_left = !backlog.is_empty();
                break;
            }
            if context.slice.is_spent() {
                break;
            }
        }
        Ok(())
    }

    fn handle_messages(&mut self, now: Instant, slice: &mut Slice, turn: &mut Turn) {
        let Self { options, service, inbox, timers, peers, .. } = self;
        let mut context = Context { now, timers, worker: options.index, peers, slice };
        let limit = options.message_limit.max(1);
        turn.messages = inbox.drain_while(limit, |message| {
            service.handle_message(&mut context, message);
            !context.slice.spend()
        });
        turn.input_left |= turn.messages == limit || slice.is_spent() && !inbox.is_empty();
    }

    fn fire_timers(&mut self, now: Instant, slice: &mut Slice, turn: &mut Turn) {
        loop {
            while let Some(token) = self.due.get(self.fired).copied() {
                if turn.timers != 0 && slice.spend() {
                    turn.input_left = true;
                    return;
                }
                self.fired += 1;
                // A handler before this one may have cancelled or moved the timer.
                if self.timers.take_fired(token) {
                    let Self { options, service, timers, peers, .. } = self;
                    let mut context = Context { now, timers, worker: options.index, peers, slice };
                    service.handle_timer(&mut context, token);
                    turn.timers += 1;
                }
            }
            self.due.clear();
            self.fired = 0;
            let more = self.timers.expire(now, &mut self.due, TIMERS_A_LOOK);
            if self.due.is_empty() && (!more || slice.spend()) {
                turn.input_left |= more;
                return;
            }
        }
    }

    fn transmit(&mut self, now: Instant, slice: &mut Slice, turn: &mut Turn) -> Result<(), IoError> {
        let Self { options, service, io, timers, peers, .. } = self;
        let mut io = Counting::new(io);
        let mut context = Context { now, timers, worker: options.index, peers, slice };
        let left = service.poll_transmit(&mut context, &mut io)?;
        turn.transmitted = io.accepted();
        turn.blocked = left == Transmit::Blocked;
        turn.output_left = left == Transmit::More;
        Ok(())
    }

    /// Pins the thread if told, then turns and sleeps until the service is finished or the backend fails.
    ///
    /// Counters are published at the end in either case.
    pub fn run(&mut self) -> Result<(), IoError> {
        self.pin()?;
        let wait = self.options.wait;
        self.io.set_wait(wait)?;
        let mut poller = Poller::new(&self.io, &self.inbox, self.options.index, wait)?;
        let result = self.run_with(&mut poller);
        self.publish();
        result
    }

    fn publish(&mut self) {
        self.cell.store(&self.io.stats(), &self.stats, &self.times);
        self.service.publish();
    }

    fn run_with(&mut self, poller: &mut Poller) -> Result<(), IoError> {
        let mut now = Instant::now();
        let mut published = now;
        let mut prepared = now;
        let mut unpublished = true;
        let mut pause = BLOCKED_PAUSES.0;
        loop {
            let begun = now;
            let turn = self.turn_begun_at(begun, begun)?;
            now = Instant::now();
            self.times.record(now.saturating_duration_since(begun));
            if self.service.is_finished() {
                return Ok(());
            }
            unpublished |= !turn.is_idle();
            if unpublished && now.saturating_duration_since(published) >= PUBLISH_INTERVAL {
                self.publish();
                (published, unpublished) = (now, false);
            }
            if poller.follow(&self.io, &self.inbox)? {
                self.stats.descriptor_changes += 1;
                continue;
            }
            if turn.has_more() || (turn.blocked && turn.transmitted != 0) {
                pause = BLOCKED_PAUSES.0;
                continue;
            }
            if let Wait::Spin(spin) = self.options.wait {
                // What a sleeper must not miss, a spinner sees in its next turn; but the backend may have to wake
                // the driver, and sockets in want of a turn. That takes as long as looking at the rings does, so it is
                // not done in every turn: a packet that comes meanwhile waits for it.
                if now.saturating_duration_since(prepared) >= spin.kernel_interval {
                    prepared = now;
                    self.io.prepare_sleep();
                }
                self.stats.spins += u64::from(turn.is_idle());
                unpublished = true;
                std::hint::spin_loop();
                continue;
            }
            let mut until = self.timers.next_deadline();
            if unpublished {
                until = sooner(until, published + PUBLISH_INTERVAL);
            }
            if turn.blocked {
                until = sooner(until, now + pause);
                pause = (pause * 2).min(BLOCKED_PAUSES.1);
            } else {
                pause = BLOCKED_PAUSES.0;
            }
            self.sleep(poller, turn, now, until)?;
            now = Instant::now();
        }
    }

    fn sleep(
        &mut self,
        poller: &mut Poller,
        turn: Turn,
        mut now: Instant,
        until: Option<Instant>,
    ) -> Result<(), IoError> {
        if poller.is_stuck(turn.is_idle()) {
            // Only the wait behind the pause can tell that the descriptor has recovered.
            self.stats.stuck_pauses += 1;
            std::thread::sleep(STUCK_PAUSE);
            now = Instant::now();
        }
        if self.inbox.prepare_sleep() {
            return Ok(());
        }
        if self.io.prepare_sleep() {
            self.inbox.awake();
            return Ok(());
        }
        self.stats.sleeps += 1;
        let slept = poller.wait(now, until);
        self.inbox.awake();
        slept
    }

    fn pin(&self) -> Result<(), IoError> {
        let Some(core) = self.options.core else { return Ok(()) };
        let mut set = CpuSet::new();
        // `CpuSet::set` panics beyond the kernel's mask; such a core does not exist either.
        let pinned = if core < CpuSet::MAX_CPU {
            set.set(core);
            rustix::thread::sched_setaffinity(None, &set)
        } else {
            Err(rustix::io::Errno::INVAL)
        };
        pinned.map_err(|error| IoError::Socket {
            what: format!("worker {}: pin to core {core}", self.options.index),
            source: error.into(),
        })
    }
}

fn sooner(one: Option<Instant>, other: Instant) -> Option<Instant> {
    Some(one.map_or(other, |one| one.min(other)))
}
