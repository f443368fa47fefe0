//! The integration tests of this crate, in one binary.
#![allow(unreachable_pub)] // The modules of one binary see each other's items.

mod balance_disruption;
mod guard;
mod guard_cost;
mod guard_learning;
mod guard_quic;
mod guard_samples;
mod guard_syn;
#[path = "../../../netio/tests/udp_netns/mod.rs"]
mod udp_netns;
