//! The counters of backends and workers, declared and published with `expressway-metrics`.

mod io;
mod times;
mod worker;

pub use expressway_metrics::{CounterSet, Metric, Published, counters};
pub use io::IoStats;
pub use times::{TURN_BOUNDS, TurnTimes};
pub use worker::WorkerStats;

/// What one worker last published of its counters, at most a tenth of a second old.
#[derive(Debug, Default)]
pub struct StatsCell {
    io: Published<IoStats>,
    worker: Published<WorkerStats>,
    turns: Published<TurnTimes>,
}

impl StatsCell {
    /// Publishes. Called by the owning worker.
    pub fn store(&self, io: &IoStats, worker: &WorkerStats, turns: &TurnTimes) {
        self.io.store(io);
        self.worker.store(worker);
        self.turns.store(turns);
    }

    /// The backend's counters.
    pub fn io(&self) -> IoStats {
        self.io.load()
    }

    /// The worker's own counters.
    pub fn worker(&self) -> WorkerStats {
        self.worker.load()
    }

    /// How long turns took.
    pub fn turns(&self) -> TurnTimes {
        self.turns.load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_is_loaded() {
        let (mut io, mut next) = (IoStats::default(), 0);
        io.each(&mut |value| {
            next += 1;
            *value = next;
        });
        assert_eq!((io.rx_xsk_packets, io.rx_xsk_bytes, io.fields().len() as u64), (1, 2, next));
        let worker = WorkerStats { turns: 7, sleeps: 5, ..WorkerStats::default() };
        let cell = StatsCell::default();
        let mut turns = TurnTimes::default();
        turns.record(std::time::Duration::from_micros(70));
        cell.store(&io, &worker, &turns);
        assert_eq!((cell.io(), cell.worker(), cell.turns()), (io, worker, turns));
    }
}
