//! Packet I/O over AF_XDP: datagrams between a queue of an interface and this process, past the stack.
//!
//! | type | is | for |
//! |---|---|---|
//! | [`XskIo`] | a worker's [`XskBinding`]s and its kernel sockets as one [`crate::PacketIo`] | UDP services: datagrams in and out, with routes, neighbours and a way round everything that AF_XDP cannot |
//! | [`XskBinding`] | one AF_XDP socket (XSK) on one queue, replaced when it fails | `XskIo` |
//! | [`SharedUmem`] | several sockets on one memory | whole packets: forwarding, generating, counting, handing to other processes |
//! | [`UmemReader`] | packets that another process received | business code without privileges; in C: `include/expressway/umem.h` |
//!
//! None of them needs `unsafe` of its user, and with none can a frame be kept or lost. What this module does not do: it loads no
//! BPF program (an XSKMAP comes in as a descriptor), resolves no routes ([`crate::route`]) and knows nothing of
//! what datagrams mean.
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
//! Each ring has one producer and one consumer, so that neither side ever waits for the other. A socket
//! belongs to one *queue* of an interface: it receives what arrives on that queue, and what it sends leaves by
//! it. A network card spreads flows over its queues by a hash (RSS), so a program has a socket for each queue, or
//! misses packets.
//!
//! Which packets come here an *XDP program* decides, which runs in the driver for each packet. It answers
//! `XDP_PASS`, and the kernel's stack has the packet as ever, or redirects to an *XSKMAP*, a table of sockets
//! by queue. The programs of this project are in the crate `expressway-xbpf`; any other will do that redirects
//! to an XSKMAP.
//!
//! Nothing is copied in *zero-copy* mode: the driver's hardware rings name the UMEM's frames. In *copy*
//! mode, which every driver has, the kernel copies between its own buffers and the frames, in the process's
//! system calls when sending. Which one a bind obtained is read back, never guessed ([`ObtainedMode`]).
//!
//! The rings need no system call as long as both sides look at them. A driver that sleeps says so in a flag of
//! the ring (*need_wakeup*), and only then a system call is made: `sendto` for TX, `recvfrom` for fill, both
//! without data. In copy mode sending always takes one, a batch.
//!
//! # A first program
//!
//! Counts the datagrams to one address on queue 0 and answers none. `examples/` has more: `receive_and_drop`,
//! `transmit`, `l2fwd`, and `echo` on the trait that all backends share.
//!
//! ```no_run
//! use expressway_netio::xsk::{XskConfig, SharedUmem, UmemConfig, interface_index};
//! use expressway_xbpf::{AttachMode, Existing, Options, Redirect};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The program first: some drivers need it before a zero-copy bind.
//! let redirect = Redirect::load(&Options::default())?;
//! redirect.add_pair("192.0.2.1:5000".parse()?)?;
//! let _attached = redirect.attach(interface_index("eth1")?, AttachMode::Native, Existing::Refuse)?;
//!
//! let mut umem = SharedUmem::new(&UmemConfig::default())?;
//! let socket = umem.bind(&XskConfig::new("eth1", 0), Some(redirect.xsk_map()))?;
//! let mut bytes = 0;
//! loop {
//!     umem.receive(socket, 64, |mut packet| bytes += packet.bytes().len())?;
//!     umem.wait(None)?;
//! }
//! # }
//! ```
//!
//! # The life of a frame here
//!
//! AF_XDP leaves to the program who may touch which frame when, and a mistake is no error but a wrong packet: a
//! frame sent twice carries another's bytes, one that is forgotten is gone for good, one in the fill ring while
//! it is read changes under its reader. So a record beside the UMEM says who has each frame.
//!
//! ```text
//!   state                 who may touch it     as a type                 how it goes on
//!   ───────────────────   ──────────────────   ───────────────────────   ──────────────────────────
//!   idle                  program              Frame in the UMEM         alloc
//!   being built           program              TxFrame (guard)           submit, or drop: idle again
//!   in TX, being sent     kernel               nothing                   completion: idle
//!   in fill, being        kernel               nothing                   RX descriptor
//!     received
//!   received              program              RxFrame (guard), lent     the callback returns, or
//!                                              as &mut [u8]              unwinds: fill ring, at once
//!   lent to readers       nobody: they read    nothing                   the last of them returns it, or goes
//! ```
//!
//! A `Frame` is move-only. It is made only when the UMEM's record says that the frame is with the kernel for
//! just that purpose, so whatever a ring holds, no frame gets two owners; descriptors out of range, of a
//! frame the kernel does not have, or longer than their frame are dropped and counted
//! (`dropped_bad_descriptor`), in release builds too.
//!
//! # One UMEM for several sockets
//!
//! The sockets of a [`SharedUmem`] are of different queues or interfaces and of one thread. Each has its own four
//! rings (`XDP_SHARED_UMEM`, Linux 5.10); the frames are common. What one receives another sends, from the same
//! frame ([`Received::send`]). Each has a share of as many frames as its rings have entries, so that a socket whose
//! device is stuck never starves the others.
//!
//! # Readers in other processes
//!
//! A packet may be lent to other processes ([`SharedUmem::share`], [`Received::lend`]): they see it in a read-only
//! mapping of the UMEM, without a copy and without a privilege, and return it. Each may hold its quota of frames;
//! what comes beyond is dropped for that reader and counted. Nothing that a reader writes is believed, and when its
//! connection ends, by whatever end, what it held is free again. Whoever is admitted can read every frame, so
//! readers are of one domain of trust; the permissions of the socket say which.
//!
//! # Building a packet
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
//! because the UDP checksum needs it. The checksum is computed in full and in software: some drivers accept a request
//! to finish it, and send the packet with an unfinished one.
//!
//! # Limits
//!
//! * A payload up to [`XskConfig::max_payload`], 1920 bytes with frames of 2048 and 3968 with frames of 4096,
//!   is built in the frame that it leaves in. A larger one, as far as the MTU goes, is built aside and copied
//!   into several frames: 17 in copy mode, as many as the device says (`xdp-zc-max-segs`) in zero-copy mode. What
//!   those do not hold takes the kernel socket.
//! * Received packets may be as large as the interface's MTU at open. Beyond one frame they need Linux 6.6,
//!   a program with `xdp.frags`, and cost a copy that puts them together.
//! * UDP checksums of received packets are not verified unless [`XskIoConfig::verify_checksum`] says so.
//! * An interface whose driver strips VLAN tags on receipt hides them from XDP: turn `rx-vlan-offload` off, or have the
//!   program describe packets ([`XskConfig::description`]).
//!
//! # Fallback
//!
//! | counter | a burst took the kernel socket because |
//! |---|---|
//! | `tx_fallback_neighbour` | the next hop's hardware address is unknown, or the kernel has not confirmed it lately and is reminded, once a second |
//! | `tx_fallback_route` | the route leaves by an interface without a binding, or by none that takes frames |
//! | `tx_fallback_socket` | the binding is down, or the segment larger than a packet may be in its mode |

mod abi;
mod binding;
mod config;
mod engine;
mod error;
mod interface;
mod io;
mod metadata;
mod path_cache;
mod received;
mod remote;
mod sender;
mod shared;
mod shared_readers;
mod trial;
mod xskmap;

pub use crate::readers::{
    ReaderAccess, ReaderAccessError, ReaderConnectionStats, ReaderError, ReaderReport, ReaderStats, Readers,
    UmemPacket, UmemReader,
};
pub use crate::sys::mapping::Backing;
pub use binding::{BindingReport, BindingState, BindingStatus, LendReport, NotLentStats, XskBinding};
pub use config::{BindMode, FailurePolicy, ObtainedMode, TransmitVia, UmemConfig, XskConfig, XskIoConfig};
pub use error::{OpenError, SendError};
pub use io::XskIo;
pub use path_cache::Routes;
pub use received::{ForeignSocket, NotSent, Received, SocketId};
pub use remote::{BoundXsk, RemoteBinder, bind_for, is_released, umem_len};
pub use sender::BindingSender;
pub use shared::{SharedUmem, interface_index};
pub use trial::{CALIBRATION_FRAMES, Calibration, ProbeOutcome, TrialError, TrialProblem};
