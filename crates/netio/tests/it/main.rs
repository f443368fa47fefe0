//! The integration tests of this crate that can share a process. Those beside this folder count allocations or take descriptors,
//! and `conformance` goes to guests.
#![allow(unreachable_pub)] // The modules of one binary see each other's items.

mod broadcast;
#[path = "../common/mod.rs"]
mod common;
mod datagrams;
mod examples;
mod layers;
mod lent_bindings;
mod netdev;
mod option;
mod route_mirror;
mod shared_umem;
mod udp_failures;
#[path = "../udp_netns/mod.rs"]
mod udp_netns;
mod udp_sockets;
mod xsk_bind;
mod xsk_bindings;
mod xsk_hints;
mod xsk_limits;
mod xsk_receiving;
mod xsk_remote;
mod xsk_traffic;
mod xsk_trial;
mod xsk_vlan;
