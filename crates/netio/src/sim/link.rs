//! What one direction of a path does to datagrams.

use std::time::{Duration, Instant};

use super::network::NetworkStats;
use super::random::Random;
use crate::io::Ecn;

/// Bytes of IP and UDP headers that count against the MTU and the rate.
pub(super) fn header_bytes(ipv4: bool) -> usize {
    if ipv4 { 28 } else { 48 }
}

/// One direction of a path. The default is ideal: no delay, no loss, MTU 1500.
#[derive(Clone, Debug)]
pub struct Link {
    /// Time from one end to the other.
    pub delay: Duration,
    /// Added to the delay, uniformly from 0 to this; does not reorder by itself.
    pub jitter: Duration,
    /// Share of datagrams lost, 0 to 1.
    pub loss: f64,
    /// Share of datagrams delivered twice, 0 to 1.
    pub duplicate: f64,
    /// Share of datagrams held back by `reorder_delay`, so that later ones overtake, 0 to 1.
    pub reorder: f64,
    /// How long a reordered datagram is held back.
    pub reorder_delay: Duration,
    /// Bits a second, IP and UDP headers included; `None` is unlimited.
    pub rate: Option<u64>,
    /// Bytes that may wait for a limited rate; what comes on top is dropped.
    pub queue_bytes: usize,
    /// ECN-capable datagrams are marked CE when more than this waits for the rate.
    pub mark_above_bytes: usize,
    /// Share of ECN-capable datagrams marked CE whatever the queue, 0 to 1.
    pub mark: f64,
    /// MTU of the first hop, known to the sender: larger datagrams are refused at once.
    pub mtu: usize,
    /// MTU of a hop behind it, unknown to the sender: larger datagrams vanish.
    pub path_mtu: usize,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_delay: Duration::from_millis(5),
            rate: None,
            queue_bytes: 256 * 1024,
            mark_above_bytes: usize::MAX,
            mark: 0.0,
            mtu: 1500,
            path_mtu: usize::MAX,
        }
    }
}

/// A link in use: its options and what it remembers of the datagrams before.
#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) options: Link,
    /// When the last datagram accepted has left the sender's queue.
    free_at: Option<Instant>,
    /// When the last one in order arrives; none in order arrives earlier.
    last_arrival: Option<Instant>,
}

/// When a datagram arrives and with which mark; a second time if it is duplicated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    pub(super) arrival: Instant,
    pub(super) duplicate: bool,
    pub(super) ecn: Ecn,
}

impl LinkState {
    pub(super) fn new(options: Link) -> Self {
        Self { options, free_at: None, last_arrival: None }
    }

    /// Sends `bytes` (headers included) at `now`; `None` when the link drops them, with the reason counted.
    pub(super) fn pass(
        &mut self,
        now: Instant,
        bytes: usize,
        ecn: Ecn,
        random: &mut Random,
        stats: &mut NetworkStats,
    ) -> Option<Passage> {
        if bytes > self.options.path_mtu {
            stats.dropped_path_mtu += 1;
            return None;
        }
        let (left, waiting) = self.serialise(now, bytes, stats)?;
        if random.chance(self.options.loss) {
            stats.dropped_loss += 1;
            return None;
        }
        let capable = ecn != Ecn::NotEct;
        let marked = capable && (waiting > self.options.mark_above_bytes || random.chance(self.options.mark));
        stats.marked += u64::from(marked);
        let mut arrival = left + self.options.delay + random.duration(self.options.jitter);
        if random.chance(self.options.reorder) {
            stats.reordered += 1;
            arrival += self.options.reorder_delay;
        } else {
            arrival = self.last_arrival.map_or(arrival, |last| last.max(arrival));
            self.last_arrival = Some(arrival);
        }
        let duplicate = random.chance(self.options.duplicate);
        stats.duplicated += u64::from(duplicate);
        Some(Passage { arrival, duplicate, ecn: if marked { Ecn::Ce } else { ecn } })
    }

    /// Waits for the rate: when the last bit has left, and how many bytes waited before it.
    fn serialise(
        &mut self,
        now: Instant,
        bytes: usize,
        stats: &mut NetworkStats,
    ) -> Option<(Instant, usize)> {
        let Some(rate) = self.options.rate else { return Some((now, 0)) };
        let rate = u128::from(rate.max(1));
        let free_at = self.free_at.map_or(now, |at| at.max(now));
        let waiting = (free_at - now).as_nanos() * rate / 8_000_000_000;
        let waiting = usize::try_from(waiting).unwrap_or(usize::MAX);
        if waiting.saturating_add(bytes) > self.options.queue_bytes {
            stats.dropped_queue += 1;
            return None;
        }
        let nanos = (bytes as u128 * 8_000_000_000).div_ceil(rate);
        let left = free_at + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4));
        self.free_at = Some(left);
        Some((left, waiting))
    }
}
