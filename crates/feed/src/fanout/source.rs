//! The feed's side: moves datagrams from packet I/O into the rings.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use expressway_netio::mailbox::Mailbox;
use expressway_netio::stats::{StatsCell, TurnTimes};
use expressway_netio::worker::WorkerStats;
use expressway_netio::{IoError, PacketIo};

use super::ring::Ring;
use super::shard::Message;
use super::stats::{Ledger, add};
use super::subscriber::Snapshot;
use expressway_netio::udp::group::{self, Joined, Keeper};

/// Batches received at a time before subscribers have their turn.
const BATCHES: usize = 4;

/// The newest snapshot, for subscribers of all shards.
pub(crate) type SnapshotSlot = Arc<Mutex<Option<Snapshot>>>;

/// Where datagrams come from.
pub(crate) struct FeedInput<P: PacketIo> {
    pub(crate) io: P,
    pub(crate) rings: Vec<Ring>,
    pub(crate) keeper: Option<Keeper>,
    pub(crate) sources: Vec<IpAddr>,
    pub(crate) snapshot_prefix: Option<Vec<u8>>,
    pub(crate) snapshot: SnapshotSlot,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) cell: Arc<StatsCell>,
    /// The other shards.
    pub(crate) others: Vec<Mailbox<Message>>,
    pub(crate) looked_after: Instant,
}

impl<P: PacketIo> FeedInput<P> {
    /// Receives up to a few batches at `now`, which is `time` of the rings. True if subscribers have
    /// something new.
    pub(crate) fn receive(&mut self, now: Instant, time: u64) -> Result<bool, IoError> {
        let Self { io, rings, sources, snapshot_prefix, ledger, .. } = self;
        let (mut datagrams, mut bytes, mut foreign, mut empty) = (0, 0, 0, 0);
        let mut snapshot: Option<Snapshot> = None;
        for _ in 0..BATCHES {
            let received = io.receive(now, &mut |datagram| {
                if !sources.is_empty() && !sources.contains(&datagram.remote.ip()) {
                    foreign += 1;
                    return;
                }
                if snapshot_prefix.as_ref().is_some_and(|prefix| datagram.payload.starts_with(prefix)) {
                    let frames = [rings[0].next_frame(), rings.get(1).map_or(0, Ring::next_frame)];
                    snapshot = Some(Snapshot { payload: (&*datagram.payload).into(), frames });
                }
                let mut told = true;
                for ring in rings.iter_mut() {
                    told &= ring.push(datagram.payload, time);
                }
                datagrams += 1;
                bytes += datagram.payload.len() as u64;
                empty += u64::from(!told);
            })?;
            if !io.may_have_more(received) {
                break;
            }
        }
        io.flush(now)?;
        let totals = &ledger.totals;
        for (counter, value) in [
            (&totals.datagrams, datagrams),
            (&totals.datagram_bytes, bytes),
            (&totals.dropped_source, foreign),
            (&totals.dropped_empty, empty),
        ] {
            if value != 0 {
                add(counter, value);
            }
        }
        let mut fresh = false;
        for ring in rings.iter_mut() {
            fresh |= ring.publish();
        }
        if snapshot.is_some() {
            // After the stream contains it: a subscriber that starts with it continues after it.
            *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
        }
        if fresh {
            for other in &self.others {
                // Full: that shard is awake, and looks at the ring before it sleeps.
                let _ = other.try_send(Message::Frames);
            }
        }
        Ok(fresh)
    }

    /// What is to be done now and then: the group, and the counters of packet I/O.
    pub(crate) fn look_after(&mut self, now: Instant) {
        if now.saturating_duration_since(self.looked_after) < group::INTERVAL {
            return;
        }
        self.looked_after = now;
        self.store_counters();
        let Some(keeper) = &mut self.keeper else { return };
        let socket = self.io.kernel_socket(keeper.group());
        if socket.is_some_and(|fd| keeper.look_after(fd) == Joined::Anew) {
            add(&self.ledger.totals.group_rejoins, 1);
        }
    }

    /// Publishes the counters of packet I/O.
    pub(crate) fn store_counters(&self) {
        self.cell.store(&self.io.stats(), &WorkerStats::default(), &TurnTimes::default());
    }
}
