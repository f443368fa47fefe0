//! Where packets and requests spend their time, hop by hop, recorded on request while the process runs.
//!
//! Each worker has a [`Tracer`], and gives clones to its backend and service. Without a recording, a hop costs a branch
//! and one load of a word that nobody writes. [`Tracers::start`] begins a [`Recording`]: hops that its [`Filter`]
//! selects become [`Event`]s in a ring per worker, which the recording's owner reads. A ring is bounded and lock-free:
//! a worker never waits for the reader, and events for which there is no room are counted. A recording ends when it is
//! dropped.
//!
//! Events of a worker are in order of time. A connection belongs to one worker, so its events are in order too. The
//! content of packets is not recorded, but addresses are, and whatever services report about their requests.
//!
//! # What belongs together
//!
//! A burst of packets has a mark. A service takes it before it builds the burst ([`Tracer::begin_burst`]). The backend,
//! which builds in between, reports the send method and detects the completion. [`Hop::Flushed`] applies to all marks
//! up to its own.

mod clock;
mod event;
mod recording;
mod switch;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwapOption;

pub use clock::Clock;
pub use event::{Arrival, Channel, Event, Hop, ID, MAX_REQUEST, escaped};
use recording::Track;
pub use recording::{Batch, Filter, Options, Recording, StartError, Tracers};
pub use switch::StampSwitch;

/// Where an AF_XDP socket is: the name of its interface, and the queue.
pub type XskQueue = (String, u32);

/// A worker's tracer. Clones are of the same worker and stay on its thread.
#[derive(Clone, Default)]
pub struct Tracer {
    shared: Arc<WorkerTrace>,
}

/// What a worker and readers of its events share.
#[derive(Default)]
struct WorkerTrace {
    worker: u16,
    /// Of the recording under way; 0: none. All that is looked at while there is none.
    epoch: AtomicU32,
    track: ArcSwapOption<Track>,
    /// Marks issued, and the one of the burst that is being built; 0: none.
    marks: AtomicU64,
    open: AtomicU64,
    /// The way of the burst that is being built: 0 the kernel's, else an AF_XDP socket's index and 1.
    way: AtomicU32,
    /// Connections that were given numbers.
    connections: AtomicU64,
    /// Where the backend's AF_XDP sockets are, by index.
    queues: Mutex<Vec<XskQueue>>,
    /// The programs that give those their packets.
    switches: Mutex<Vec<StampSwitch>>,
}

impl WorkerTrace {
    /// Has the programs stamp packets from now on, or no more.
    fn switch(&self, clock: Option<&Clock>) {
        for switch in self.switches.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            match clock {
                Some(clock) => switch.on(clock),
                None => switch.off(),
            }
        }
    }
}

/// A burst that is being built.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub struct OpenBurst {
    mark: u64,
    began: u64,
}

impl Tracer {
    /// The recording under way; 0: none.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    /// Somebody asks.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.epoch() != 0
    }

    fn with<R>(&self, act: impl FnOnce(&Track) -> R) -> Option<R> {
        self.shared.track.load().as_ref().map(|track| act(track))
    }

    /// The time now; 0 when nothing is recorded.
    pub fn now(&self) -> u64 {
        self.with(|track| track.clock.nanoseconds(Instant::now())).unwrap_or(0)
    }

    /// How the recording's clock is related to others.
    pub fn clock(&self) -> Option<Clock> {
        self.with(|track| track.clock)
    }

    /// Whether a client's connection is followed: its address, and the IDs that lead to it.
    pub fn selects<'a>(&self, remote: SocketAddr, ids: impl Iterator<Item = &'a [u8]>) -> bool {
        self.with(|track| track.options.filter.selects(remote, ids)).unwrap_or(false)
    }

    /// Whether datagrams of that address are followed, whatever their connection.
    pub fn selects_address(&self, remote: SocketAddr) -> bool {
        self.with(|track| {
            let filter = &track.options.filter;
            filter.connection.is_empty() && filter.has_address(remote)
        })
        .unwrap_or(false)
    }

    /// True for one in as many requests as the recording wants.
    pub fn samples(&self) -> bool {
        self.with(Track::samples).unwrap_or(false)
    }

    /// All requests are followed, so that packets are without regard to requests.
    pub fn follows_all(&self) -> bool {
        self.with(|track| track.options.sample == 1).unwrap_or(false)
    }

    /// A number for a connection, or any other flow of events.
    pub fn number(&self) -> u64 {
        let count = self.shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
        count << 16 | u64::from(self.shared.worker)
    }

    /// Records what happens now.
    pub fn record(&self, connection: u64, hop: Hop) {
        self.with(|track| {
            track.push(Event { time: track.clock.nanoseconds(Instant::now()), connection, hop });
        });
    }

    /// Records what happened before; nothing earlier of the worker's follows.
    pub fn record_at(&self, time: u64, connection: u64, hop: Hop) {
        self.with(|track| track.push(Event { time, connection, hop }));
    }

    /// Packets are about to be built, of something that is followed.
    pub fn begin_burst(&self) -> OpenBurst {
        let mark = self.shared.marks.fetch_add(1, Ordering::Relaxed) + 1;
        self.shared.open.store(mark, Ordering::Relaxed);
        self.shared.way.store(0, Ordering::Relaxed);
        OpenBurst { mark, began: self.now() }
    }

    /// They were built.
    pub fn end_burst(&self, burst: OpenBurst, connection: u64, packets: usize, bytes: usize) {
        self.shared.open.store(0, Ordering::Relaxed);
        if packets == 0 {
            return;
        }
        let way = match self.shared.way.load(Ordering::Relaxed) {
            0 => Channel::Kernel,
            way => Channel::Xsk((way - 1) as u16),
        };
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let OpenBurst { mark, began } = burst;
        let (packets, bytes) = (count(packets), count(bytes));
        self.record(connection, Hop::Burst { mark, began, way, packets, bytes });
    }

    /// For backends: the mark of the burst that is being built, if it is followed.
    pub fn open_burst(&self) -> Option<u64> {
        let mark = self.shared.open.load(Ordering::Relaxed);
        (mark != 0).then_some(mark)
    }

    /// For backends: the burst leaves by that AF_XDP socket, not by the kernel's.
    pub fn leaves_by_xsk(&self, index: usize) {
        self.shared.way.store(index as u32 + 1, Ordering::Relaxed);
    }

    /// The last mark that was issued.
    pub fn last_mark(&self) -> u64 {
        self.shared.marks.load(Ordering::Relaxed)
    }

    /// For backends: the programs that stamp packets for them on demand. Those that it had before stamp no more.
    pub fn set_switches(&self, switches: Vec<StampSwitch>) {
        let mut held = self.shared.switches.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in held.iter().filter(|switch| !switches.contains(switch)) {
            gone.off();
        }
        *held = switches;
        // Under the lock, so that a recording that begins or ends meanwhile has the last word.
        if let Some(clock) = self.clock() {
            held.iter().for_each(|switch| switch.on(&clock));
        }
    }

    /// For backends: where their AF_XDP sockets are, by index.
    pub fn set_queues(&self, queues: Vec<XskQueue>) {
        *self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner) = queues;
    }
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("worker", &self.shared.worker).field("on", &self.is_on()).finish()
    }
}

/// Whether an address is the one that is meant, however it is written.
fn is_same(one: IpAddr, other: IpAddr) -> bool {
    one.to_canonical() == other.to_canonical()
}

#[cfg(all(test, not(loom)))]
mod tests;
