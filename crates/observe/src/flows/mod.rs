//! The traffic of an interface by flow, AF_XDP included. [`Flows`] reads the kernel's counters into [`Sample`]s,
//! [`Model`] computes rates and tables from them, [`Recorder`] and [`Recording`] keep samples in a file.
//!
//! The kernel's side is `bpf/flows.bpf.c`. [`Sample`]s are all that passes between reading and showing, so a recording
//! shows what the screen showed.

mod connections;
mod conversation;
mod cpus;
mod devices;
mod file;
mod model;
mod queues;
mod reader;
mod sample;

pub use conversation::{Address, Conversation};
pub use file::{FileError, Recorder, Recording};
pub use model::{Group, Model, PathRate, QueueRow, Rate, Row, Show, Window};
pub use reader::{Flows, FlowsError, Options};
pub use sample::{Counts, Cpu, Drop, Flow, Paths, Program, Queue, Sample, Totals};
