//! Packet I/O over AF_XDP: datagrams between a queue of an interface and this process, past the stack.
//!
//! [`Port`] is one AF_XDP socket (XSK) on one queue; [`ExpressIo`] makes a worker's ports and its kernel
//! sockets one [`crate::PacketIo`]. What this module does not do: it loads no BPF program (an XSKMAP comes
//! in as a descriptor), resolves no routes ([`crate::route`]) and knows nothing of what datagrams mean.
//!
//! # AF_XDP in a page
//!
//! The process registers a range of its memory with the kernel, the *UMEM*, cut into *frames* of one
//! size. Packets lie in frames; what moves between kernel and process is the right to touch a frame. Four
//! rings of fixed size, mapped into both, carry that right as frame addresses:
//!
//! ```text
//!                       process                                    kernel
//!
//!        idle frames ──────────────▶ ┌─ fill ───────┐ ──────────▶ frames to receive into
//!                                    └──────────────┘                    │ packet arrives on the queue,
//!                                                                        │ XDP program: redirect to XSKMAP
//!        received packet ◀────────── ┌─ RX ─────────┐ ◀───────────┘
//!                                    └──────────────┘
//!        packet built in a frame ──▶ ┌─ TX ─────────┐ ──────────▶ driver sends it
//!                                    └──────────────┘                    │
//!        idle again ◀─────────────── ┌─ completion ─┐ ◀───────────┘ sent, or dropped
//!                                    └──────────────┘
//! ```
//!
//! Nothing is copied in *zero-copy* mode: the driver's hardware rings name the UMEM's frames. In *copy*
//! mode, which every driver has, the kernel copies between its own buffers and the frames, in the process's
//! system calls when sending. A driver that sleeps says so in a flag of the ring (*need_wakeup*), and only
//! then a system call is made: `sendto` for TX, `recvfrom` for fill, both without data.
//!
//! # The life of a frame here
//!
//! ```text
//!   state                 who may touch it     as a type                 how it goes on
//!   ───────────────────   ──────────────────   ───────────────────────   ──────────────────────────
//!   idle (transmit)       program              Frame in a FramePool      acquire
//!   being built           program              TxFrame (guard)           submit, or drop: idle again
//!   in TX, being sent     kernel               nothing                   completion: idle
//!   in fill, being        kernel               nothing                   RX descriptor
//!     received
//!   received              program              Frame in a guard, lent    the callback returns, or
//!                                              as &mut [u8]              unwinds: fill ring, at once
//! ```
//!
//! A `Frame` is move-only. It is made only when the UMEM's record says that the frame is with the kernel for
//! just that purpose, so whatever a ring holds, no frame gets two owners; descriptors out of range, of a
//! frame the kernel does not have, or longer than their frame are dropped and counted
//! (`dropped_bad_descriptor`), in release builds too.
//!
//! A frame that is sent from:
//!
//! ```text
//!   0                                58..128           128                                 frame_size
//!   ├── unused ──────────────────────┤ headers ────────┤ payload, sealed in place ─────────┤
//!                                      right-aligned     start of a cache line
//! ```
//!
//! The payload's place does not depend on the headers, which are written in front once the payload is there,
//! because the UDP checksum needs it. It is computed in full, in software, unless the device was shown to do it
//! ([`ChecksumProbe`]). Transmit metadata lies in front of the headers where a port asks for any ([`TransmitHints`]).
//!
//! # Limits
//!
//! * A payload up to [`PortConfig::max_payload`], 1920 bytes with frames of 2048 and 3968 with frames of 4096,
//!   is built in the frame that it leaves in. A larger one, as far as the MTU goes, is built aside and copied
//!   into several frames: 17 in copy mode, as many as the device says (`xdp-zc-max-segs`) in zero-copy mode. What
//!   those do not hold takes the kernel socket.
//! * Received packets may be as large as the interface's MTU at open. Beyond one frame they need Linux 6.6,
//!   a program with `xdp.frags`, and cost a copy that puts them together.
//! * UDP checksums of received packets are not verified unless [`ExpressConfig::verify_checksum`] says so.
//! * An interface whose driver strips VLAN tags on receipt hides them from XDP: turn `rx-vlan-offload` off.
//!
//! # Fallback
//!
//! | counter | a burst took the kernel socket because |
//! |---|---|
//! | `tx_fallback_neighbour` | the next hop's hardware address is unknown, or the kernel has not confirmed it lately and is reminded, once a second |
//! | `tx_fallback_route` | the route leaves by an interface without a port, or by none that takes frames |
//! | `tx_fallback_socket` | the port is down, or the segment larger than a packet may be in its mode |

mod abi;
mod assembly;
mod config;
mod error;
mod exchange;
#[cfg(test)]
mod fake;
mod frame;
mod gate;
mod hints;
mod inlet;
mod interface;
mod io;
mod kick;
mod lane;
mod lender;
mod loan;
mod mapped;
mod mapping;
mod metadata;
mod path_cache;
mod port;
mod queue;
mod reader;
mod ring;
mod shared;
mod socket;
mod umem;
mod xskmap;

pub use config::{
    BindMode, ExpressConfig, Failing, ObtainedMode, PortConfig, ShareConfig, TransmitVia, UmemConfig,
};
pub use error::{OpenError, ReaderError, SendError, ShareError};
pub use hints::{ChecksumFault, ChecksumProbe, ChecksumProof, Grant, TransmitGrants, TransmitHints};
pub use inlet::PortInlet;
pub use io::ExpressIo;
pub use lender::ReaderStats;
pub use mapping::Backing;
pub use metadata::TransmitTime;
pub use path_cache::Routes;
pub use port::{Port, PortReport, PortState, PortStatus};
pub use reader::{LentPacket, UmemReader};
pub use shared::{
    ForeignSocket, NotSent, ReaderReport, Readers, Received, ShareStats, SharedUmem, SocketId,
    interface_index,
};
