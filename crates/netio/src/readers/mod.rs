//! Packets lent to other processes, which read them in place.
//!
//! ```text
//!   receiver                                                       reader ([`UmemReader`])
//!   [`table`]   which reader has which frame  ◀── [`rings`] ──▶    two rings a reader: packets, returns ([`abi`])
//!   [`server`]  who comes and goes            ◀── [`listener`] ──▶ [`connection`]: a unix socket
//! ```
//!
//! What this module does not do: it receives nothing ([`crate::xsk`]).
//!
//! The UMEM is a memfd; another process maps it read-only and reads packets where the receiver took them.
//!
//! ```text
//!  receiver                       control memory, one per reader                  reader
//!  RX ─▶ lend ─▶ owner: them ─▶ │ packets ▶▶▶ (addr, len, time, sequence) ▶▶▶ │ ─▶ reads the mapping
//!  free ◀─ last bit gone ◀───── │ returns ◀◀◀ address ◀◀◀                     │ ◀─ done
//!          └── a seqpacket socket: hello with both memfds; wake-ups; its end is the reader's end ──┘
//! ```
//!
//! - *The reader trusts the receiver, never the reverse.* F_SEAL_FUTURE_WRITE, set once the receiver has its own
//!   mapping, makes every later writable mapping fail, including of a reopened descriptor; opening read-only would not
//!   be enough, because `/proc/self/fd` can be reopened. The kernel keeps writing through the pages that it pinned. The
//!   control memory is sealed in size and written by both: the receiver reads from it only the consumer index of the
//!   packets and the returns, and an invalid index disconnects that reader. A return counts only if the record says
//!   that this reader has that frame: one bit per reader and frame, which also makes lending one packet to several
//!   readers a matter of bits.
//! - *A quota per reader*, set aside when it connects, and a ring with as many entries: a ring is never full before the
//!   quota is used up, so a slow reader costs its quota and a counter, and no packet of anyone else. Death is the end
//!   of the socket, which the kernel reports whatever the reader died of; its bits are cleared at once, since a reader
//!   that cannot write harms nobody by reading on.
//! - *The rings are those of AF_XDP*, including the need_wakeup flag, in the same code and loom models: index stores
//!   are release, loads acquire, and a full fence between publishing and reading the flag prevents a missed sleeper.
//! - *The ABI is a C header with inline functions*, not a library: a reader needs a compiler and nothing to link. A
//!   test compares header and Rust by size and offset; another runs a C reader on a veth, stops it, kills it, and makes
//!   one lie.
//!
//! # Why this and [`crate::broadcast`]
//!
//! The two differ in who owns what a reader looks at, and so cannot be one. A lent frame belongs to its reader until it is
//! returned: nothing overwrites it, so it is read in place, and the receiver has to keep a record of every frame, set
//! frames aside for each reader, and check what readers return. A slow reader therefore loses the *newest* packets, once
//! its quota is used up. A broadcast ring belongs to its writer at all times: the writer overwrites the oldest records
//! without looking at readers, keeps nothing per reader and checks nothing, and readers copy records out and detect by
//! the ring's counters that they were overtaken. A slow reader loses the *oldest* records.
//!
//! A ring cannot lend: a NIC that refills a frame announces it in no counter, so a reader in place could not tell that
//! its packet was overwritten. Frames cannot be broadcast: many readers, each with a quota, would take more frames than a
//! UMEM has, and what is broadcast is often in no frame, such as messages put in order from two lines, kernel sockets and
//! re-requests. A common ring would need both the quotas and the copies. What can be shared is: the listening socket,
//! the greeting with its descriptors, wake-ups, detection of dead readers, and the errors ([`listener`], [`connection`],
//! [`ReaderAccessError`], [`ReaderError`]).
//!
//! A binding lends too (`XskConfig::lend`), for the receiver: what [`crate::xsk::XskIo`] has handed to the program's
//! callback goes to the binding's readers instead of back to the fill ring, and the fill ring is refilled from the
//! frames that were set aside. Each binding has a UMEM and therefore a socket of its own, and readers of several queues
//! connect to several; in exchange a binding that fails is replaced as usual, and its readers' connections end with the
//! memory that they read. Who has which frame ([`table`]) and the readers as processes ([`server`]) are the same code
//! for both.

pub(crate) mod abi;
mod config;
mod connection;
mod error;
mod listener;
mod reader;
mod rings;
mod server;
mod set;
mod table;

pub use config::ReaderAccess;
pub(crate) use connection::Connection;
pub use error::{ReaderAccessError, ReaderError};
pub(crate) use listener::{Arrival, Listener, Liveness, greet, liveness, wake};
pub use reader::{UmemPacket, UmemReader};
pub use rings::ReaderStats;
pub(crate) use server::ReaderServer;
pub use set::{ReaderConnectionStats, ReaderReport, Readers};
pub(crate) use table::{PacketInfo, ReaderTable};
#[cfg(all(test, not(loom)))]
pub(crate) use {rings::ReaderRings, table::MAX_READERS};
