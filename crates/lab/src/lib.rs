//! The lab: two network namespaces, `server` and `client`, joined by a multi-queue veth.
//!
//! The demo, the end-to-end tests and the benchmarks run in it, because it gives native XDP, AF_XDP in copy
//! mode, several queues and jumbo frames on any machine, and because nothing in it can reach a real network.
//! [`Lab::up`] makes one, [`Lab::down`] removes it, [`Lab::status`] lists them, [`Lab::exec`]
//! and [`Lab::command`] run programs inside, [`Lab::run`] runs a closure inside.
//!
//! The kernel's state is authoritative: a lab named `NAME` is the namespaces `expressway-NAME-server` and
//! `expressway-NAME-client` (see `ip netns list`). The file `/run/expressway/lab/NAME.json` only records
//! its configuration and is written last: a lab without it is incomplete and rebuilt by the next `up`. So `down`
//! and `up` clean up after a run that was killed at any point.
//!
//! It drives the `ip`, `ethtool` and `tc` programs, and each interface is made inside a lab namespace: the
//! machine's own interfaces, routes and settings are never touched, except two that [`LabConfig::devices`] names. It
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
