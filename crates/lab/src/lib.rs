//! The lab: two network namespaces, `server` and `client`, joined by a multi-queue veth.
//!
//! The demo, the end-to-end tests and the benchmarks run in a lab. It has native XDP, AF_XDP in copy mode, several
//! queues and jumbo frames on any machine, and nothing in it can reach a real network. [`Lab::up`] makes a lab,
//! [`Lab::down`] removes it, and [`Lab::status`] lists all. [`Lab::exec`] and [`Lab::command`] run programs
//! inside, [`Lab::run`] a closure.
//!
//! The kernel's state is authoritative: a lab named `NAME` is the namespaces `expressway-NAME-server` and
//! `expressway-NAME-client` (see `ip netns list`). The file `/run/expressway/lab/NAME.json` only records
//! its configuration and is written last: a lab without it is incomplete and rebuilt by the next `up`. So `down`
//! and `up` clean up after a run that was killed at any point.
//!
//! It drives the `ip`, `ethtool` and `tc` programs, and creates each interface inside a lab namespace. The machine's
//! own interfaces, routes and settings are never touched, except two interfaces if [`LabConfig::devices`] names them. It
//! does not shape traffic (no loss, no delay): the simulated network of `expressway-netio` does that
//! deterministically.

mod address;
mod command;
mod config;
mod device;
mod error;
mod lab;
mod namespace;
mod napi;
mod processes;
mod state;

pub use address::Addresses;
pub use config::{DEFAULT_NAME, LabConfig, Offload, Role, Target};
pub use error::LabError;
pub use lab::{Host, Lab, LabStatus, Removed};
