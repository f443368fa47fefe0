//! What several test binaries share.
#![allow(dead_code, unreachable_pub)] // Each test binary uses a part of it.

pub mod c;
pub mod netns;
pub mod xsk;
