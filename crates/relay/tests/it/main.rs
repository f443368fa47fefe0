//! Integration tests of the relay.

#[path = "../support/listed.rs"]
mod listed;
mod moq;
mod rooms;
