//! What passes an interface, AF_XDP included: who sends and receives, and what becomes of it.

pub mod drops;
pub mod flows;
mod packet;
pub mod sockets;

pub use packet::{Direction, Packet, Point, Process, Verdict};
