//! Handshakes in progress: found by epoll token, by deadline, and by age.
//!
//! ```text
//!   token of an event ─▶ slot                     O(1)
//!   next deadline, the oldest of all or of one host   O(log n)
//! ```
//!
//! Slots are never searched: the cost of a wake-up does not depend on the number of pending handshakes.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use slab::Slab;

use super::presence::Host;

/// Keys by deadline.
type Order = BTreeSet<(Instant, usize)>;

/// Identifies a slot and its current holder. Never less than 2^32.
pub(super) type Token = u64;

/// The handshakes.
pub(super) struct PendingSet<T> {
    slots: Slab<Slot<T>>,
    deadlines: Order,
    by_host: HashMap<Host, Order>,
    generation: u32,
    /// Slots that were looked at, ever.
    #[cfg(test)]
    pub(super) looked_at: u64,
}

struct Slot<T> {
    value: T,
    host: Host,
    since: Instant,
    deadline: Instant,
    /// Distinguishes its events from those of the slot's previous holder.
    generation: u32,
}

impl<T> PendingSet<T> {
    /// Without any.
    pub(super) fn new() -> Self {
        Self {
            slots: Slab::new(),
            deadlines: Order::new(),
            by_host: HashMap::new(),
            generation: 0,
            #[cfg(test)]
            looked_at: 0,
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many there are of a host.
    pub(super) fn len_of(&self, host: Host) -> usize {
        self.by_host.get(&host).map_or(0, BTreeSet::len)
    }

    /// Adds one that began at `since`.
    pub(super) fn insert(&mut self, value: T, host: Host, since: Instant, deadline: Instant) -> Token {
        self.generation = self.generation.wrapping_add(1).max(1);
        let generation = self.generation;
        let key = self.slots.insert(Slot { value, host, since, deadline, generation });
        self.deadlines.insert((deadline, key));
        self.by_host.entry(host).or_default().insert((deadline, key));
        u64::from(generation) << 32 | key as u64
    }

    fn key(&mut self, token: Token) -> Option<usize> {
        let key = (token & u64::from(u32::MAX)) as usize;
        #[cfg(test)]
        (self.looked_at += 1);
        self.slots.get(key).filter(|slot| u64::from(slot.generation) == token >> 32).map(|_| key)
    }

    /// That of a token, if it is still there.
    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        let key = self.key(token)?;
        Some(&mut self.slots[key].value)
    }

    /// Gives it another deadline.
    pub(super) fn set_deadline(&mut self, token: Token, deadline: Instant) {
        let Some(key) = self.key(token) else { return };
        let slot = &mut self.slots[key];
        let (old, new) = ((slot.deadline, key), (deadline, key));
        slot.deadline = deadline;
        self.deadlines.remove(&old);
        self.deadlines.insert(new);
        if let Some(own) = self.by_host.get_mut(&slot.host) {
            own.remove(&old);
            own.insert(new);
        }
    }

    /// Takes one out, with its host.
    pub(super) fn remove(&mut self, token: Token) -> Option<(T, Host)> {
        let key = self.key(token)?;
        let slot = self.slots.remove(key);
        let place = (slot.deadline, key);
        self.deadlines.remove(&place);
        if let Some(own) = self.by_host.get_mut(&slot.host) {
            own.remove(&place);
            if own.is_empty() {
                self.by_host.remove(&slot.host);
            }
        }
        Some((slot.value, slot.host))
    }

    /// When the next of them is over.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// One whose deadline has passed.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Token> {
        let (deadline, key) = *self.deadlines.first()?;
        (deadline <= now).then(|| self.token(key))
    }

    /// The one to end first, overall or of a host, and when it began.
    pub(super) fn first(&mut self, host: Option<Host>) -> Option<(Token, Instant)> {
        let order = match host {
            Some(host) => self.by_host.get(&host)?,
            None => &self.deadlines,
        };
        let (_, key) = *order.first()?;
        let since = self.slots[key].since;
        Some((self.token(key), since))
    }

    fn token(&mut self, key: usize) -> Token {
        #[cfg(test)]
        (self.looked_at += 1);
        u64::from(self.slots[key].generation) << 32 | key as u64
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn host(number: u8) -> Host {
        Host::of([192, 0, 2, number].into())
    }

    #[test]
    fn a_token_names_nobody_else_when_its_slot_is_used_again() {
        let (mut set, now) = (PendingSet::new(), Instant::now());
        let first = set.insert('a', host(1), now, now);
        assert_eq!(set.remove(first), Some(('a', host(1))));
        let second = set.insert('b', host(1), now, now);
        assert_eq!((first & 0xffff_ffff, set.get_mut(first)), (second & 0xffff_ffff, None));
        assert_eq!(set.get_mut(second), Some(&mut 'b'));
    }

    #[derive(Clone, Debug)]
    enum Deed {
        Insert(u8, u64),
        SetDeadline(usize, u64),
        Remove(usize),
        Expire(u64),
    }

    fn deeds() -> impl Strategy<Value = Vec<Deed>> {
        let deed = prop_oneof![
            (0u8..4, 0u64..50).prop_map(|(host, deadline)| Deed::Insert(host, deadline)),
            (0usize..30, 0u64..50).prop_map(|(which, deadline)| Deed::SetDeadline(which, deadline)),
            (0usize..30).prop_map(Deed::Remove),
            (0u64..60).prop_map(Deed::Expire),
        ];
        prop::collection::vec(deed, 0..120)
    }

    proptest! {
        /// Against a list that is searched.
        #[test]
        fn it_finds_what_a_search_would(deeds in deeds()) {
            let epoch = Instant::now();
            let at = |millis| epoch + Duration::from_millis(millis);
            let (mut set, mut model) = (PendingSet::new(), Vec::<(Token, u8, u64)>::new());
            for (number, deed) in deeds.into_iter().enumerate() {
                match deed {
                    Deed::Insert(from, deadline) => {
                        let token = set.insert(number, host(from), epoch, at(deadline));
                        model.push((token, from, deadline));
                    }
                    Deed::SetDeadline(which, deadline) => {
                        if let Some(one) = model.get_mut(which) {
                            one.2 = deadline;
                            set.set_deadline(one.0, at(deadline));
                        }
                    }
                    Deed::Remove(which) if which < model.len() => {
                        let (token, from, _) = model.remove(which);
                        prop_assert_eq!(set.remove(token).map(|(_, host)| host), Some(host(from)));
                        prop_assert!(set.remove(token).is_none());
                    }
                    Deed::Remove(_) => {}
                    Deed::Expire(now) => while let Some(token) = set.expired(at(now)) {
                        let which = model.iter().position(|one| one.0 == token).unwrap();
                        prop_assert!(model.remove(which).2 <= now);
                        set.remove(token);
                    },
                }
                let first = |from: Option<u8>| {
                    model.iter().filter(|one| from.is_none_or(|from| one.1 == from)).map(|one| one.2).min()
                };
                prop_assert_eq!(set.len(), model.len());
                prop_assert_eq!(set.next_deadline(), first(None).map(at));
                for from in 0..4 {
                    prop_assert_eq!(set.len_of(host(from)), model.iter().filter(|one| one.1 == from).count());
                    let found = set.first(Some(host(from))).map(|(token, _)| token);
                    let deadline = |token| model.iter().find(|one| one.0 == token).map(|one| one.2);
                    prop_assert_eq!(found.and_then(deadline), first(Some(from)));
                }
            }
            prop_assert_eq!(set.by_host.len(), (0..4).filter(|from| set.len_of(host(*from)) != 0).count());
        }
    }
}
