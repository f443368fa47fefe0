//! The integration tests of this crate, in one binary.
#![allow(unreachable_pub)] // The modules of one binary see each other's items.

mod kernel;
mod reference;
mod support;
mod xdp;
