//! Traffic through AF_XDP on a veth with a kernel UDP peer, in good weather and bad.

#[path = "../common/mod.rs"]
mod common;

mod bed;
mod faults;
mod traffic;
