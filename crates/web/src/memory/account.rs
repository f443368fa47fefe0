//! The memory that one connection holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;

use super::{LAST, Ledger};

/// Part of its limit that a connection may keep of blocks without having it on its way to the client: whole blocks of
/// which it uses little.
const WASTE: usize = 4;

/// The cost of a piece of a response in addition to its bytes until it is acknowledged: its owner, the
/// transport's record of it. It is counted, or a client that reads one byte at a time would pin a hundred
/// times what is counted.
const OVERHEAD: usize = 256;

/// The additional cost of bytes in flight, as a fraction of them: the transport's records of packets.
const RECORDS: usize = 4;

/// What one connection holds, and its limit. Everything is counted until it is dropped, whoever holds it by
/// then.
///
/// One thread changes it; it is atomic only because it is shared with `Bytes`, which are `Send`.
#[derive(Clone, Debug)]
pub struct Account(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Arc<Ledger>,
    /// Data in flight to the client, in its own memory and in slices of blocks.
    copied: InFlight,
    sliced: InFlight,
    /// Octets of requests.
    requests: AtomicUsize,
    /// Octets that the client has sent and the transport still has.
    received: AtomicUsize,
    /// Octets of blocks that it keeps from being freed, once a response.
    pinned: AtomicUsize,
    /// Compressors that its responses have.
    compressors: AtomicUsize,
    /// Octets that may be on their way to the client.
    window: usize,
    /// Octets that it may hold, if the process has that much.
    most: usize,
    /// Octets that it may hold now.
    limit: AtomicUsize,
}

/// Pieces in flight to a client, as one number each for those sent and those acknowledged: bytes in the low
/// bits, pieces in the high ones. Both wrap, and their difference is still right.
#[derive(Debug, Default)]
struct InFlight {
    out: AtomicU64,
    back: AtomicU64,
}

impl InFlight {
    /// Bits for the octets that can be on their way at once.
    const OCTETS: u32 = 40;

    fn piece(octets: usize) -> u64 {
        (1 << Self::OCTETS) + octets as u64
    }

    fn set_out(&self, octets: usize) {
        self.out.fetch_add(Self::piece(octets), Ordering::Relaxed);
    }

    fn arrive(&self, octets: usize) {
        self.back.fetch_add(Self::piece(octets), Ordering::Relaxed);
    }

    /// Bytes in flight, and their additional cost.
    fn under_way(&self) -> (usize, usize) {
        let between = self.out.load(Ordering::Relaxed).wrapping_sub(self.back.load(Ordering::Relaxed));
        let octets = (between & ((1 << Self::OCTETS) - 1)) as usize;
        (octets, octets / RECORDS + (between >> Self::OCTETS) as usize * OVERHEAD)
    }

    fn arrived(&self) -> u64 {
        self.back.load(Ordering::Relaxed)
    }
}

impl Account {
    /// An account of a connection that may have `window` octets on their way to its client, and hold `most` in all.
    pub fn new(ledger: &Arc<Ledger>, window: usize, most: usize) -> Self {
        Self(Arc::new(Inner {
            ledger: Arc::clone(ledger),
            copied: InFlight::default(),
            sliced: InFlight::default(),
            requests: AtomicUsize::new(0),
            received: AtomicUsize::new(0),
            pinned: AtomicUsize::new(0),
            compressors: AtomicUsize::new(0),
            window,
            most,
            limit: AtomicUsize::new(most),
        }))
    }

    /// Has the limit follow what the process has left.
    pub fn follow(&self) {
        self.0.limit.store(self.0.most.min(self.0.ledger.memory().share()), Ordering::Relaxed);
    }

    pub(super) fn compressors(&self) -> &AtomicUsize {
        &self.0.compressors
    }

    /// Tells it from others that live.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Octets on their way to the client, not acknowledged.
    pub fn in_flight(&self) -> usize {
        self.0.copied.under_way().0 + self.0.sliced.under_way().0
    }

    /// Octets that have arrived, but for multiples of 2^40.
    pub fn arrived(&self) -> u64 {
        self.0.copied.arrived().wrapping_add(self.0.sliced.arrived()) & ((1 << InFlight::OCTETS) - 1)
    }

    /// Octets of requests.
    pub fn requests(&self) -> usize {
        self.0.requests.load(Ordering::Relaxed)
    }

    /// Octets that the client has sent and the transport still has.
    pub fn received(&self) -> usize {
        self.0.received.load(Ordering::Relaxed)
    }

    /// Octets that it holds in all.
    pub fn used(&self) -> usize {
        let ((copied, more), (_, also)) = (self.0.copied.under_way(), self.0.sliced.under_way());
        copied + more + also + self.requests() + self.received() + self.0.pinned()
    }

    /// Octets that it may hold now.
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Octets of a response that it may take on. With nothing on its way there is always some, so that it gets on.
    #[inline]
    pub fn room(&self) -> usize {
        let in_flight = self.in_flight();
        let room = self.limit().saturating_sub(self.used() + OVERHEAD) / (RECORDS + 1) * RECORDS;
        let least = if in_flight == 0 { LAST - OVERHEAD } else { 0 };
        room.max(least).min(self.0.window.saturating_sub(in_flight))
    }

    /// It holds so much more of blocks than is in flight that it should release what it can.
    #[inline]
    pub fn is_wasting(&self) -> bool {
        self.0.waste() > self.limit() / WASTE
    }

    /// Counts a piece of so many octets as on its way until the charge is dropped.
    pub fn charge(&self, octets: usize) -> Charge {
        Charge::new(self, octets, Kind::Response)
    }

    /// Counts octets of a request until the charge is dropped.
    pub fn charge_request(&self, octets: usize) -> Charge {
        Charge::new(self, octets, Kind::Request)
    }

    /// Counts what the client has sent and the transport still has, none so far.
    pub fn charge_received(&self) -> Charge {
        Charge::new(self, 0, Kind::Received)
    }

    /// The same octets, of memory of their own, which count until all of them are dropped.
    pub fn own(&self, octets: impl Into<Bytes>) -> Bytes {
        let octets = octets.into();
        let charge = self.charge(octets.len());
        Bytes::from_owner(Owned { octets, _charge: charge })
    }

    /// The same octets of a request, which count until all of them are dropped, with what a piece takes beside them.
    pub fn own_request(&self, octets: impl Into<Bytes>) -> Bytes {
        let octets = octets.into();
        let charge = self.charge_request(octets.len() + OVERHEAD);
        Bytes::from_owner(Owned { octets, _charge: charge })
    }

    /// Pins a block of that many bytes, of which `gain` go to the client now. `None`: it would hold too much
    /// for what it gains, and must use a copy.
    #[inline]
    pub(crate) fn pin(&self, octets: usize, gain: usize) -> Option<Arc<Pin>> {
        let limit = self.limit();
        let waste = (self.0.waste() + octets).saturating_sub(gain);
        if waste > limit / WASTE || self.used() + octets > limit {
            return None;
        }
        self.0.pinned.fetch_add(octets, Ordering::Relaxed);
        Some(Arc::new(Pin { account: self.clone(), octets }))
    }
}

impl Inner {
    fn pinned(&self) -> usize {
        self.pinned.load(Ordering::Relaxed)
    }

    /// Octets of pinned blocks that are not on their way.
    fn waste(&self) -> usize {
        self.pinned().saturating_sub(self.sliced.under_way().0)
    }
}

/// The additional cost of a piece of that many bytes.
fn beside(octets: usize) -> usize {
    OVERHEAD + octets / RECORDS
}

/// What octets are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Response,
    Request,
    /// A part of requests that is still in the transport, where it doesn't take their room.
    Received,
}

/// Octets that count on an account until this is dropped.
#[derive(Debug)]
pub struct Charge {
    account: Account,
    octets: usize,
    kind: Kind,
}

impl Charge {
    fn new(account: &Account, octets: usize, kind: Kind) -> Self {
        let charge = Self { account: account.clone(), octets, kind };
        charge.add();
        charge
    }

    /// Octets that it counts.
    pub fn octets(&self) -> usize {
        self.octets
    }

    /// Counts so many octets in place of what it counted.
    pub fn resize(&mut self, octets: usize) {
        self.remove();
        self.octets = octets;
        self.add();
    }

    fn add(&self) {
        let (inner, octets) = (&self.account.0, self.octets);
        let Some(of_requests) = self.of_requests() else {
            inner.copied.set_out(octets);
            return inner.ledger.own(octets + beside(octets));
        };
        of_requests.fetch_add(octets, Ordering::Relaxed);
        inner.ledger.requests.fetch_add(octets, Ordering::Relaxed);
        inner.ledger.own(octets);
    }

    fn remove(&self) {
        let (inner, octets) = (&self.account.0, self.octets);
        let Some(of_requests) = self.of_requests() else {
            inner.copied.arrive(octets);
            return inner.ledger.disown(octets + beside(octets));
        };
        of_requests.fetch_sub(octets, Ordering::Relaxed);
        inner.ledger.requests.fetch_sub(octets, Ordering::Relaxed);
        inner.ledger.disown(octets);
    }

    /// Where octets of requests are counted; `None` for those of a response.
    fn of_requests(&self) -> Option<&AtomicUsize> {
        match self.kind {
            Kind::Response => None,
            Kind::Request => Some(&self.account.0.requests),
            Kind::Received => Some(&self.account.0.received),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A block that a response keeps from being freed, because it reads from it or has slices of it in flight.
#[derive(Debug)]
pub(crate) struct Pin {
    account: Account,
    octets: usize,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.account.0.pinned.fetch_sub(self.octets, Ordering::Relaxed);
    }
}

impl Pin {
    /// Counts octets of the block as on their way until that is dropped.
    pub(crate) fn slice(self: &Arc<Self>, octets: usize) -> Sliced {
        let inner = &self.account.0;
        inner.sliced.set_out(octets);
        inner.ledger.sliced.fetch_add(octets, Ordering::Relaxed);
        inner.ledger.own(beside(octets));
        Sliced { pin: Arc::clone(self), octets }
    }
}

/// Octets of a block on their way to a client.
#[derive(Debug)]
pub(crate) struct Sliced {
    pin: Arc<Pin>,
    octets: usize,
}

impl Drop for Sliced {
    fn drop(&mut self) {
        let inner = &self.pin.account.0;
        inner.sliced.arrive(self.octets);
        inner.ledger.disown(beside(self.octets));
        inner.ledger.sliced.fetch_sub(self.octets, Ordering::Relaxed);
    }
}

struct Owned {
    octets: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.octets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    const BLOCK: usize = 256 << 10;

    fn account(window: usize, most: usize) -> Account {
        Account::new(&Memory::new(1 << 30).ledger(), window, most)
    }

    #[test]
    fn octets_count_until_their_last_part_is_gone() {
        let account = account(1 << 20, 1 << 20);
        let mut all = account.own(vec![7; 1000]);
        let rest = all.split_off(400);
        assert_eq!((account.in_flight(), account.used()), (1000, 1000 + beside(1000)));
        drop(all);
        assert_eq!(account.in_flight(), 1000, "any part keeps the whole in memory");
        drop(rest);
        assert_eq!((account.in_flight(), account.used()), (0, 0));
    }

    #[test]
    fn what_comes_and_goes_for_long_is_counted_right() {
        let account = account(1 << 20, 1 << 20);
        let way = &account.0.copied;
        for counter in [&way.out, &way.back] {
            counter.store(u64::MAX - 5, Ordering::Relaxed);
        }
        let held: Vec<_> = (1..=10).map(|octets| account.charge(octets)).collect();
        assert_eq!((account.in_flight(), account.used()), (55, 55 + 55 / RECORDS + 10 * OVERHEAD));
        let before = account.arrived();
        drop(held);
        assert_eq!((account.in_flight(), account.used()), (0, 0));
        assert_eq!(account.arrived().wrapping_sub(before) & 0xff_ffff_ffff, 55);
    }

    #[test]
    fn few_blocks_are_pinned_of_which_little_is_used_and_many_that_are_on_their_way() {
        let account = account(2 << 20, 4 << 20);
        let little: Vec<_> = std::iter::from_fn(|| account.pin(BLOCK, 300)).collect();
        assert_eq!(little.len(), 4, "a quarter of the limit");
        assert!(account.in_flight() == 0 && account.room() > 0);
        drop(little);
        assert_eq!(account.used(), 0);
        let mut whole = Vec::new();
        while let Some(pin) = account.pin(BLOCK, BLOCK) {
            whole.push(pin.slice(BLOCK));
        }
        let used = whole.len() * (BLOCK + beside(BLOCK));
        assert_eq!(
            (whole.len(), account.used()),
            (12, used),
            "all of the limit that blocks and their records fill"
        );
        assert!(!account.is_wasting());
        assert_eq!(account.room(), 0, "the window is full");
        whole.clear();
        assert_eq!((account.used(), account.in_flight()), (0, 0));
    }

    #[test]
    fn requests_leave_the_window_alone() {
        let account = account(64 << 10, 1 << 20);
        let request = account.charge_request(100_000);
        assert_eq!((account.in_flight(), account.requests(), account.used()), (0, 100_000, 100_000));
        assert_eq!(account.room(), 64 << 10);
        drop(request);
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn what_the_transport_has_follows_it_and_takes_no_room_of_requests() {
        let memory = Memory::new(1 << 30);
        let ledger = memory.ledger();
        let account = Account::new(&ledger, 64 << 10, 1 << 20);
        let mut received = account.charge_received();
        for octets in [0, 100_000, 7, 300_000] {
            received.resize(octets);
            assert_eq!((received.octets(), account.received(), account.used()), (octets, octets, octets));
            assert_eq!((account.requests(), ledger.levels().requests, memory.total()), (0, octets, octets));
        }
        drop(received);
        assert_eq!((account.used(), memory.total()), (0, 0));
    }

    #[test]
    fn with_nothing_on_its_way_there_is_always_room() {
        let account = account(64 << 10, 64 << 10);
        let _requests = account.charge_request(100_000);
        assert_eq!(account.room(), LAST - OVERHEAD);
        let piece = account.own(vec![0; account.room()]);
        assert_eq!(account.room(), 0);
        drop(piece);
        assert_eq!(account.room(), LAST - OVERHEAD);
    }
}
