//! Earlier processes of this server that still have connections (generations), and how they get their datagrams.
//!
//! All of a server's datagrams arrive at its newest process. A connection ID says which generation issued it
//! ([`CheckKeys::generation`]), and datagrams of an older one are forwarded to it unchanged. [`Forward`] does this;
//! there is no I/O here.

use std::net::SocketAddr;

use super::cid::{CheckKeys, Cid, GENERATIONS};

/// Takes datagrams to a process. Called on workers: must not block.
pub trait Forward: Send + Sync + 'static {
    /// Takes a datagram that came from `remote` to `local` there.
    fn forward(&self, local: SocketAddr, remote: SocketAddr, payload: &[u8]) -> Forwarded;
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// It is on its way.
    Sent,
    /// The process is behind. QUIC sends again what is lost.
    Full,
    /// The process has ended.
    Gone,
}

/// An older process.
pub struct Older {
    /// Its generation.
    pub generation: u8,
    /// Keys of its connection IDs.
    pub keys: CheckKeys,
    /// Takes datagrams there.
    pub forward: Box<dyn Forward>,
}

/// A process among those that follow each other.
#[derive(Default)]
pub struct Generations {
    /// This one's number, modulo [`GENERATIONS`].
    pub own: u8,
    /// Those before it that had connections when it began; few, for each is asked about IDs that are nobody's.
    pub older: Vec<Older>,
}

impl Generations {
    /// Whether `seen`, what this process's keys say of `cid`, means that it issued the ID.
    pub(super) fn is_own(&self, seen: Option<u8>) -> bool {
        seen == Some(self.own % GENERATIONS)
    }

    /// The index of the older process that issued `cid`, of which `keys`, this process's, say `seen`.
    pub(super) fn issuer(&self, cid: &Cid, keys: &CheckKeys, seen: Option<u8>) -> Option<usize> {
        self.older.iter().position(|older| {
            let generation = if older.keys == *keys { seen } else { older.keys.generation(cid) };
            generation == Some(older.generation % GENERATIONS)
        })
    }
}
