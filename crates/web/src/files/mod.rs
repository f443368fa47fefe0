//! Static files with nginx's semantics.
//!
//! A request's way: `site` normalises the path and asks the open-file cache (`lookup`); a miss is
//! looked up with `openat2(RESOLVE_CACHED)` on the calling thread, and by a reader thread (`pool`) if the
//! kernel's directory cache does not know the path. `respond` turns the resource and the request's
//! conditions and ranges into a head and parts (`parts`); `body` hands them out block by block (`block`): from
//! the block cache, else from the page cache with `preadv2(RWF_NOWAIT)`, else from a reader thread. A poll does one
//! block's work at most.
//!
//! Files are read, never mapped: a file that is truncated under a mapping kills the process with SIGBUS.
//! Every block read is followed by an `fstat`; a file that is no longer the one whose length and validators
//! the response announced ends the body with [`BodyError::Changed`](crate::BodyError).
//!
//! # Files that are rewritten in place
//!
//! Times are what shows a change, and file systems count them in ticks (1 to 10 ms before Linux 6.13, which gives a file
//! that was looked at its own). So what is read of a file within a tick of its change is not cached, what is read within
//! two seconds is no longer used afterwards, and meanwhile its ETag is weak and there is no `last-modified` (RFC 9110,
//! 8.8.2.2). Content that was put in the place of other content of the same length with the same modification time
//! shows by the change time, which nobody can put back.
//!
//! What cannot be seen: two changes within a tick while a body is being read; a write that goes on after its times were
//! set, whose pages a body may have in part; stores to a mapped file, which set times only when a page is first made
//! dirty. Who needs every body whole publishes by renaming.
//!
//! # Sharing
//!
//! Blocks are reference-counted, shared by all workers and keyed by the file's identity (device, inode, size,
//! modification time), so a popular segment is read once and never copied again on its way into packets.

mod block;
mod body;
mod exchange;
mod lookup;
mod open;
mod options;
mod parts;
mod pool;
mod respond;
mod root;
mod site;
mod store;

pub(crate) use exchange::FileExchange;
pub use options::{Encoding, FileOptions, FilesConfig, Symlinks};
pub(crate) use site::{FileSite, FileSiteError};
pub use store::FileStore;
