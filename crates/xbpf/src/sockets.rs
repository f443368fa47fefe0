//! The AF_XDP sockets that processes hold, with how full their rings are: the iterator of `bpf/sockets.bpf.c`.

use std::fmt;
use std::io::Read;
use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link};

use crate::error::{CAPABILITIES, Error};
use crate::redirect::{forward_libbpf_messages, is_privileged};
use crate::skeleton::sockets::SocketsSkelBuilder;

/// Descriptors listed at most; a host has one socket a queue.
const LIMIT: usize = 16_384;

/// Bytes of `struct socket_record` (`bpf/include/sockets_shared.h`).
const RECORD: usize = 8 + 6 * 4 + 4 * 16 + 6 * 8 + NAME;
/// Bytes of a process's name.
const NAME: usize = 16;

/// A ring and how much of it is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketRing {
    /// Descriptors that it holds; 0: the socket has no such ring.
    pub entries: u32,
    /// Descriptors that one side has put in and the other has not taken out.
    pub used: u32,
    /// Descriptors ever put in, modulo 2³².
    pub produced: u32,
    /// Descriptors ever taken out, modulo 2³².
    pub consumed: u32,
}

/// An AF_XDP socket as one process holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketRecord {
    /// The socket's inode, as in `/proc/PID/fd`.
    pub inode: u64,
    /// The process, in the PID namespace of the caller.
    pub process: u32,
    /// The process's name; at most 15 bytes.
    pub name: String,
    /// The inode of the socket's network namespace.
    pub netns: u32,
    /// The interface that it is bound to, by its index in that namespace; 0: none.
    pub ifindex: u32,
    /// The queue that it is bound to.
    pub queue: u32,
    /// The driver reads and writes its frames, with no copy.
    pub zero_copy: bool,
    /// The UMEM's number on this host.
    pub umem: u32,
    /// Frames received and not yet read.
    pub rx: SocketRing,
    /// Frames to send and not yet taken.
    pub tx: SocketRing,
    /// Frames that the kernel may receive into.
    pub fill: SocketRing,
    /// Frames sent and not yet taken back.
    pub completion: SocketRing,
    /// As in XDP_STATISTICS: frames dropped for other reasons than a full RX ring.
    pub rx_dropped: u64,
    /// Fill ring descriptors that the kernel refused.
    pub rx_invalid_descriptors: u64,
    /// Frames dropped because the RX ring was full.
    pub rx_ring_full: u64,
    /// How often there was no frame to receive into.
    pub fill_ring_empty: u64,
    /// TX descriptors that the kernel refused.
    pub tx_invalid_descriptors: u64,
    /// How often the kernel found nothing to send.
    pub tx_ring_empty: u64,
}

impl SocketRecord {
    fn from_bytes(bytes: &[u8; RECORD]) -> Self {
        let half = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let word = |at: usize| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| bytes[at + byte]));
        let ring = |at: usize| SocketRing {
            entries: half(at),
            used: half(at + 4),
            produced: half(at + 8),
            consumed: half(at + 12),
        };
        let name = &bytes[RECORD - NAME..];
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Self {
            inode: word(0),
            process: half(8),
            netns: half(12),
            ifindex: half(16),
            queue: half(20),
            zero_copy: half(24) != 0,
            umem: half(28),
            rx: ring(32),
            tx: ring(48),
            fill: ring(64),
            completion: ring(80),
            rx_dropped: word(96),
            rx_invalid_descriptors: word(104),
            rx_ring_full: word(112),
            fill_ring_empty: word(120),
            tx_invalid_descriptors: word(128),
            tx_ring_empty: word(136),
            name: String::from_utf8_lossy(name).into_owned(),
        }
    }
}

/// The loaded iterator.
pub struct SocketList {
    link: Link,
}

impl fmt::Debug for SocketList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketList").finish_non_exhaustive()
    }
}

impl SocketList {
    /// Loads it.
    ///
    /// # Errors
    /// [`Error::NotPermitted`], [`Error::Observe`].
    pub fn load() -> Result<Self, Error> {
        forward_libbpf_messages();
        let failed = |source: libbpf_rs::Error| match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if !is_privileged() => {
                Error::NotPermitted { action: "listing AF_XDP sockets".to_owned(), needed: CAPABILITIES }
            }
            _ => Error::Observe { what: "iterator over sockets".to_owned(), source },
        };
        let mut storage = MaybeUninit::uninit();
        let loaded =
            SocketsSkelBuilder::default().open(&mut storage).and_then(OpenSkel::load).map_err(failed)?;
        Ok(Self { link: loaded.progs.list_sockets.attach().map_err(failed)? })
    }

    /// The sockets of all processes, once for each process that holds one, at most 16,384; those of other network
    /// namespaces too.
    ///
    /// # Errors
    /// [`Error::List`].
    pub fn read(&self) -> Result<Vec<SocketRecord>, Error> {
        const WHAT: &str = "AF_XDP sockets";
        let iterator = Iter::new(&self.link)
            .map_err(|source| Error::List { what: WHAT, source: std::io::Error::other(source) })?;
        let mut bytes = Vec::new();
        let limit = (LIMIT * RECORD) as u64;
        iterator.take(limit).read_to_end(&mut bytes).map_err(|source| Error::List { what: WHAT, source })?;
        let mut records: Vec<_> =
            bytes.as_chunks::<RECORD>().0.iter().map(SocketRecord::from_bytes).collect();
        // A duplicated descriptor is the same socket of the same process.
        records.sort_by_key(|record| (record.inode, record.process));
        records.dedup_by_key(|record| (record.inode, record.process));
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_taken_apart() {
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&7u64.to_ne_bytes());
        for (index, at) in (8..96).step_by(4).enumerate() {
            bytes[at..at + 4].copy_from_slice(&(index as u32 + 1).to_ne_bytes());
        }
        bytes[136..144].copy_from_slice(&99u64.to_ne_bytes());
        bytes[144..150].copy_from_slice(b"serve\0");
        let record = SocketRecord::from_bytes(&bytes);
        assert_eq!(
            (record.inode, record.process, record.netns, record.ifindex, record.queue),
            (7, 1, 2, 3, 4)
        );
        assert_eq!((record.zero_copy, record.umem), (true, 6));
        assert_eq!(record.rx, SocketRing { entries: 7, used: 8, produced: 9, consumed: 10 });
        assert_eq!(record.completion, SocketRing { entries: 19, used: 20, produced: 21, consumed: 22 });
        assert_eq!((record.tx_ring_empty, record.name.as_str()), (99, "serve"));
    }
}
