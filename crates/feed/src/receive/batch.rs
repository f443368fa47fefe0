//! Passes datagrams on in batches.

use std::net::SocketAddr;
use std::ops::Range;

use expressway_netio::io::Timestamp;
use expressway_netio::{Datagram, Via};

use super::handler::Handler;

/// One datagram of a [`Batch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The address and port that the peer sent from.
    pub remote: SocketAddr,
    /// The address and port that the peer asked.
    pub local: SocketAddr,
    /// When it was received and who timestamped it, if anybody did.
    pub timestamp: Option<Timestamp>,
    /// How it came in.
    pub via: Via,
    range: Range<usize>,
}

/// Datagrams that came together, in the order of arrival, copied back to back into memory of fixed size.
#[derive(Debug)]
pub struct Batch {
    memory: Vec<u8>,
    arrivals: Vec<Arrival>,
}

impl Batch {
    fn new(datagrams: usize, bytes: usize) -> Self {
        Self { memory: Vec::with_capacity(bytes), arrivals: Vec::with_capacity(datagrams) }
    }

    /// Each with its payload.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arrival, &[u8])> {
        self.arrivals.iter().map(|arrival| (arrival, &self.memory[arrival.range.clone()]))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    fn has_room(&self, length: usize) -> bool {
        self.arrivals.len() < self.arrivals.capacity() && self.memory.len() + length <= self.memory.capacity()
    }

    fn push(&mut self, datagram: &Datagram<'_>) {
        let start = self.memory.len();
        self.memory.extend_from_slice(datagram.payload);
        let (remote, local, via) = (datagram.remote, datagram.local, datagram.via);
        let timestamp = datagram.hints.timestamp;
        self.arrivals.push(Arrival { remote, local, timestamp, via, range: start..self.memory.len() });
    }

    fn clear(&mut self) {
        self.memory.clear();
        self.arrivals.clear();
    }
}

/// A handler that gives datagrams to `take` many at a time: all that came together, or as many as its memory holds.
pub struct Batches<F> {
    batch: Batch,
    take: F,
}

impl<F: FnMut(&Batch)> Batches<F> {
    /// Room for `datagrams` (at least 1) and for `bytes` of payloads, at least those of one datagram
    /// (65,507).
    pub fn new(datagrams: usize, bytes: usize, take: F) -> Self {
        Self { batch: Batch::new(datagrams.max(1), bytes.max(65_507)), take }
    }

    fn give(&mut self) {
        if !self.batch.is_empty() {
            (self.take)(&self.batch);
            self.batch.clear();
        }
    }
}

impl<F: FnMut(&Batch)> Handler for Batches<F> {
    fn handle_datagram(&mut self, datagram: Datagram<'_>) {
        if !self.batch.has_room(datagram.payload.len()) {
            self.give();
        }
        self.batch.push(&datagram);
    }

    fn end_batch(&mut self) {
        self.give();
    }
}
