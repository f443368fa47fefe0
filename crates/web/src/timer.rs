//! Wake-ups at given times: one thread for everything that waits for a time.
//!
//! Times are rounded up to a tick, so that items due at about the same time wake the thread once. An idle timer sleeps
//! until it gets something to do.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Wake;

/// What times are rounded up to.
const TICK: Duration = Duration::from_millis(10);

/// A tick and the number of an alarm.
type Key = (u64, u64);

#[derive(Default)]
struct State {
    alarms: BTreeMap<Key, Wake>,
    next: u64,
    stopping: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    start: Instant,
}

/// The thread, and what it waits for. Dropping it forgets all alarms.
pub(crate) struct Timer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Something that is to be woken. Dropping it forgets it.
pub(crate) struct Alarm {
    shared: Arc<Shared>,
    key: Key,
}

/// Sets alarms.
#[derive(Clone)]
pub(crate) struct Alarms(Arc<Shared>);

impl Shared {
    /// Nothing in the lock unwinds, so a poisoned state is still consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn time(&self, tick: u64) -> Instant {
        const YEARS: u64 = 1 << 40;
        let ticks = u128::from(tick.min(YEARS)) * TICK.as_nanos();
        self.start + Duration::from_nanos(u64::try_from(ticks).unwrap_or(u64::MAX))
    }

    /// Ticks since the start, rounded down.
    fn ticks(&self, when: Instant) -> u64 {
        let since = when.saturating_duration_since(self.start);
        u64::try_from(since.as_nanos() / TICK.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Timer {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let shared =
            Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), start: Instant::now() });
        let thread = std::thread::Builder::new().name("timer".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || run(&shared)
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What sets its alarms.
    pub(crate) fn alarms(&self) -> Alarms {
        Alarms(Arc::clone(&self.shared))
    }
}

impl Alarms {
    /// Has `wake` called at `when`, or up to a tick later.
    pub(crate) fn set(&self, when: Instant, wake: Wake) -> Alarm {
        let tick = self.0.ticks(when) + 1;
        let mut state = self.0.lock();
        state.next += 1;
        let key = (tick, state.next);
        let is_first = state.alarms.first_key_value().is_none_or(|(first, _)| key < *first);
        state.alarms.insert(key, wake);
        drop(state);
        if is_first {
            self.0.changed.notify_one();
        }
        Alarm { shared: Arc::clone(&self.0), key }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let wake = self.shared.lock().alarms.remove(&self.key);
        drop(wake);
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stopping = true;
        let alarms = std::mem::take(&mut state.alarms);
        drop(state);
        drop(alarms);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            // The last owner may be what the thread has just woken; it cannot wait for itself.
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the timer thread panicked");
        }
    }
}

fn run(shared: &Shared) {
    let mut state = shared.lock();
    while !state.stopping {
        let now = Instant::now();
        let later = state.alarms.split_off(&(shared.ticks(now) + 1, 0));
        let due = std::mem::replace(&mut state.alarms, later);
        if !due.is_empty() {
            drop(state);
            due.values().for_each(Wake::wake);
            drop(due);
            state = shared.lock();
            continue;
        }
        let next = state.alarms.first_key_value().map(|((tick, _), _)| shared.time(*tick));
        state = match next {
            None => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(next) => {
                let time = next.saturating_duration_since(now);
                shared.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
            }
        };
    }
}

impl fmt::Debug for Alarms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarms").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::Notify;

    struct Told(Sender<u64>);

    impl Notify for Told {
        fn notify(&self, token: u64) {
            let _ = self.0.send(token);
        }
    }

    #[test]
    fn alarms_come_in_order_and_those_dropped_do_not() {
        let (sender, told) = channel();
        let told_by: Arc<dyn Notify> = Arc::new(Told(sender));
        let start = Instant::now();
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), start });
        let set = |ms: u64| {
            let wake = Wake::new(Arc::clone(&told_by), ms);
            Alarms(Arc::clone(&shared)).set(start + Duration::from_millis(ms), wake)
        };
        let alarms = [set(100), set(20), set(0), set(3_600_000)];
        drop(set(10));
        // Not before: on a busy machine an alarm might be due while the next is set.
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || run(&shared)
        });
        let timer = Timer { shared: Arc::clone(&shared), thread: Some(thread) };
        assert_eq!([told.recv(), told.recv(), told.recv()], [Ok(0), Ok(20), Ok(100)]);
        assert!(start.elapsed() >= Duration::from_millis(100), "not before its time");
        drop(alarms);
        assert!(timer.shared.lock().alarms.is_empty());
        let forgotten = set(3_600_000);
        drop(timer);
        drop(forgotten);
        drop(told_by);
        assert!(told.recv().is_err(), "nothing is left that could tell");
    }
}
