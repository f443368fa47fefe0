//! Static files with nginx's semantics.
//!
//! Path of a request: `site` normalises the path and asks the open-file cache (`lookup`); a miss is looked up
//! with `openat2(RESOLVE_CACHED)` on the calling thread, and by a reader thread (`pool`) if the kernel's
//! directory cache does not know the path. `respond` turns the resource and the request's conditions and
//! ranges into a head and parts (`parts`); `body` hands them out block by block ([`blocks`](crate::blocks)): from the block
//! cache, otherwise from the page cache with `preadv2(RWF_NOWAIT)`, otherwise from a reader thread. A poll
//! does at most one block's work.
//!
//! Files are read, never mapped: a file that is truncated under a mapping kills the process with SIGBUS.
//! Every block read is followed by an `fstat`; if the file's length and validators are no longer those that
//! the response announced, the body ends with [`BodyError::Changed`](crate::BodyError).
//!
//! # Files that are rewritten in place
//!
//! Changes are detected by timestamps, which file systems count in ticks (1 to 10 ms before Linux 6.13, which gives a
//! file that was inspected its own). Data read within a tick of a file's change is therefore not cached, and data read
//! within two seconds is not reused afterwards. Meanwhile the ETag is weak and there is no `last-modified` (RFC 9110,
//! 8.8.2.2). Content replaced by other content of the same length and modification time is detected by the change time,
//! which cannot be restored.
//!
//! What cannot be detected: two changes within a tick while a body is being read; a write that continues
//! after its times were set, whose pages a body may contain in part; stores to a mapped file, which set times
//! only when a page first becomes dirty. To have every body consistent, publish by renaming.
//!
//! # Sharing
//!
//! Blocks are reference-counted, shared by all workers and keyed by the file's identity (device, inode, size,
//! modification time), so a popular segment is read once and never copied again on its way into packets.

mod block;
mod body;
mod exchange;
mod hls;
mod lookup;
mod open;
mod options;

mod pool;
mod reading;
mod respond;
mod root;
mod site;
mod store;

pub(crate) use exchange::FileExchange;
pub use hls::{HlsOptions, MAX_HELD, is_blocking_reload, is_directive, is_playlist};
pub(crate) use open::{Identity, OpenFile};
pub use options::{Encoding, FileOptions, FilesConfig, Symlinks};
pub use reading::Reading;
pub(crate) use reading::Task;
pub(crate) use site::{FileSite, FileSiteError};
pub use store::FileStore;
