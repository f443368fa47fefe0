//! The AF_XDP sockets of the host: what each is bound to, how full its rings are, what it lost, and whose it is.
//!
//! There are two sources, of which one is enough. The iterator (`bpf/sockets.bpf.c`) sees the sockets of all network
//! namespaces, their fill levels and holders, and needs CAP_BPF and CAP_PERFMON. Without it, sock_diag(7) gives ring
//! sizes and statistics for the caller's network namespace, and `/proc` gives the holders.

mod diag;
mod holders;

use std::collections::{BTreeMap, btree_map};
use std::io;
use std::os::unix::fs::MetadataExt;

use expressway_xbpf::{SocketList, SocketRecord};
use serde::{Deserialize, Serialize};

/// A ring of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// Descriptors that it holds.
    pub entries: u32,
    /// Of these, those in use: for RX, received and unread; for TX, not yet taken; for fill, free to receive into; for
    /// completion, sent and not yet taken back. `None` where only sock_diag could be asked.
    pub used: Option<u32>,
    /// Descriptors ever put in, modulo 2³²; `None` likewise.
    pub produced: Option<u32>,
    /// Descriptors ever taken out, modulo 2³²; `None` likewise.
    pub consumed: Option<u32>,
}

/// As in XDP_STATISTICS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Frames dropped for other reasons than a full RX ring.
    pub rx_dropped: u64,
    /// Frames dropped because the RX ring was full.
    pub rx_ring_full: u64,
    /// Fill ring descriptors that the kernel refused.
    pub rx_invalid_descriptors: u64,
    /// How often there was no frame to receive into.
    pub fill_ring_empty: u64,
    /// TX descriptors that the kernel refused.
    pub tx_invalid_descriptors: u64,
    /// How often the kernel found nothing to send.
    pub tx_ring_empty: u64,
}

/// A process that holds a socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Holder {
    /// Its number in the caller's PID namespace.
    pub process: u32,
    /// Its name (`comm`).
    pub name: String,
}

/// An AF_XDP socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// The socket's inode, as in `/proc/PID/fd`.
    pub inode: u64,
    /// It belongs to the caller's network namespace.
    pub own_namespace: bool,
    /// The interface that it is bound to, by its index in its own network namespace.
    pub interface: Option<u32>,
    /// The queue that it is bound to.
    pub queue: u32,
    /// The driver reads and writes its frames, with no copy.
    pub zero_copy: bool,
    /// The UMEM's number on this host.
    pub umem: Option<u32>,
    /// Received frames.
    pub rx: Option<Ring>,
    /// Frames to send.
    pub tx: Option<Ring>,
    /// Frames to receive into; the queue's, if several sockets share a UMEM there.
    pub fill: Option<Ring>,
    /// Sent frames; shared like `fill`.
    pub completion: Option<Ring>,
    /// What it lost.
    pub statistics: Statistics,
    /// Who holds it, in the order of their numbers.
    pub holders: Vec<Holder>,
}

/// Where sockets are listed from.
#[derive(Debug)]
pub struct Sockets {
    iterator: Option<SocketList>,
    namespace: Option<u32>,
    holders: holders::Holders,
}

impl Sockets {
    /// With fill levels where the process may have them, else by sock_diag.
    #[must_use]
    pub fn open() -> Self {
        let iterator = SocketList::load()
            .inspect_err(|error| tracing::debug!("{error}; fill levels of AF_XDP sockets are unknown"))
            .ok();
        Self { iterator, ..Self::without_levels() }
    }

    /// By sock_diag alone: the caller's network namespace, no fill levels.
    #[must_use]
    pub fn without_levels() -> Self {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").ok();
        Self {
            iterator: None,
            namespace: namespace.and_then(|found| u32::try_from(found.ino()).ok()),
            holders: holders::Holders::default(),
        }
    }

    /// Whether fill levels can be told.
    #[must_use]
    pub fn has_levels(&self) -> bool {
        self.iterator.is_some()
    }

    /// All sockets, by interface and queue; at most 16,384.
    ///
    /// # Errors
    /// The kernel's. `ENOENT` and `EINVAL`: it has no `xsk_diag`.
    pub fn list(&mut self) -> io::Result<Vec<Socket>> {
        let mut sockets = match &self.iterator {
            Some(iterator) => of_records(iterator.read().map_err(io::Error::other)?, self.namespace),
            None => {
                let mut sockets = diag::sockets()?;
                self.holders.fill(&mut sockets);
                sockets
            }
        };
        sockets.sort_by_key(|socket| (!socket.own_namespace, socket.interface, socket.queue, socket.inode));
        Ok(sockets)
    }
}

/// One socket for all records of an inode.
fn of_records(records: Vec<SocketRecord>, namespace: Option<u32>) -> Vec<Socket> {
    let mut sockets: BTreeMap<u64, Socket> = BTreeMap::new();
    for mut record in records {
        let holder = Holder { process: record.process, name: std::mem::take(&mut record.name) };
        match sockets.entry(record.inode) {
            btree_map::Entry::Occupied(mut entry) => entry.get_mut().holders.push(holder),
            btree_map::Entry::Vacant(entry) => {
                let ring = |ring: expressway_xbpf::SocketRing| {
                    (ring.entries > 0).then_some(Ring {
                        entries: ring.entries,
                        used: Some(ring.used),
                        produced: Some(ring.produced),
                        consumed: Some(ring.consumed),
                    })
                };
                entry.insert(Socket {
                    inode: record.inode,
                    own_namespace: Some(record.netns) == namespace,
                    interface: (record.ifindex != 0).then_some(record.ifindex),
                    queue: record.queue,
                    zero_copy: record.zero_copy,
                    umem: (record.fill.entries > 0 || record.ifindex != 0).then_some(record.umem),
                    rx: ring(record.rx),
                    tx: ring(record.tx),
                    fill: ring(record.fill),
                    completion: ring(record.completion),
                    statistics: Statistics {
                        rx_dropped: record.rx_dropped,
                        rx_ring_full: record.rx_ring_full,
                        rx_invalid_descriptors: record.rx_invalid_descriptors,
                        fill_ring_empty: record.fill_ring_empty,
                        tx_invalid_descriptors: record.tx_invalid_descriptors,
                        tx_ring_empty: record.tx_ring_empty,
                    },
                    holders: vec![holder],
                });
            }
        }
    }
    sockets.into_values().collect()
}

#[cfg(test)]
mod tests {
    use expressway_xbpf::SocketRing;

    use super::*;

    #[test]
    fn a_socket_of_two_processes_is_one() {
        let record = |inode, process, netns| SocketRecord {
            inode,
            process,
            name: format!("p{process}"),
            netns,
            ifindex: 3,
            queue: 1,
            rx: SocketRing { entries: 64, used: 5, produced: 9, consumed: 4 },
            ..SocketRecord::default()
        };
        let sockets = of_records(vec![record(1, 10, 7), record(1, 11, 7), record(2, 10, 8)], Some(7));
        assert_eq!(sockets.len(), 2);
        assert_eq!(sockets[0].holders.iter().map(|holder| holder.process).collect::<Vec<_>>(), [10, 11]);
        assert_eq!((sockets[0].own_namespace, sockets[1].own_namespace), (true, false));
        let ring = Ring { entries: 64, used: Some(5), produced: Some(9), consumed: Some(4) };
        assert_eq!(sockets[0].rx, Some(ring));
        assert_eq!(sockets[0].tx, None);
    }
}
