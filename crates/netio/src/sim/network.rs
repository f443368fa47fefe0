//! The medium between the endpoints: links, addresses, translation, and datagrams in transit.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::alarm::Alarm;
use super::endpoint::SimIo;
use super::link::{Link, LinkState, header_bytes};
use super::random::Random;
use crate::io::Ecn;

/// Datagrams that may be under way to, or waiting at, one endpoint: about what a 16 MiB socket buffer holds
/// of full-size datagrams.
const ARRIVALS_LIMIT: usize = 8192;

/// What the network has done, since it was made. Every datagram that entered was delivered (once, or twice
/// when duplicated), is under way, or is in one `dropped_*` field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStats {
    /// Datagrams that endpoints flushed into the network.
    pub entered: u64,
    /// Datagrams put before an endpoint, duplicates included.
    pub delivered: u64,
    /// Datagrams delivered a second time.
    pub duplicated: u64,
    /// Datagrams held back.
    pub reordered: u64,
    /// Datagrams marked CE.
    pub marked: u64,
    /// Lost by a link's chance.
    pub dropped_loss: u64,
    /// Found the queue before a link's rate full.
    pub dropped_queue: u64,
    /// Larger than a hop behind the first.
    pub dropped_path_mtu: u64,
    /// Sent to an address that no endpoint has (any more).
    pub dropped_unreachable: u64,
    /// Found an endpoint's receive queue full.
    pub dropped_receive_queue: u64,
}

/// An in-memory network; a handle, cheap to clone.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
    real_time: bool,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Network").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

pub(super) struct State {
    random: Random,
    default_link: Link,
    links: BTreeMap<(IpAddr, IpAddr), LinkState>,
    bound: BTreeMap<SocketAddr, usize>,
    /// Inner address to the address that others see.
    outward: BTreeMap<SocketAddr, SocketAddr>,
    /// The address that others see to the inner one.
    inward: BTreeMap<SocketAddr, SocketAddr>,
    endpoints: Vec<BinaryHeap<Arrival>>,
    /// In real time, what wakes the owner of each endpoint.
    alarms: Vec<Option<Arc<Alarm>>>,
    sequence: u64,
    /// Buffers not in use, so that a steady flow allocates nothing.
    pool: Vec<Vec<u8>>,
    stats: NetworkStats,
}

/// A datagram on its way to an endpoint.
pub(super) struct Arrival {
    pub(super) at: Instant,
    sequence: u64,
    pub(super) payload: Vec<u8>,
    pub(super) remote: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) ecn: Ecn,
}

impl Ord for Arrival {
    /// Reversed, as the heap gives its greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Arrival {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Arrival {}

impl Network {
    /// A network under a virtual clock. Its links are `link` until [`Network::set_link`] says otherwise.
    pub fn new(seed: u64, link: Link) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(seed, link))), real_time: false }
    }

    /// A network whose `now` is always `Instant::now()`: its endpoints have descriptors that become readable
    /// when a datagram arrives.
    pub fn real_time(seed: u64, link: Link) -> Self {
        Self { real_time: true, ..Self::new(seed, link) }
    }

    /// An endpoint that receives what is sent to any of `addresses`, and sends from them.
    ///
    /// # Errors
    ///
    /// `AddrInUse` when another endpoint has one of them; `AddrNotAvailable` for a wildcard address or port
    /// 0; for a network in real time, whatever making a timer descriptor gives.
    pub fn endpoint(&self, addresses: &[SocketAddr]) -> std::io::Result<SimIo> {
        let mut state = self.lock();
        for address in addresses {
            if address.ip().is_unspecified() || address.port() == 0 {
                return Err(std::io::ErrorKind::AddrNotAvailable.into());
            }
            if state.bound.contains_key(address) {
                return Err(std::io::ErrorKind::AddrInUse.into());
            }
        }
        let index = state.endpoints.len();
        let alarm = if self.real_time { Some(Arc::new(Alarm::new()?)) } else { None };
        state.endpoints.push(BinaryHeap::with_capacity(256));
        state.alarms.push(alarm.clone());
        state.bound.extend(addresses.iter().map(|&address| (address, index)));
        Ok(SimIo::new(self.clone(), index, alarm))
    }

    /// Replaces the link from one host to another, in this direction; what is under way arrives as it would
    /// have.
    pub fn set_link(&self, from: IpAddr, to: IpAddr, link: Link) {
        self.lock().links.insert((from, to), LinkState::new(link));
    }

    /// Lets `inner` appear to all others as `outer`, as a NAT does: what it sends from now on comes from
    /// `outer`, and what is sent to `outer` reaches it. A second call is a rebinding: datagrams to the
    /// address before are unreachable then.
    pub fn translate(&self, inner: SocketAddr, outer: SocketAddr) {
        let mut state = self.lock();
        if let Some(before) = state.outward.insert(inner, outer) {
            state.inward.remove(&before);
        }
        state.inward.insert(outer, inner);
    }

    /// When the next datagram after `now` arrives anywhere.
    pub fn next_arrival_after(&self, now: Instant) -> Option<Instant> {
        let state = self.lock();
        let of_endpoint = |heap: &BinaryHeap<Arrival>| match heap.peek()?.at {
            first if first > now => Some(first),
            // Nobody has received what has arrived; look behind it.
            _ => heap.iter().map(|arrival| arrival.at).filter(|&at| at > now).min(),
        };
        state.endpoints.iter().filter_map(of_endpoint).min()
    }

    /// When the first datagram that has not been received yet arrives, or did.
    pub fn first_arrival(&self) -> Option<Instant> {
        let state = self.lock();
        state.endpoints.iter().filter_map(|heap| heap.peek()).map(|arrival| arrival.at).min()
    }

    /// Datagrams under way or not received yet.
    pub fn in_flight(&self) -> usize {
        self.lock().endpoints.iter().map(BinaryHeap::len).sum()
    }

    /// Counters since the network was made.
    pub fn stats(&self) -> NetworkStats {
        self.lock().stats
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(seed: u64, default_link: Link) -> Self {
        Self {
            random: Random::new(seed),
            default_link,
            links: BTreeMap::new(),
            bound: BTreeMap::new(),
            outward: BTreeMap::new(),
            inward: BTreeMap::new(),
            endpoints: Vec::new(),
            alarms: Vec::new(),
            sequence: 0,
            pool: Vec::new(),
            stats: NetworkStats::default(),
        }
    }

    /// MTU of the first hop from one host to another.
    pub(super) fn mtu(&self, from: IpAddr, to: IpAddr) -> usize {
        self.links.get(&(from, to)).map_or(self.default_link.mtu, |link| link.options.mtu)
    }

    /// Whether endpoint `index` may send from `local`.
    pub(super) fn owns(&self, index: usize, local: SocketAddr) -> bool {
        self.bound.get(&local) == Some(&index)
    }

    /// A buffer of `len` bytes, all 0.
    pub(super) fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = self.pool.pop().unwrap_or_default();
        buffer.clear();
        buffer.resize(len, 0);
        buffer
    }

    /// Takes a buffer back.
    pub(super) fn recycle(&mut self, buffer: Vec<u8>) {
        self.pool.push(buffer);
    }

    /// Takes in one datagram at `now`.
    pub(super) fn send(
        &mut self,
        now: Instant,
        (local, remote): (SocketAddr, SocketAddr),
        ecn: Ecn,
        payload: Vec<u8>,
    ) {
        self.stats.entered += 1;
        let default = &self.default_link;
        let link =
            self.links.entry((local.ip(), remote.ip())).or_insert_with(|| LinkState::new(default.clone()));
        let bytes = payload.len() + header_bytes(remote.is_ipv4());
        let Some(passage) = link.pass(now, bytes, ecn, &mut self.random, &mut self.stats) else {
            self.recycle(payload);
            return;
        };
        let source = self.outward.get(&local).copied().unwrap_or(local);
        // An address behind a translator cannot be reached by its inner name.
        let target = match self.inward.get(&remote) {
            Some(&inner) => Some(inner),
            None if self.outward.contains_key(&remote) => None,
            None => Some(remote),
        };
        let found = target.and_then(|target| self.bound.get(&target).map(|&index| (target, index)));
        let Some((target, index)) = found else {
            self.stats.dropped_unreachable += 1;
            self.recycle(payload);
            return;
        };
        if passage.duplicate {
            let mut copy = self.buffer(payload.len());
            copy.copy_from_slice(&payload);
            self.arrive(index, passage.arrival, (source, target), passage.ecn, copy);
        }
        self.arrive(index, passage.arrival, (source, target), passage.ecn, payload);
    }

    fn arrive(
        &mut self,
        index: usize,
        at: Instant,
        (remote, local): (SocketAddr, SocketAddr),
        ecn: Ecn,
        payload: Vec<u8>,
    ) {
        if self.endpoints[index].len() >= ARRIVALS_LIMIT {
            self.stats.dropped_receive_queue += 1;
            self.recycle(payload);
            return;
        }
        self.sequence += 1;
        let sequence = self.sequence;
        let first = self.endpoints[index].peek().is_none_or(|first| at < first.at);
        self.endpoints[index].push(Arrival { at, sequence, payload, remote, local, ecn });
        if first {
            self.set_alarm(index);
        }
    }

    /// In real time, has the owner of an endpoint woken when its first datagram arrives.
    pub(super) fn set_alarm(&self, index: usize) {
        if let Some(alarm) = &self.alarms[index] {
            alarm.set(self.endpoints[index].peek().map(|first| first.at));
        }
    }

    /// The next datagram that has arrived at an endpoint by `now`.
    pub(super) fn take(&mut self, index: usize, now: Instant) -> Option<Arrival> {
        let heap = &mut self.endpoints[index];
        if heap.peek()?.at > now {
            return None;
        }
        self.stats.delivered += 1;
        heap.pop()
    }

    /// An endpoint is gone: so are its addresses and what was under way to it.
    pub(super) fn unbind(&mut self, index: usize) {
        self.bound.retain(|_, &mut owner| owner != index);
        let lost = std::mem::take(&mut self.endpoints[index]);
        self.alarms[index] = None;
        self.stats.dropped_unreachable += lost.len() as u64;
    }
}
