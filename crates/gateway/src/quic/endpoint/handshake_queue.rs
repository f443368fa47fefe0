//! The queue of first packets of new connections, waiting for their TLS handshakes: nothing else that
//! strangers can request costs as much, and established connections do not wait for it.

use std::collections::VecDeque;
use std::time::Duration;

use super::receive::Path;
use crate::quic::cid::ClientCid;

/// Datagrams that may wait: a tenth of a second of handshakes with a key of RSA-2048, and half a megabyte.
const CAPACITY: usize = 256;

/// What becomes of a datagram whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It opens a connection.
    Serve {
        /// The client's source ID, for an answer that refuses.
        scid: ClientCid,
        /// The client's original ID, from its verified token, if it came back from a Retry.
        original: Option<ClientCid>,
    },
    /// It follows a packet that opens a connection.
    Follow,
}

/// A queued datagram.
pub(super) struct Waiting {
    pub(super) payload: Vec<u8>,
    pub(super) dcid: ClientCid,
    pub(super) path: Path,
    pub(super) purpose: Purpose,
}

/// The queued datagrams, and the time that handshakes owe to established connections.
#[derive(Default)]
pub(super) struct HandshakeQueue {
    waiting: VecDeque<Waiting>,
    owed: Duration,
}

impl HandshakeQueue {
    /// Datagrams that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// So many wait that new clients have to prove their address by Retry.
    pub(super) fn is_long(&self) -> bool {
        self.waiting.len() >= CAPACITY / 2
    }

    /// Puts a datagram at the end, with the destination ID in its header. False when the queue is full.
    pub(super) fn push(&mut self, payload: &[u8], dcid: &[u8], path: Path, purpose: Purpose) -> bool {
        let has_room = self.waiting.len() < CAPACITY;
        if has_room {
            self.waiting.push_back(Waiting { payload: payload.to_vec(), dcid: dcid.into(), path, purpose });
        }
        has_room
    }

    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let first = self.waiting.pop_front();
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        first
    }

    /// Whether a datagram with this destination ID waits: further ones have to queue behind it.
    pub(super) fn has(&self, dcid: &[u8]) -> bool {
        self.waiting.iter().any(|waiting| *waiting.dcid == *dcid)
    }

    /// Handshakes have used this much of the time that they share with connections.
    pub(super) fn owe(&mut self, time: Duration) {
        self.owed += time;
    }

    /// Connections have used this much.
    pub(super) fn pay(&mut self, time: Duration) {
        self.owed = self.owed.saturating_sub(time);
    }

    /// No connection has work to do.
    pub(super) fn settle(&mut self) {
        self.owed = Duration::ZERO;
    }

    /// It is the connections' turn.
    pub(super) fn is_in_debt(&self) -> bool {
        !self.owed.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_bounded_and_in_order() {
        let path = ("192.0.2.1:443".parse().unwrap(), "192.0.2.2:5000".parse().unwrap());
        let mut queue = HandshakeQueue::default();
        for number in 0..CAPACITY {
            assert_eq!(queue.is_long(), number >= CAPACITY / 2);
            let scid = b"source"[..].into();
            assert!(queue.push(&[number as u8], b"id", path, Purpose::Serve { scid, original: None }));
        }
        assert!(!queue.push(b"x", b"id", path, Purpose::Follow));
        for number in 0..CAPACITY {
            assert_eq!(queue.pop().unwrap().payload, [number as u8]);
        }
        assert!(queue.pop().is_none() && queue.is_empty());
    }
}
