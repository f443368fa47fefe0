//! Packet I/O for unit tests of rooms and sessions.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use expressway_netio::io::{Sent, Via};
use expressway_netio::{Datagram, Flow, IoError, IoStats, PacketIo};

/// Packet I/O whose datagrams are a list, and that has room for so many.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) room: usize,
    pub(super) longest: usize,
    pub(super) arriving: Vec<(Vec<u8>, SocketAddr, SocketAddr)>,
    pub(super) sent: Vec<(Flow, Vec<u8>)>,
}

impl Listed {
    pub(super) fn new(room: usize) -> Self {
        Self { room, longest: 1472, arriving: Vec::new(), sent: Vec::new() }
    }
}

impl PacketIo for Listed {
    fn receive(&mut self, _: Instant, sink: &mut dyn FnMut(Datagram<'_>)) -> Result<usize, IoError> {
        let arriving = std::mem::take(&mut self.arriving);
        let count = arriving.len();
        for (mut payload, remote, local) in arriving {
            let (ecn, via, hints) = (Default::default(), Via::Simulated, Default::default());
            sink(Datagram { payload: &mut payload, remote, local, ecn, via, hints });
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
        loop {
            if self.room == 0 {
                return Ok(Sent { blocked: true, ..sent });
            }
            let mut slot = vec![0; segment];
            let length = fill(&mut slot);
            if length == 0 {
                return Ok(sent);
            }
            slot.truncate(length);
            sent.packets += 1;
            sent.bytes += length;
            self.room -= 1;
            self.sent.push((*flow, slot));
        }
    }

    fn flush(&mut self, _: Instant) -> Result<(), IoError> {
        Ok(())
    }

    fn max_payload(&mut self, _: &Flow) -> usize {
        self.longest
    }

    fn descriptors(&self, _: &mut dyn FnMut(BorrowedFd<'_>)) {}

    fn batch(&self) -> usize {
        usize::MAX
    }

    fn stats(&self) -> IoStats {
        IoStats::default()
    }
}
