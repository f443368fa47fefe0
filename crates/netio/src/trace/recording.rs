//! Recordings: who records what, and reads it.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use crossbeam_queue::ArrayQueue;

use super::clock::Clock;
use super::{Event, Tracer, WorkerTrace, XskQueue, is_same};

/// Events in the rings of all workers together: some 30 MB while a recording is under way, and events of a tenth of a second at
/// a million packets a second. A worker's ring has no fewer than the least.
const EVENTS: usize = 1 << 18;
const LEAST_EVENTS: usize = 1 << 12;
const MOST_EVENTS: usize = 1 << 15;

/// What is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The client's address and port; any, where there is none.
    pub client: Option<(IpAddr, Option<u16>)>,
    /// What a connection ID that leads to the connection begins with; empty: any.
    pub connection: Vec<u8>,
}

impl Filter {
    /// Whether a client at that address is meant.
    pub fn has_address(&self, remote: SocketAddr) -> bool {
        self.client.is_none_or(|(address, port)| {
            is_same(address, remote.ip()) && port.is_none_or(|port| port == remote.port())
        })
    }

    /// Whether a connection is meant whose client is there, and that these IDs lead to.
    pub fn selects<'a>(&self, remote: SocketAddr, mut ids: impl Iterator<Item = &'a [u8]>) -> bool {
        self.has_address(remote)
            && (self.connection.is_empty() || ids.any(|id| id.starts_with(&self.connection)))
    }
}

/// What is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What is followed.
    pub filter: Filter,
    /// One request in so many, by worker; at least 1.
    pub sample: u32,
}

/// A recording on one worker.
pub(super) struct Track {
    pub(super) options: Options,
    pub(super) clock: Clock,
    ring: ArrayQueue<Event>,
    lost: AtomicU64,
    asked: AtomicU32,
}

impl Track {
    pub(super) fn push(&self, event: Event) {
        if self.ring.push(event).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn samples(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.options.sample.max(1))
    }
}

/// Why nothing is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// One at a time.
    #[error("another trace is running: wait until it ends")]
    Busy,
}

impl Shared {
    fn stop(&self) {
        for worker in &self.workers {
            worker.epoch.store(0, Ordering::Release);
            worker.track.store(None);
            worker.switch(None);
        }
    }
}

/// The tracers of all workers of a process.
#[derive(Clone)]
pub struct Tracers {
    shared: Arc<Shared>,
}

struct Shared {
    workers: Vec<Arc<WorkerTrace>>,
    is_recording: AtomicBool,
    epochs: AtomicU32,
}

impl Tracers {
    /// For so many workers, up to 65,536.
    pub fn new(workers: usize) -> Self {
        let trace = |worker| Arc::new(WorkerTrace { worker, ..WorkerTrace::default() });
        let workers = (0..=u16::MAX).take(workers).map(trace).collect();
        let shared = Shared { workers, is_recording: AtomicBool::new(false), epochs: AtomicU32::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// A worker's.
    ///
    /// # Panics
    /// Where there is no such worker.
    pub fn tracer(&self, worker: usize) -> Tracer {
        Tracer { shared: Arc::clone(&self.shared.workers[worker]) }
    }

    /// Starts a recording, which lasts until it is dropped.
    ///
    /// # Errors
    /// There is one already.
    pub fn start(&self, options: &Options) -> Result<Recording, StartError> {
        let shared = Arc::clone(&self.shared);
        if shared.is_recording.swap(true, Ordering::AcqRel) {
            return Err(StartError::Busy);
        }
        let clock = Clock::new();
        let room = (EVENTS / shared.workers.len().max(1)).clamp(LEAST_EVENTS, MOST_EVENTS);
        let track = || {
            Arc::new(Track {
                options: options.clone(),
                clock,
                ring: ArrayQueue::new(room),
                lost: AtomicU64::new(0),
                asked: AtomicU32::new(0),
            })
        };
        let tracks: Vec<_> = shared.workers.iter().map(|_| track()).collect();
        // Never 0, and after 2^32 recordings a number comes again, which hurts nobody.
        let epoch = shared.epochs.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        for (worker, track) in shared.workers.iter().zip(&tracks) {
            worker.track.store(Some(Arc::clone(track)));
            worker.switch(Some(&clock));
            worker.epoch.store(epoch, Ordering::Release);
        }
        Ok(Recording { shared, tracks, clock, next: 0 })
    }
}

/// A recording under way. Dropping it ends it.
pub struct Recording {
    shared: Arc<Shared>,
    tracks: Vec<Arc<Track>>,
    clock: Clock,
    next: usize,
}

/// Events of one worker.
#[derive(Debug)]
pub struct Batch {
    /// The worker's number.
    pub worker: usize,
    /// What it recorded, by time.
    pub events: Vec<Event>,
}

impl Recording {
    /// Workers whose events are recorded.
    pub fn workers(&self) -> usize {
        self.tracks.len()
    }

    /// How its clock is related to others.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Takes up to `limit` events of one worker; workers take turns. `None`: there are none at the moment.
    pub fn take(&mut self, limit: usize) -> Option<Batch> {
        let count = self.tracks.len();
        let worker = (0..count)
            .map(|offset| (self.next + offset) % count)
            .find(|worker| !self.tracks[*worker].ring.is_empty())?;
        self.next = worker + 1;
        let ring = &self.tracks[worker].ring;
        let events = std::iter::from_fn(|| ring.pop()).take(limit).collect();
        Some(Batch { worker, events })
    }

    /// Has nothing more recorded. What was stays to be taken.
    pub fn stop(&mut self) {
        self.shared.stop();
    }

    /// Events that found no room, since the start.
    pub fn lost(&self) -> u64 {
        self.tracks.iter().map(|track| track.lost.load(Ordering::Relaxed)).sum()
    }

    /// Where an AF_XDP socket of a worker is, by its index.
    pub fn queue(&self, worker: usize, index: u16) -> Option<XskQueue> {
        let worker = self.shared.workers.get(worker)?;
        let queues = worker.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.get(usize::from(index)).cloned()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.shared.stop();
        self.shared.is_recording.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("workers", &self.workers()).field("lost", &self.lost()).finish()
    }
}
