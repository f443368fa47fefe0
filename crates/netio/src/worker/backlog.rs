//! Datagrams that were received but not handled, because the turn's slice was used up in the middle of a batch.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::io::{Datagram, Ecn, Hints, Via};

/// Memory that is kept while nothing waits.
const KEPT: usize = 256 << 10;

/// Copies, oldest first. The worker receives no more while there are some, so that there are never more than what one
/// `receive` hands over; what else has come in waits where it is, in the socket or the ring.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    entries: VecDeque<Entry>,
    bytes: Vec<u8>,
    /// Bytes that were handled.
    start: usize,
}

#[derive(Debug)]
struct Entry {
    length: usize,
    remote: SocketAddr,
    local: SocketAddr,
    ecn: Ecn,
    via: Via,
    hints: Hints,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn push(&mut self, datagram: &Datagram<'_>) {
        self.bytes.extend_from_slice(datagram.payload);
        self.entries.push_back(Entry {
            length: datagram.payload.len(),
            remote: datagram.remote,
            local: datagram.local,
            ecn: datagram.ecn,
            via: datagram.via,
            hints: datagram.hints,
        });
    }

    /// Hands the oldest to `handle`. False when there is none.
    pub(super) fn pop(&mut self, handle: impl FnOnce(Datagram<'_>)) -> bool {
        let Some(entry) = self.entries.pop_front() else { return false };
        let Entry { length, remote, local, ecn, via, hints } = entry;
        let end = self.start + length;
        handle(Datagram { payload: &mut self.bytes[self.start..end], remote, local, ecn, via, hints });
        self.start = end;
        if self.entries.is_empty() {
            self.start = 0;
            self.bytes.clear();
            if self.bytes.capacity() > KEPT {
                *self = Self::default();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_come_back_in_order_and_large_memory_is_given_back() {
        let mut backlog = Backlog::default();
        let (local, remote) = (SocketAddr::from(([10, 0, 0, 1], 1)), SocketAddr::from(([10, 0, 0, 2], 2)));
        let mut payloads: Vec<Vec<u8>> = (0..300).map(|number| vec![number as u8; number * 4]).collect();
        for payload in &mut payloads {
            let (ecn, via, hints) = (Ecn::Ce, Via::Kernel(3), Hints { hash: Some(7), ..Hints::default() });
            backlog.push(&Datagram { payload, remote, local, ecn, via, hints });
        }
        for payload in &payloads {
            let popped = backlog.pop(|datagram| {
                assert_eq!(datagram.payload, payload);
                assert_eq!((datagram.remote, datagram.local), (remote, local));
                assert_eq!(
                    (datagram.ecn, datagram.via, datagram.hints.hash),
                    (Ecn::Ce, Via::Kernel(3), Some(7))
                );
            });
            assert!(popped);
        }
        assert!(backlog.is_empty() && !backlog.pop(|_| panic!("there is none")));
        assert!(backlog.bytes.capacity() <= KEPT);
    }
}
