//! The connections of one worker, by key and by connection ID.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;

use slab::Slab;

use super::cid::{Cid, CidHashBuilder};

/// A connection's slot in the table; reused after it is gone.
pub(crate) type Key = usize;

/// Upper limit of the connections allocated for at start. Growing takes time in proportion to the number of
/// connections, all in one turn; unused room costs a few bytes per slot.
const ROOM: usize = 1 << 17;

/// Connections with the IDs that lead to them.
pub(crate) struct Table<C> {
    /// Boxed, so that the table grows by moving their addresses.
    connections: Slab<Box<C>>,
    pub(crate) ids: Ids,
}

/// The IDs that lead to connections.
pub(crate) struct Ids {
    /// IDs that we issued.
    issued: HashMap<Cid, u32, CidHashBuilder>,
    /// IDs that clients made up for their first packets, until the handshake is done. A keyed hash: these
    /// are chosen by strangers.
    initial: HashMap<Box<[u8]>, u32, RandomState>,
    /// The last short-header lookup: datagrams come in trains.
    last: Option<(Cid, u32)>,
}

impl<C> Table<C> {
    /// With room for so many connections of `ids` IDs each.
    pub(crate) fn with_room(connections: usize, ids: usize) -> Self {
        let room = connections.min(ROOM);
        Self {
            connections: Slab::new(),
            ids: Ids {
                issued: HashMap::with_capacity_and_hasher(room * ids, CidHashBuilder::default()),
                initial: HashMap::with_capacity(room),
                last: None,
            },
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Adds a connection known by `cid` and, until [`Ids::forget_initial`], by the client's `initial` ID.
    pub(crate) fn insert(&mut self, connection: C, cid: Cid, initial: &[u8]) -> Key {
        let key = self.connections.insert(Box::new(connection));
        self.ids.add_cid(cid, key);
        self.ids.initial.insert(initial.into(), key as u32);
        key
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut C> {
        self.connections.get_mut(key).map(|connection| &mut **connection)
    }

    /// A connection, and the IDs of all: it may come by others, and lose some.
    pub(crate) fn get_with_ids(&mut self, key: Key) -> Option<(&mut C, &mut Ids)> {
        Some((self.connections.get_mut(key)?, &mut self.ids))
    }

    /// The first connection from `key` on.
    pub(crate) fn next_key(&self, key: Key) -> Option<Key> {
        (key..self.connections.capacity()).find(|key| self.connections.contains(*key))
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.connections.iter().map(|(key, _)| key).collect()
    }

    /// Takes the connection out with all of `cids`.
    pub(crate) fn remove(&mut self, key: Key, cids: &[Cid], initial: Option<&[u8]>) -> Option<C> {
        for cid in cids {
            self.ids.remove_cid(cid);
        }
        if let Some(initial) = initial {
            self.ids.forget_initial(initial);
        }
        self.connections.try_remove(key).map(|connection| *connection)
    }
}

impl Ids {
    #[inline]
    pub(crate) fn by_cid(&mut self, cid: &Cid) -> Option<Key> {
        if let Some((last, key)) = &self.last
            && last == cid
        {
            return Some(*key as usize);
        }
        let key = *self.issued.get(cid)?;
        self.last = Some((*cid, key));
        Some(key as usize)
    }

    pub(crate) fn by_initial(&self, dcid: &[u8]) -> Option<Key> {
        self.initial.get(dcid).map(|key| *key as usize)
    }

    /// Leads `cid` to the connection too.
    pub(crate) fn add_cid(&mut self, cid: Cid, key: Key) {
        self.issued.insert(cid, key as u32);
    }

    /// `cid` leads nowhere any more.
    pub(crate) fn remove_cid(&mut self, cid: &Cid) {
        self.issued.remove(cid);
        self.last = None;
    }

    /// The client's own ID is not needed after the handshake.
    pub(crate) fn forget_initial(&mut self, initial: &[u8]) {
        self.initial.remove(initial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_with_room_for_all_does_not_grow() {
        let mut table = Table::with_room(100, 2);
        let room = (table.ids.issued.capacity(), table.ids.initial.capacity());
        for number in 0..100u8 {
            let key = table.insert(number, Cid([number; 16]), &[number; 8]);
            table.ids.add_cid(Cid([number + 100; 16]), key);
        }
        assert_eq!((table.ids.issued.capacity(), table.ids.initial.capacity()), room);
        assert!(Table::<u8>::with_room(usize::MAX, 2).ids.issued.capacity() < 10 * ROOM);
    }

    #[test]
    fn every_id_leads_to_the_connection_until_it_goes() {
        let mut table = Table::with_room(10, 2);
        let (a, b) = (Cid([1; 16]), Cid([2; 16]));
        let key = table.insert("x", a, b"client id");
        table.ids.add_cid(b, key);
        assert_eq!(table.ids.by_cid(&a), Some(key));
        assert_eq!(table.ids.by_cid(&a), Some(key), "from the cache");
        assert_eq!(table.ids.by_cid(&b), Some(key));
        assert_eq!(table.ids.by_initial(b"client id"), Some(key));
        assert_eq!((table.next_key(0), table.next_key(key + 1)), (Some(key), None));
        table.ids.remove_cid(&b);
        assert_eq!(table.ids.by_cid(&b), None, "not from the cache either");
        table.ids.forget_initial(b"client id");
        assert_eq!(table.ids.by_initial(b"client id"), None);
        assert_eq!(table.ids.by_cid(&a), Some(key));
        assert_eq!(table.remove(key, &[a], None), Some("x"));
        assert_eq!(table.ids.by_cid(&a), None);
        assert_eq!(table.len(), 0);
    }
}
