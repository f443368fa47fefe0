//! Static files.

mod exchange;
mod options;
mod store;

pub(crate) use exchange::FileExchange;
pub use options::{Encoding, FileOptions, FilesConfig, Symlinks};
pub use store::FileStore;
