//! Opens and keeps the data path: from UDP addresses and a mode to each worker's packet I/O, by AF_XDP where the host has
//! it and by kernel sockets everywhere else.
//!
//! ```no_run
#![doc = include_str!("../examples/echo.rs")]
//! ```
//!
//! ```text
//!  Config ──▶ DataPath::open ──▶ a WorkerIo for each worker, which a Worker drives
//!               │    ▲ │
//!     Provider ─┘    │ └─ maintain(): interfaces and agents come and go; modes(), step_downs(): what was obtained
//!     (this process, an agent, a device plugin)
//! ```
//!
//! * [`config`]: what it is to be; [`IoSection`] is the `[io]` of configuration files.
//! * [`provider`]: who makes what takes privilege.
//! * `devices`: which interfaces the frames of an address come in on.
//! * [`negotiate`]: which ways an interface has to receive and to send, what they cost, and which one is taken.
//! * `open`: one interface: program, sockets, self-test, and how each queue sends.
//! * [`data_path`]: all of them, with the kernel sockets behind.
//! * `upkeep`: what happens outside while it is open.
//! * [`findings`]: settings of devices that harm a UDP service.
//! * [`report`]: what was obtained, as a document.

pub mod config;
pub mod data_path;
mod devices;
mod error;
pub mod findings;
mod handover;
pub mod negotiate;
mod open;
pub mod provider;
pub mod report;
mod upkeep;

pub use config::{Config, IoConfig, IoMode, IoSection, Purpose, UdpSend, WaitStrategy};
pub use data_path::{DataPath, WorkerIo};
pub use devices::Reason;
pub use error::Error;
pub use handover::Handover;
pub use open::{QueueMode, Tried, try_mode};
pub use provider::Provider;
pub use upkeep::{Cause, Maintainer};
