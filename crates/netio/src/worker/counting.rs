//! Wraps a backend to count accepted datagrams, from which a worker knows that it makes progress.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::io::{Datagram, Flow, IoError, IoStats, PacketIo, Sent};
use crate::trace::Tracer;
use crate::wait::Wait;

/// Passes every call on to `inner`.
pub(super) struct Counting<'a, P> {
    inner: &'a mut P,
    accepted: usize,
}

impl<'a, P: PacketIo> Counting<'a, P> {
    pub(super) fn new(inner: &'a mut P) -> Self {
        Self { inner, accepted: 0 }
    }

    /// Datagrams that `transmit` has accepted.
    pub(super) fn accepted(&self) -> usize {
        self.accepted
    }
}

impl<P: PacketIo> PacketIo for Counting<'_, P> {
    fn receive(&mut self, now: Instant, sink: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        self.inner.receive(now, sink)
    }

    fn transmit(
        &mut self,
        flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let sent = self.inner.transmit(flow, segment, fill)?;
        self.accepted += sent.packets;
        Ok(sent)
    }

    fn flush(&mut self, now: Instant) -> Result<(), IoError> {
        self.inner.flush(now)
    }

    fn max_payload(&mut self, flow: &Flow) -> usize {
        self.inner.max_payload(flow)
    }

    fn descriptors(&self, visit: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.inner.descriptors(visit);
    }

    fn kernel_socket(&self, address: IpAddr) -> Option<BorrowedFd<'_>> {
        self.inner.kernel_socket(address)
    }

    fn descriptors_generation(&self) -> u64 {
        self.inner.descriptors_generation()
    }

    fn set_wait(&mut self, wait: Wait) -> Result<(), IoError> {
        self.inner.set_wait(wait)
    }

    fn set_tracer(&mut self, tracer: Tracer) {
        self.inner.set_tracer(tracer);
    }

    fn prepare_sleep(&mut self) -> bool {
        self.inner.prepare_sleep()
    }

    fn batch(&self) -> usize {
        self.inner.batch()
    }

    fn stats(&self) -> IoStats {
        self.inner.stats()
    }
}
