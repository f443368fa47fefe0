//! The integration tests of this crate that can share a process. The one beside this folder counts allocations.
#![allow(unreachable_pub)] // The modules of one binary see each other's items.

mod examples;
mod fanout;
#[allow(dead_code)] // A part of what netio's tests share.
#[path = "../../../netio/tests/common/netns.rs"]
mod netns;
mod receive;
mod sequence;
