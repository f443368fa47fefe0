//! Sends a plan through an output, and records how late each datagram was.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use super::capture::CaptureError;
use super::echo::Echoes;
use super::output::{Output, OutputError};
use super::plan::Plan;
use crate::probe::Probe;

/// Datagrams handed over at once. What falls due meanwhile makes the next batch.
const BATCH: usize = 256;

/// From the start of the run to time 0 of the schedule: the first datagram is no later than the others.
const LEAD: u64 = 10_000_000;

/// How long before a datagram is due waiting turns into looking at the clock: a sleep ends some 50 µs late.
const SPIN: u64 = 100_000;

/// How long after the end of the schedule datagrams are still sent that a busy machine held up.
const GRACE: u64 = 50_000_000;

/// How often the output is looked after while nothing else makes it receive.
const UPKEEP: u64 = 100_000_000;

/// How often the clocks are compared: slewed by 500 ppm, the most that adjtimex allows, they part by 5 µs meanwhile.
const COMPARE: u64 = 10_000_000;

/// The longest that a histogram keeps apart, in nanoseconds: a minute.
const LONGEST: u64 = 60_000_000_000;

/// A histogram of nanoseconds, to three significant digits, up to a minute: 128 KiB or so.
pub(super) fn histogram() -> Histogram<u64> {
    // The bounds are constants that it accepts, as every test shows.
    Histogram::new_with_bounds(1, LONGEST, 3).unwrap_or_else(|error| unreachable!("{error}"))
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything was sent.
    Done,
    /// Its time was over before that.
    OutOfTime,
    /// It was told to stop.
    Stopped,
}

/// Progress of a run, once per second.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Since its start.
    pub elapsed: Duration,
    /// Datagrams handed over.
    pub sent: u64,
    /// Of those: late.
    pub late: u64,
}

/// What a run came to.
pub struct Outcome {
    /// Why it ended.
    pub ended: Ended,
    /// From time 0 of the schedule to the end of sending.
    pub elapsed: Duration,
    /// Datagrams that the schedule had by the time it ended.
    pub offered: u64,
    /// Datagrams that an output took.
    pub taken: u64,
    /// Of [`Self::offered`], those that were not sent before the end.
    pub unsent: u64,
    /// Of [`Self::taken`], those later than the limit.
    pub late: u64,
    /// From when a datagram was due to when it was with the kernel or the device, in nanoseconds.
    pub lateness: Histogram<u64>,
    /// What came back, if that was waited for.
    pub echoes: Option<Echoes>,
}

/// A run.
pub struct Run<'a> {
    /// What to send.
    pub plan: &'a mut Plan,
    /// How.
    pub output: &'a mut dyn Output,
    /// A datagram is late from here on.
    pub late: Duration,
    /// Look at the clock for the last 100 µs before a datagram is due, which takes a core while datagrams are that near to
    /// each other, instead of sleeping to the end.
    pub spin: bool,
    /// How long the run may take at most.
    pub duration: Duration,
    /// Take echoes, and wait for the last of them for so long.
    pub echoes: Option<Duration>,
    /// Ends the run once set.
    pub stop: &'a AtomicBool,
    /// Called about once per second.
    pub observe: &'a mut dyn FnMut(Progress),
}

/// Why a run broke off.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The output.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The capture.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

/// Nanoseconds of CLOCK_MONOTONIC.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The offset from the schedule's time, whose zero is `start` on CLOCK_MONOTONIC, to the clock of
/// [`Probe::time`]. `None` if this thread was delayed at every attempt.
fn epoch(start: u64) -> Option<u64> {
    (0..16).find_map(|_| {
        let before = monotonic();
        let wall = Probe::now();
        let after = monotonic();
        // Closer than this, two clocks are read together.
        let together = after - before < 1000;
        together.then(|| (wall + start).saturating_sub(before + (after - before) / 2))
    })
}

/// A run under way.
struct State {
    start: u64,
    epoch: u64,
    /// When [`Self::epoch`] was worked out.
    timed: u64,
    taken: u64,
    late: u64,
    lateness: Histogram<u64>,
    echoes: Option<Echoes>,
    observed: u64,
    kept: u64,
}

impl State {
    /// Nanoseconds since time 0 of the schedule; 0 before.
    fn now(&self) -> u64 {
        monotonic().saturating_sub(self.start)
    }
}

impl Run<'_> {
    /// Sends everything, or as much as time allows.
    ///
    /// # Errors
    /// What broke it off.
    pub fn run(mut self) -> Result<Outcome, RunError> {
        // Sleeps end when they should rather than up to 50 µs later, the default.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let start = monotonic() + LEAD;
        let mut state = State {
            start,
            epoch: epoch(start).unwrap_or_else(|| (Probe::now() + start).saturating_sub(monotonic())),
            timed: 0,
            taken: 0,
            late: 0,
            lateness: histogram(),
            echoes: self.echoes.map(|_| Echoes::new(self.plan.flows().clone())),
            observed: 0,
            kept: 0,
        };
        let ended = self.send_all(&mut state)?;
        let elapsed = Duration::from_nanos(state.now());
        let offered_at_stop = self.plan.planned();
        // What is left of the whole schedule was offered too, unless somebody wanted it to end.
        let waiting = self.plan.datagrams(0).dues().len() as u64;
        let unsent = match ended {
            Ended::Stopped => waiting,
            Ended::Done | Ended::OutOfTime => self.plan.skip_rest()?,
        };
        let offered = offered_at_stop - waiting + unsent;
        if let (Some(patience), true) = (self.echoes, ended != Ended::Stopped) {
            self.await_echoes(&mut state, patience)?;
        }
        let State { taken, late, lateness, echoes, .. } = state;
        Ok(Outcome { ended, elapsed, offered, taken, unsent, late, lateness, echoes })
    }

    fn send_all(&mut self, state: &mut State) -> Result<Ended, RunError> {
        let end = u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX).saturating_add(GRACE);
        let late = u64::try_from(self.late.as_nanos()).unwrap_or(u64::MAX);
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Ended::Stopped);
            }
            let monotonic = monotonic();
            let Some(now) = monotonic.checked_sub(state.start) else {
                self.pause(state, state.start - monotonic)?;
                continue;
            };
            self.plan.collect(now, BATCH)?;
            if now.saturating_sub(state.timed) >= COMPARE {
                // The wall clock may be slewed or set meanwhile.
                state.timed = now;
                state.epoch = epoch(state.start).unwrap_or(state.epoch);
            }
            let batch = self.plan.datagrams(state.epoch);
            if batch.dues().is_empty() {
                let Some(next) = self.plan.next_time() else { return Ok(Ended::Done) };
                self.look_after(state, now)?;
                self.pause(state, next.saturating_sub(now))?;
                continue;
            }
            if now > end {
                return Ok(Ended::OutOfTime);
            }
            let taken = self.output.send(&batch)?;
            let with_kernel = state.now();
            for due in self.plan.take(taken) {
                let lateness = with_kernel.saturating_sub(due);
                state.late += u64::from(lateness > late);
                state.lateness.saturating_record(lateness);
            }
            state.taken += taken as u64;
            self.look_after(state, with_kernel)?;
        }
    }

    /// Receives, where that is wanted or due; tells how it goes.
    fn look_after(&mut self, state: &mut State, now: u64) -> Result<(), RunError> {
        if state.echoes.is_some() {
            self.receive(state)?;
        } else if now.saturating_sub(state.kept) >= UPKEEP {
            state.kept = now;
            self.output.upkeep()?;
        }
        if now.saturating_sub(state.observed) >= 1_000_000_000 {
            state.observed = now;
            let (sent, late) = (state.taken, state.late);
            (self.observe)(Progress { elapsed: Duration::from_nanos(now), sent, late });
        }
        Ok(())
    }

    fn receive(&mut self, state: &mut State) -> Result<usize, RunError> {
        let sent = state.taken;
        let Some(echoes) = &mut state.echoes else { return Ok(0) };
        Ok(self.output.receive(&mut |payload| echoes.take(payload, Probe::now(), sent))?)
    }

    /// Waits for the next datagram's time, or nearly.
    fn pause(&mut self, state: &State, nanoseconds: u64) -> Result<(), RunError> {
        // Long sleeps in parts, so that a signal is seen soon.
        let spin = if self.spin { SPIN } else { 0 };
        let sleep = nanoseconds.saturating_sub(spin).min(100_000_000);
        if sleep == 0 {
            std::hint::spin_loop();
        } else if state.echoes.is_some() {
            self.output.wait(Duration::from_nanos(sleep))?;
        } else {
            std::thread::sleep(Duration::from_nanos(sleep));
        }
        Ok(())
    }

    fn await_echoes(&mut self, state: &mut State, patience: Duration) -> Result<(), RunError> {
        let deadline = monotonic() + u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX >> 1);
        while state.echoes.as_ref().is_some_and(|echoes| echoes.stats().received < state.taken)
            && !self.stop.load(Ordering::Relaxed)
            && let left @ 1.. = deadline.saturating_sub(monotonic())
        {
            if self.receive(state)? == 0 {
                self.output.wait(Duration::from_nanos(left.min(10_000_000)))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Content, Datagrams, Flows, Pace, Pattern, Payload, Schedule, Sizes, Tally};
    use super::*;

    /// Accepts `at_once` datagrams per call, and returns each when asked for received ones.
    struct Loop {
        at_once: usize,
        payloads: Vec<Vec<u8>>,
        returned: usize,
        broken: bool,
    }

    impl Output for Loop {
        fn send(&mut self, datagrams: &Datagrams<'_>) -> Result<usize, OutputError> {
            if self.broken {
                return Err(OutputError::Other("the wire is cut".into()));
            }
            let count = datagrams.dues().len().min(self.at_once);
            for due in &datagrams.dues()[..count] {
                let mut payload = vec![0; due.length];
                datagrams.write(due, &mut payload);
                self.payloads.push(payload);
            }
            Ok(count)
        }

        fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> Result<usize, OutputError> {
            let waiting = self.payloads.len() - self.returned;
            self.payloads[self.returned..].iter().for_each(|payload| sink(payload));
            self.returned += waiting;
            Ok(waiting)
        }

        fn wait(&mut self, pause: Duration) -> Result<(), OutputError> {
            std::thread::sleep(pause);
            Ok(())
        }

        fn tally(&self) -> Tally {
            Tally { sent: self.payloads.len() as u64, ..Tally::default() }
        }
    }

    fn wire(at_once: usize) -> Loop {
        Loop { at_once, payloads: Vec::new(), returned: 0, broken: false }
    }

    fn run(
        output: &mut Loop,
        rate: f64,
        seconds: f64,
        echoes: bool,
        stop: bool,
    ) -> Result<Outcome, RunError> {
        let to = "192.0.2.9:7000".parse().unwrap();
        let flows = Flows::new(vec![[192, 0, 2, 1].into()], 5000, (to, 1), 3, 1).unwrap();
        let content = Content::Made {
            schedule: Schedule::new(Pace::Even, rate, 1, 0),
            sizes: Sizes::Fixed(32),
            payload: Payload::new(Pattern::Zero, 32, 0),
            seed: 0,
        };
        let mut plan = Plan::new(flows, content, (seconds * 1e9) as u64, u64::MAX).unwrap();
        let run = Run {
            plan: &mut plan,
            output,
            late: Duration::from_secs(3600),
            spin: true,
            duration: Duration::from_secs_f64(seconds),
            echoes: echoes.then_some(Duration::from_secs(10)),
            stop: &AtomicBool::new(stop),
            observe: &mut |_| {},
        };
        run.run()
    }

    #[test]
    fn every_datagram_goes_out_once_with_its_intended_time() {
        let mut output = wire(usize::MAX);
        let before = Probe::now();
        let outcome = run(&mut output, 10_000.0, 0.05, true, false).unwrap();
        // On a machine that stood still for longer than the grace, fewer.
        assert_eq!((outcome.offered, outcome.taken + outcome.unsent), (500, 500));
        assert_eq!(outcome.lateness.len(), outcome.taken);
        assert_eq!(outcome.late, 0);
        let probes: Vec<_> = output.payloads.iter().map(|payload| Probe::parse(payload).unwrap()).collect();
        for (index, probe) in probes.iter().enumerate() {
            assert_eq!((probe.flow as usize, probe.sequence as usize), (index % 3, index / 3));
            assert!(probe.time > before, "{probe:?}");
        }
        let echoes = outcome.echoes.unwrap();
        assert_eq!(echoes.stats().received, outcome.taken);
        assert_eq!(echoes.stats().foreign + echoes.stats().duplicates, 0);
    }

    #[test]
    fn an_output_that_is_too_slow_leaves_datagrams_unsent_and_says_so() {
        struct Slow(Loop);
        impl Output for Slow {
            fn send(&mut self, datagrams: &Datagrams<'_>) -> Result<usize, OutputError> {
                std::thread::sleep(Duration::from_millis(10));
                self.0.send(datagrams)
            }
            fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> Result<usize, OutputError> {
                self.0.receive(sink)
            }
            fn wait(&mut self, pause: Duration) -> Result<(), OutputError> {
                self.0.wait(pause)
            }
            fn tally(&self) -> Tally {
                self.0.tally()
            }
        }
        let to = "192.0.2.9:7000".parse().unwrap();
        let flows = Flows::new(vec![[192, 0, 2, 1].into()], 5000, (to, 1), 1, 1).unwrap();
        let content = Content::Made {
            schedule: Schedule::new(Pace::Even, 100_000.0, 1, 0),
            sizes: Sizes::Fixed(32),
            payload: Payload::new(Pattern::Zero, 32, 0),
            seed: 0,
        };
        let mut plan = Plan::new(flows, content, 100_000_000, u64::MAX).unwrap();
        let run = Run {
            plan: &mut plan,
            output: &mut Slow(wire(10)),
            late: Duration::from_micros(100),
            spin: true,
            duration: Duration::from_millis(100),
            echoes: None,
            stop: &AtomicBool::new(false),
            observe: &mut |_| {},
        };
        let outcome = run.run().unwrap();
        assert_eq!(outcome.ended, Ended::OutOfTime);
        assert_eq!((outcome.offered, outcome.taken + outcome.unsent), (10_000, 10_000));
        // Ten a call of 10 ms, in 150 ms.
        assert!(outcome.taken <= 160, "{}", outcome.taken);
        assert!(outcome.late > 0);
        assert!(outcome.lateness.max() >= 10_000_000);
    }

    #[test]
    fn a_run_can_be_stopped_and_can_break_off() {
        let outcome = run(&mut wire(1), 10.0, 1000.0, false, true).unwrap();
        assert_eq!((outcome.ended, outcome.offered), (Ended::Stopped, 0));
        let mut broken = Loop { broken: true, ..wire(1) };
        let error = run(&mut broken, 10.0, 1.0, false, false).err().unwrap();
        assert_eq!(error.to_string(), "the wire is cut");
    }
}
