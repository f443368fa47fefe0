//! Where a datagram leaves: a mirror of the kernel's links, addresses, routes and neighbours.
mod resolve;
pub use resolve::{Path, Resolution, Resolver};
