//! The connections of a worker, and which one is closed when there are too many.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::alarm::Alarm;
use crate::stats::{Refusal, Stats, add, sub};

/// What a connection is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    /// Nothing.
    Nothing,
    /// To have its client open another connection, to the process that succeeds this one, for what comes next.
    Retire,
    /// To take no more requests and end.
    Finish,
    /// To end, for another.
    Leave,
}

/// How a connection is told something.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    told: AtomicU8,
    alarm: Alarm,
}

impl Signal {
    fn tell(&self, what: Told) {
        self.told.fetch_max(what as u8, Ordering::Relaxed);
        self.alarm.ring();
    }

    /// What it was told last.
    pub(crate) fn told(&self) -> Told {
        match self.told.load(Ordering::Relaxed) {
            0 => Told::Nothing,
            1 => Told::Retire,
            2 => Told::Finish,
            _ => Told::Leave,
        }
    }

    /// What wakes the task of the connection.
    pub(crate) fn alarm(&self) -> &Alarm {
        &self.alarm
    }
}

#[derive(Debug)]
struct Connection {
    signal: Arc<Signal>,
    /// Its number among the idle ones.
    idle: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    connections: HashMap<u64, Connection>,
    /// From the one that has been idle longest.
    idle: BTreeMap<u64, u64>,
    next: u64,
    is_closed: bool,
}

/// The connections of a worker.
#[derive(Debug)]
pub(crate) struct Connections {
    state: Mutex<State>,
    stats: Arc<Stats>,
}

impl Connections {
    pub(crate) fn new(stats: Arc<Stats>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), stats })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A permit for a newcomer where `most` may be; if need be that of the one that has been idle longest. `None`:
    /// nobody is idle.
    pub(crate) fn enter(self: &Arc<Self>, most: usize) -> Option<ConnectionPermit> {
        let mut state = self.lock();
        if state.is_closed {
            return None;
        }
        if state.connections.len() >= most && !self.shed(&mut state) {
            drop(state);
            self.stats.refuse(Refusal::Connections);
            return None;
        }
        let id = state.next;
        state.next += 1;
        let signal = Arc::<Signal>::default();
        state.connections.insert(id, Connection { signal: Arc::clone(&signal), idle: Some(id) });
        state.idle.insert(id, id);
        drop(state);
        add(&self.stats.connections, 1);
        add(&self.stats.idle, 1);
        Some(ConnectionPermit { connections: Arc::clone(self), id, signal })
    }

    /// Has the one that has been idle longest leave.
    pub(crate) fn make_room(&self) {
        self.shed(&mut self.lock());
    }

    fn shed(&self, state: &mut State) -> bool {
        let Some((_, id)) = state.idle.pop_first() else { return false };
        if let Some(connection) = state.connections.get_mut(&id) {
            connection.idle = None;
            connection.signal.tell(Told::Leave);
        }
        sub(&self.stats.idle, 1);
        self.stats.refuse(Refusal::Shed);
        true
    }

    /// Has all finish; nobody enters any more.
    pub(crate) fn close(&self) {
        self.end(Told::Finish);
    }

    /// Has all go elsewhere, in their time; nobody enters any more.
    pub(crate) fn retire(&self) {
        self.end(Told::Retire);
    }

    fn end(&self, how: Told) {
        let mut state = self.lock();
        state.is_closed = true;
        for connection in state.connections.values() {
            connection.signal.tell(how);
        }
    }

    /// Nobody is there.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().connections.is_empty()
    }
}

/// Counts as one of its worker's connections until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    connections: Arc<Connections>,
    id: u64,
    pub(crate) signal: Arc<Signal>,
}

impl ConnectionPermit {
    /// It has no request any more.
    pub(crate) fn rest(&self) {
        let mut state = self.connections.lock();
        let number = state.next;
        state.next += 1;
        if let Some(connection) = state.connections.get_mut(&self.id)
            && connection.idle.is_none()
            && connection.signal.told() != Told::Leave
        {
            connection.idle = Some(number);
            state.idle.insert(number, self.id);
            add(&self.connections.stats.idle, 1);
        }
    }

    /// It has a request.
    pub(crate) fn work(&self) {
        let mut state = self.connections.lock();
        if let Some(number) =
            state.connections.get_mut(&self.id).and_then(|connection| connection.idle.take())
        {
            state.idle.remove(&number);
            sub(&self.connections.stats.idle, 1);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.work();
        self.connections.lock().connections.remove(&self.id);
        sub(&self.connections.stats.connections, 1);
    }
}

/// Connections by address, over all workers.
#[derive(Debug, Default)]
pub(crate) struct Addresses(Mutex<HashMap<u128, usize>>);

impl Addresses {
    fn lock(&self) -> MutexGuard<'_, HashMap<u128, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection from `remote` until what is returned is dropped; `None` where `most` have come from there.
    pub(crate) fn enter(self: &Arc<Self>, remote: SocketAddr, most: usize) -> Option<AddressPermit> {
        let network = match remote.ip().to_canonical() {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits() & !u128::from(u64::MAX) | 1 << 63,
        };
        let mut all = self.lock();
        let count = all.entry(network).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        drop(all);
        Some(AddressPermit { addresses: Arc::clone(self), network })
    }
}

/// A connection that counts for its address until this is dropped.
#[derive(Debug)]
pub(crate) struct AddressPermit {
    addresses: Arc<Addresses>,
    network: u128,
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut all = self.addresses.lock();
        if let Some(count) = all.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_has_been_idle_longest_leaves_for_a_newcomer() {
        let stats = Arc::<Stats>::default();
        let connections = Connections::new(Arc::clone(&stats));
        let all: Vec<_> = (0..3).map(|_| connections.enter(3).unwrap()).collect();
        all[0].work();
        all[1].work();
        all[0].rest();
        let _fourth = connections.enter(3).unwrap();
        let told = |permit: &ConnectionPermit| permit.signal.told();
        assert_eq!(all.iter().map(told).collect::<Vec<_>>(), [Told::Nothing, Told::Nothing, Told::Leave]);
        let fifth = connections.enter(3).unwrap();
        assert_eq!(told(&all[0]), Told::Leave);
        fifth.work();
        _fourth.work();
        assert!(connections.enter(3).is_none(), "nobody is idle");
        drop(all);
        assert!(connections.enter(3).is_some());
    }

    #[test]
    fn an_address_has_so_many_connections_and_a_network_of_64_bits_is_one() {
        let addresses = Arc::<Addresses>::default();
        let enter = |address: &str| addresses.enter(format!("{address}:1").parse().unwrap(), 2);
        let first = enter("192.0.2.1").unwrap();
        let _second = enter("[::ffff:192.0.2.1]").unwrap();
        assert!(enter("192.0.2.1").is_none() && enter("192.0.2.2").is_some());
        drop(first);
        assert!(enter("192.0.2.1").is_some());
        let _six = [enter("[2001:db8::1]").unwrap(), enter("[2001:db8::2]").unwrap()];
        assert!(enter("[2001:db8::3]").is_none() && enter("[2001:db8:0:1::3]").is_some());
    }
}
