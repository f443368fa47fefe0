//! Static files with nginx's semantics.
//!
//! A request's way: `site` normalises the path and asks the open-file cache (`lookup`); a miss is
//! looked up with `openat2(RESOLVE_CACHED)` on the calling thread, and by a reader thread (`pool`) if the
//! kernel's directory cache does not know the path. `respond` turns the resource and the request's
//! conditions and ranges into a head and a list of parts; `body` hands the parts out block by block
//! (`block`): from the block cache, else from the page cache with `preadv2(RWF_NOWAIT)`, else from a
//! reader thread.
//!
//! Files are read, never mapped: a file that is truncated under a mapping kills the process with SIGBUS.
//! Every block read is followed by an `fstat`; a file that is no longer the one whose length and validators
//! the response announced ends the body with [`BodyError::Changed`](crate::BodyError). A change within the
//! file system's timestamp granularity (a kernel tick, 1 to 10 ms) that keeps the size cannot be seen.

mod block;
mod body;
mod exchange;
mod lookup;
mod open;
mod options;
mod pool;
mod respond;
mod root;
mod site;
mod store;

pub(crate) use exchange::FileExchange;
pub use options::{Encoding, FileOptions, FilesConfig, Symlinks};
pub(crate) use site::{FileSite, FileSiteError};
pub use store::FileStore;
