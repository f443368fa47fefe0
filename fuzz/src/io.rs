//! Packet I/O from memory to memory.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use expressway_netio::{Datagram, Ecn, Flow, IoError, IoStats, PacketIo, Sent, Via};

/// Bytes of IPv4 and UDP headers: nothing smaller arrives.
pub(crate) const HEADERS: usize = 28;

/// Datagrams that packet I/O hands over at once.
const BATCH: usize = 64;

/// Datagrams that the worker may send in a turn.
const ROOM: usize = 256;

/// See the module.
#[derive(Default)]
pub(crate) struct Memory {
    /// Payloads, where they come from, and where to.
    pub(crate) incoming: VecDeque<(Vec<u8>, SocketAddr, SocketAddr)>,
    /// Where payloads went.
    pub(crate) sent: Vec<(SocketAddr, Vec<u8>)>,
    staged: usize,
}

impl Memory {
    /// Bytes that come in the next turn, headers included.
    pub(crate) fn coming(&self) -> usize {
        self.incoming.iter().take(BATCH).map(|(payload, ..)| payload.len() + HEADERS).sum()
    }
}

impl PacketIo for Memory {
    fn receive(&mut self, _: Instant, sink: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        let count = self.incoming.len().min(BATCH);
        for (mut payload, remote, local) in self.incoming.drain(..count) {
            sink(Datagram {
                payload: &mut payload,
                remote,
                local,
                ecn: Ecn::NotEct,
                via: Via::Simulated,
                hints: Default::default(),
            });
        }
        Ok(count)
    }

    fn transmit(
        &mut self,
        flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let mut sent = Sent::default();
        while self.staged < ROOM {
            let mut slot = vec![0; segment];
            let length = fill(&mut slot);
            if length == 0 {
                return Ok(sent);
            }
            assert!(length <= segment, "{length} bytes in a slot of {segment}");
            slot.truncate(length);
            self.sent.push((flow.remote, slot));
            self.staged += 1;
            sent.packets += 1;
            sent.bytes += length;
        }
        sent.blocked = true;
        Ok(sent)
    }

    fn flush(&mut self, _: Instant) -> Result<(), IoError> {
        self.staged = 0;
        Ok(())
    }

    fn max_payload(&mut self, _: &Flow) -> usize {
        1472
    }

    fn descriptors(&self, _: &mut dyn FnMut(BorrowedFd<'_>)) {}

    fn batch(&self) -> usize {
        BATCH
    }

    // One batch a turn, so that what a turn costs is compared with what it received.
    fn may_have_more(&self, _: usize) -> bool {
        false
    }

    fn stats(&self) -> IoStats {
        IoStats::default()
    }
}
