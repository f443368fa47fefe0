//! The traffic of an interface, AF_XDP included: who sends and receives, what happens to each packet, and what a
//! process does with it.

mod capture;
mod devices;
pub mod drops;
pub mod file;
mod filter;
pub mod flows;
mod packet;
pub mod sockets;
pub mod text;
pub mod trace;

pub use capture::{Capture, CaptureError, CaptureOptions, Clock, Losses, Note, Points, XdpPoints};
pub use filter::{Filter, FilterError};
pub use packet::{Direction, Packet, Point, Process, TxMetadata, Verdict};
