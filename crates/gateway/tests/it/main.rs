//! The integration tests of this crate that can share a process. Those beside this folder count allocations.
#![allow(unreachable_pub)] // The modules of one binary see each other's items.

mod addresses;
mod endpoint;
mod errors;
mod http3;
#[path = "../support/mod.rs"]
mod support;
mod trace;
