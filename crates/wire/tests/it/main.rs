//! The integration tests of this crate, in one binary.
#![allow(unreachable_pub)] // The modules of one binary see each other's items.

mod common;
mod corners;
mod edits;
mod etherparse;
mod refusals;
mod roundtrip;
mod traps;
