//! Packet I/O over kernel UDP sockets.
//!
//! There is one socket per worker and listen address, in a SO_REUSEPORT group whose selector steers by a byte of the
//! payload ([`Steering`]). It receives by `recvmmsg` with `UDP_GRO`. It sends GSO messages in one `sendmmsg` for all
//! flows of a turn, or single datagrams by `sendmmsg` or `sendmsg` ([`SendMode`]). Replies leave from the address that
//! was asked. Datagrams are never fragmented: DF is set, and the MTU that the path's routers report is available from
//! [`crate::PacketIo::max_payload`].
//!
//! It does not segment for the caller, pace, or know what datagrams mean.
//!
//! [`UdpGroup::bind`] makes the sockets of all workers in order; each worker's [`UdpSockets`] becomes its
//! [`UdpIo`]. [`group`] keeps memberships of multicast groups on them.
//!
//! Each message that a receive call asks for has a cost, so a call asks for as many as the socket has been delivering,
//! or a single one if they arrive one by one. If a GSO message is refused, its datagrams are sent one by one in the
//! same flush. GSO is only turned off if those succeed: an error that also affects single datagrams is not GSO's fault.
//! If a socket buffer is full, datagrams are kept for at most 50 ms, then dropped and counted.

mod backend;
mod config;
mod control;
mod errors;
pub mod group;
mod path_mtu;
mod pause;
mod socket;
mod sys;
mod transmit;
mod window;

pub use backend::UdpIo;
pub use config::{MAX_PAYLOAD, SendMode, SendOptions, Steering, UdpConfig};
pub use pause::ReceivePause;
pub use socket::{UdpGroup, UdpSockets};
