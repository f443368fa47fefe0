//! Records for many processes: a ring in shared memory with one writer, which readers cannot delay.
//!
//! ```text
//!  writer's process                               readers' processes
//!  push, push, publish ──▶ ring, a memfd ▶▶▶▶▶▶▶▶ mapped read-only, each at its own position
//!                 │          (writable once)      │
//!                 └─ wake ◀─ control, one each ◀──┘ position, and whether it sleeps
//! ```
//!
//! [`Broadcast`] writes, and lets readers in at a unix socket; [`BroadcastReader`] reads, in Rust, and
//! `include/expressway/broadcast.h` in C. Records have any length up to a limit. Each is copied in by the writer and
//! out by each reader.
//!
//! The writer never looks at its readers' positions: it overwrites the oldest records. A reader that was too slow
//! detects that, continues with the newest, and learns how many records it lost. It never gets part of a record,
//! because it checks the writer's position again after copying one. Lent frames ([`crate::xsk::SharedUmem`]) are read in
//! place instead, at the price of a quota for each reader.
//!
//! ```text
//!   the writer, for each record                 a reader, for each record
//!   intent = end of the record                  position < tail?             (acquire)
//!   ── release fence ──                         copy the record out
//!   write the record                            ── acquire fence ──
//!   tail = intent, at `publish` (release)       intent ≤ position + capacity? else it was overwritten meanwhile
//! ```
//!
//! If a reader's copy contains a word that was written after the fence, the reader also sees that intent. All words are
//! atomic, so a copy that is discarded is merely wrong, not undefined behaviour.
//!
//! A reader cannot write to the ring: its file is sealed (`F_SEAL_FUTURE_WRITE`) once the writer has mapped it. A
//! reader only writes to its own control memory: its position, which is only used for statistics, and whether it wants
//! to be woken, which costs the writer at most one system call per batch. Only the writer's thread touches the socket.

pub mod flags;
mod layout;
mod memory;
mod reader;
mod ring;
mod writer;

pub use crate::readers::{ReaderAccessError, ReaderError};
pub use reader::{BroadcastReader, Received};
pub use ring::Record;
pub use writer::{Broadcast, BroadcastConfig, BroadcastStats, ReaderLag};
