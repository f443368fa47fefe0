//! Memory reserved for compressors, which take megabytes each.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Account, Memory};

/// Compressors may take this part of the budget.
const COMPRESSORS: usize = 8;

/// Compressors that the responses of one connection may have at once.
const OF_ONE: usize = 4;

/// A compressor's memory, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    memory: Arc<Memory>,
    account: Option<Account>,
    octets: usize,
}

impl Reservation {
    /// Reserves `octets`, for as long as a response takes. `None`: all are taken, or the connection has its share.
    pub(crate) fn take(memory: &Arc<Memory>, account: Option<&Account>, octets: usize) -> Option<Self> {
        let limit = memory.budget() / COMPRESSORS;
        let left = memory.budget().saturating_sub(memory.used());
        let more = |taken: usize| taken.checked_add(octets).filter(|taken| *taken <= limit && octets <= left);
        memory.compressors.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        // From here on it is given back.
        let mut reservation = Self { memory: Arc::clone(memory), account: None, octets };
        if let Some(account) = account {
            let another = |count: usize| (count < OF_ONE).then_some(count + 1);
            account.compressors().fetch_update(Ordering::Relaxed, Ordering::Relaxed, another).ok()?;
            reservation.account = Some(account.clone());
        }
        Some(reservation)
    }

    /// Reserves `octets` for as long as one job of a reader thread takes; the threads are its bound.
    pub(crate) fn for_a_job(memory: &Arc<Memory>, octets: usize) -> Self {
        memory.compressors.fetch_add(octets, Ordering::Relaxed);
        Self { memory: Arc::clone(memory), account: None, octets }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.memory.compressors.fetch_sub(self.octets, Ordering::Relaxed);
        if let Some(account) = &self.account {
            account.compressors().fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_few_for_one_and_bounded_for_all() {
        let memory = Memory::new(64 << 20);
        let ledger = memory.ledger();
        let account = || Account::new(&ledger, usize::MAX, usize::MAX);
        let take = |account: &Account| Reservation::take(&memory, Some(account), 1 << 20);
        let first = account();
        let mut held: Vec<_> = std::iter::from_fn(|| take(&first)).collect();
        assert_eq!((held.len(), memory.used(), memory.total()), (OF_ONE, OF_ONE << 20, OF_ONE << 20));
        held.pop();
        held.extend(take(&first));
        held.extend((0..20).filter_map(|_| take(&account())));
        assert_eq!(held.len(), 8, "an eighth of the budget");
        assert!(Reservation::take(&memory, None, 1).is_none());
        let job = Reservation::for_a_job(&memory, 1 << 20);
        assert_eq!(memory.used(), 9 << 20);
        drop((held, job));
        assert_eq!((memory.used(), memory.total()), (0, 0));
        assert!(take(&first).is_some());
    }

    #[test]
    fn there_is_no_place_where_nothing_is_left() {
        let memory = Memory::new(64 << 20);
        let _job = Reservation::for_a_job(&memory, 64 << 20);
        assert!(Reservation::take(&memory, None, 1).is_none());
    }
}
