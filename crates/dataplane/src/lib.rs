//! Opens and keeps the data path: from UDP addresses and a mode to each worker's packet I/O, over AF_XDP where the host
//! supports it and over kernel sockets everywhere else.
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
//! * [`config`]: the configuration; [`IoSection`] is the `[io]` section of configuration files.
//! * [`provider`]: who creates what needs privileges.
//! * `devices`: on which interfaces the frames of an address arrive.
//! * [`negotiate`]: how an interface can receive and send, what each method costs, and which one is chosen.
//! * `open`: opens one interface: program, sockets, self-test, and the send method of each queue.
//! * [`data_path`]: all interfaces, with the kernel sockets beneath.
//! * `upkeep`: reacts to changes of the host while the data path is open.
//! * [`findings`]: device settings that harm a UDP service.
//! * [`report`]: the modes that were obtained, as a document.

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
