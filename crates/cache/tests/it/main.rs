//! The integration tests of this crate, in one binary.
#![allow(unreachable_pub)] // The modules of one binary see each other's items.

mod collapsing;
mod common;
mod disk;
mod semantics;
mod versions;
