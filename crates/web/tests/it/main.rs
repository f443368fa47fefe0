//! The integration tests of this crate that can share a process. Those beside this folder count allocations or take descriptors.
#![allow(unreachable_pub)] // The modules of one binary see each other's items.

mod access_log;
#[path = "../common/mod.rs"]
mod common;
mod compress;
mod escape;
mod files;
mod memory;
mod nginx_semantics;
mod rewriting;
mod rules;
mod streaming;
mod video;
