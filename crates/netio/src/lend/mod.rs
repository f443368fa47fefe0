//! Packets lent to other processes, which read them where they lie.
//!
//! ```text
//!   receiver                                                       reader ([`UmemReader`])
//!   [`table`]   which reader has which frame  ◀── [`rings`] ──▶    two rings a reader: packets, returns ([`abi`])
//!   [`server`]  who comes and goes            ◀── [`listener`] ──▶ [`connection`]: a unix socket
//! ```
//!
//! [`crate::broadcast`] lets its readers in at a socket of the same kind. What this module does not do: it receives
//! nothing ([`crate::xsk`]).

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

pub use config::ShareConfig;
pub(crate) use connection::Connection;
pub use error::{ReaderError, ShareError};
pub(crate) use listener::{Arrival, Listener, Liveness, greet, liveness, wake};
pub use reader::{LentPacket, UmemReader};
pub use rings::ReaderStats;
pub(crate) use server::ReaderServer;
pub use set::{ReaderReport, Readers, ShareStats};
pub(crate) use table::{PacketInfo, ReaderTable};
#[cfg(all(test, not(loom)))]
pub(crate) use {rings::ReaderRings, table::MAX_READERS};
