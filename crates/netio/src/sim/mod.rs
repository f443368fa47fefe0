//! A simulated network: packet I/O without a kernel, for deterministic tests.
//!
//! A [`Network`] carries datagrams between [`SimIo`] endpoints in memory, over links with delay, jitter,
//! loss, reordering, duplication, a rate with a bounded queue, congestion marks and an MTU. All chance comes
//! from one seeded generator and all time from the caller, so a run under [`Clock::virtual_from`] repeats
//! exactly, however long the time it simulates.
//!
//! It also runs under the real clock ([`Network::real_time`]), for engines that read the clock themselves:
//! then endpoints have a descriptor that becomes readable when a datagram has arrived, and a
//! [`crate::Worker`] runs on one as on any other backend.
//!
//! It does not simulate Ethernet, fragmentation or ICMP; a datagram that does not fit a link is dropped and
//! counted in [`NetworkStats`].

mod alarm;
mod drive;
mod endpoint;
mod link;
mod network;
mod random;
#[cfg(test)]
mod tests;

pub use drive::{Clock, Node, run_until, step};
pub use endpoint::SimIo;
pub use link::Link;
pub use network::{Network, NetworkStats};
pub use random::Random;
