//! The integration tests of this crate, in one binary.
#![allow(unreachable_pub)] // The modules of one binary see each other's items.

mod balance_disruption;
mod guard;
mod support;
#[path = "../../../netio/tests/udp_netns/mod.rs"]
mod udp_netns;
