//! The traffic of an interface, AF_XDP included: who sends and receives, what happens to each packet, and what a
//! process does with it.
//!
//! Everything here attaches to what already runs, and replaces nothing. Every hook is a link held by this process, so
//! nothing stays behind when the process ends. A hook that the kernel lacks is a note, not an error. VLANs and bonds are
//! watched on the devices below them, where XDP has their packets. An XDP program is watched as soon as the kernel loads
//! it; packets that only the program knew about until then are reported as a gap.
//!
//! * [`Capture`] copies the packets that its filter matches into one buffer per CPU, and merges them by time. libpcap
//!   compiles the [`Filter`]; the result is translated to BPF and replaces a stub in the object.
//! * [`flows`] are counted in the kernel, in one table per CPU with bounded sets. A new flow takes weight from the
//!   lightest flow of a full set, and takes its place once that has none left, so heavy flows survive a flood.
//! * [`trace`]: workers write hops into bounded rings while somebody asks (`expressway_netio::trace`), the admin listener
//!   sends them, and the model here puts them together.
//! * [`drops`] is the one list of reasons for drops, from the XDP program to HTTP. The metrics page and the reference are
//!   derived from it, and a test compares it with every counter of drops in the code.
//! * [`mod@file`] reads and writes capture files, [`text`] prints packets, [`sockets`] lists AF_XDP sockets.

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

pub use capture::{Capture, CaptureError, CaptureOptions, Clock, Losses, Points, Uncaptured, XdpPoints};
pub use filter::{Filter, FilterError};
pub use packet::{Direction, Packet, Point, Process, TxMetadata, Verdict};
