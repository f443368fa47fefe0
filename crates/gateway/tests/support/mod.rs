//! A world to test the endpoint in: the simulated network in real time (the engine reads the clock itself),
//! one or two workers, quiche clients, and a handler whose bodies can be checked byte by byte.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

pub mod client;
pub mod handler;
pub mod initial;
pub mod shards;
pub mod streams;
pub mod world;
