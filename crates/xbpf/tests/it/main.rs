//! The integration tests of this crate, in one binary.
#![allow(unreachable_pub)] // The modules of one binary see each other's items.

mod attachment;
mod balance;
mod cost;
mod fanout;
mod flows;
mod forward;
mod forward_cost;
mod fuzz;
mod live;
mod support;
mod traffic;
mod truncation;
mod verdicts;
