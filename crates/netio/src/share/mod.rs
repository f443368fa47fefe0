//! What all memory that other processes may read has in common: a socket at which they come, and errors.
//!
//! [`crate::express::SharedUmem`] lends frames to its readers, [`crate::broadcast`] shows them a ring.

mod connection;
mod error;
mod listener;

pub(crate) use connection::Connection;
pub use error::{ReaderError, ShareError};
pub(crate) use listener::{Arrival, Listener, Liveness, greet, liveness, wake};
