//! The rates of queues.

use std::collections::BTreeMap;

use expressway_xbpf::FlowPrograms;
use serde::Serialize;

use super::Window;
use super::history::{Clock, History, Traffic};
use crate::flows::sample::{Counts, Paths, Queue};
use crate::packet::Direction;

/// Queues with a history: as many as the programs tell apart, in both directions.
const QUEUES: usize = FlowPrograms::DEVICES * 2 * (FlowPrograms::QUEUES + 1);

/// A second's part of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PathRate {
    /// Bits per second.
    pub bits: f64,
    /// Packets per second.
    pub packets: f64,
}

impl PathRate {
    fn of(counts: Counts, seconds: f64) -> Self {
        Self { bits: counts.bytes as f64 * 8.0 / seconds, packets: counts.packets as f64 / seconds }
    }
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueRow {
    /// The device's name.
    pub device: String,
    /// Which way.
    pub direction: Direction,
    /// Its number; `None`: packets whose queue is not known.
    pub queue: Option<u32>,
    /// All of its packets over 2, 10 and 40 seconds.
    pub rates: [PathRate; 3],
    /// Over 10 seconds, to or from AF_XDP sockets.
    pub af_xdp: PathRate,
    /// Likewise, the kernel's stack.
    pub kernel: PathRate,
    /// Likewise, sent by XDP programs.
    pub xdp: PathRate,
    /// Likewise, dropped by XDP.
    pub dropped: PathRate,
    /// Its share of the packets of its device in this direction, over 10 seconds, 0 to 1.
    pub share: f64,
}

/// Device, direction and number; those that are not known last.
type Key = (String, Direction, u32);

/// The queues' histories.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    entries: BTreeMap<Key, (History, u64)>,
}

impl Queues {
    /// Takes those of a sample. One that has gone is forgotten after the longest window.
    pub(super) fn add(&mut self, clock: &Clock, queues: &[Queue]) {
        let slot = clock.slot();
        for queue in queues {
            let key = (queue.device.clone(), queue.direction, queue.queue.unwrap_or(u32::MAX));
            if self.entries.len() >= QUEUES && !self.entries.contains_key(&key) {
                continue;
            }
            let (history, seen) = self.entries.entry(key).or_default();
            *seen = slot;
            if queue.paths != Paths::default() {
                history.add(slot, &Traffic { received: queue.paths, ..Traffic::default() });
            }
        }
        let first = clock.first(Window::Long).0;
        self.entries.retain(|_, (_, seen)| *seen >= first);
    }

    /// By device, direction and number.
    pub(super) fn rows(&self, clock: &Clock) -> Vec<QueueRow> {
        let windows = Window::ALL.map(|window| clock.first(window));
        let mut rows: Vec<QueueRow> = self
            .entries
            .iter()
            .map(|((device, direction, number), (history, _))| {
                let counts = windows.map(|(first, _)| history.since(first).received);
                let of = |counts: Counts| PathRate::of(counts, windows[1].1);
                QueueRow {
                    device: device.clone(),
                    direction: *direction,
                    queue: Some(*number).filter(|number| *number != u32::MAX),
                    rates: [0, 1, 2].map(|at| PathRate::of(counts[at].all(), windows[at].1)),
                    af_xdp: of(counts[1].af_xdp),
                    kernel: of(counts[1].kernel),
                    xdp: of(counts[1].xdp),
                    dropped: of(counts[1].dropped),
                    share: 0.0,
                }
            })
            .collect();
        for group in
            rows.chunk_by_mut(|one, other| (&one.device, one.direction) == (&other.device, other.direction))
        {
            let all: f64 = group.iter().map(|row| row.rates[1].packets).sum();
            for row in group.iter_mut().filter(|_| all > 0.0) {
                row.share = row.rates[1].packets / all;
            }
        }
        rows
    }
}
