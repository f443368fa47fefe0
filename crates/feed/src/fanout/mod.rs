//! One UDP feed to many TCP subscribers.
//!
//! ```text
//!   PacketIo ─▶ FeedInput ─▶ Ring (framed once) ─┬▶ shard 0 ─▶ its subscribers, one cursor each
//!   (on shard 0's thread)                     └▶ shard n ─▶ …
//!   listeners ─▶ Acceptor (a thread: accept, allow list, limit, TLS and WebSocket handshakes) ─▶ shards
//! ```
//!
//! Received datagrams are framed once into a ring. Each subscriber is a cursor in it, and gets everything new
//! in one send. The saving comes from few large segments instead of many small ones: a send and the ACKs that
//! it causes cost the same whatever they carry.
//!
//! The first shard receives and sends on one thread, so there is no hand-over on the way to the first
//! subscribers. Nothing there waits for a subscriber: data that a socket does not accept stays in the ring. A
//! subscriber that falls behind [`Limits`] finishes its current frame, and then skips to the newest with a gap
//! marker, or is disconnected. Handshakes run on their own thread.
//!
//! Not here: metrics pages and signals (the binary), and how datagrams are received (`expressway-netio`).
//!
//! # Sending
//!
//! Waking another thread costs more than a send, so the first shard receives and sends on one thread. It
//! checks the feed every few sends. New datagrams go to all subscribers from the current position, in a circle:
//! a datagram reaches all of them after one round, whatever the load. In a queue of single sends it would wait
//! for all before it. A check that finds nothing costs a tenth of a send. More threads only pay off if the ACKs'
//! interrupts have cores of their own, so the default is one.
//!
//! If datagrams arrive one by one, the overhead around each send matters: the processor has slept, and each
//! cache line is fetched again. A turn is then three system calls and one reading of the clock. A
//! subscriber's position is searched from the newest frame backwards. Its counters belong to its shard, so
//! none needs a locked instruction.
//!
//! What the next send needs is prefetched during the current one, because with 1,000 subscribers the
//! kernel's part of a round evicts it from the caches. Over ten alternating runs each, the process took 3.8
//! µs per delivery instead of 4.5 (medians; even datagrams, 40 per second).
//!
//! A shard of up to 512 subscribers asks the scheduler for short slices (Linux 6.12). Otherwise, if the
//! kernel receives in a thread on the same core, that thread takes the core between sends, for the ACKs of
//! earlier ones, two or three times per datagram. With 64 subscribers this is a quarter of the receive
//! thread's work. With 1,000, short slices cost more than they save.
//!
//! The netio worker is not used: a shard sleeps on its subscribers' sockets as much as on the feed, and its
//! work there is not datagrams. The kernel joins multicast groups, and the redirect program's pairs are
//! addresses of the machine.
//!
//! # The ring
//!
//! The ring is a list of append-only blocks. A shard holds the block that it is sending from by `Arc`, so no
//! reader delays the producer, and no frame is overwritten while it is sent.
//!
//! The ring's memory is allocated at start, by a thread that then ends. Otherwise the kernel would clear new
//! pages later, while the datagram that needs them waits: a profile showed 7 ms of that in 3 s of a feed of
//! 1,000 datagrams a second. Once the ring has been full, its blocks are reused.
//!
//! A cursor is a number and holds nothing. A subscriber beyond its limit (bytes, age) copies the rest of its
//! current frame, at most one datagram, and releases the ring. After sending that, it gets a gap marker and
//! the newest datagram. A connection that must end within a frame is reset instead of closed, so that a part
//! is never taken for the whole.
//!
//! WebSocket subscribers have their own ring. It is framed once too, because servers do not mask what they
//! send. Plain TCP subscribers are never read, so what they send costs nothing. A half-closed one continues
//! to receive.
//!
//! # Handshakes
//!
//! Handshakes have their own thread, because one costs as much as hundreds of sends. Its niceness gives way
//! to a sending thread on the same core. A wake-up only costs what became ready: pending handshakes are
//! found by the token of an event, by deadline, and by age, overall or per address.
//!
//! Beyond the limit, the oldest handshake is ended if it has had enough time for any honest peer. Before
//! that, the new one is refused: otherwise a crowd that reconnects immediately would displace itself for
//! ever. TLS writes its records into a buffer of one record, so none is offered to the library twice. It
//! reads from another buffer, so a peer that sends one byte per record does not cause a system call for
//! each.
//!
//! What a subscriber does is charged to a limited share of a turn. Events of a subscriber only make that one
//! active; only new data in the ring makes all of them active. Input is read some KiB at a time. Its frames
//! and records are charged in addition to its bytes, and new subscribers are admitted a few at a time. So a
//! turn stays as short as its sends.

mod acceptor;
mod block;
mod framing;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handshake;
mod kernel;
mod options;
mod pending;
mod presence;
mod request;
mod ring;
mod roster;
mod service;
mod shard;
mod source;
mod stats;
mod subscriber;
mod sys;
mod tls;
mod transport;
mod waits;
mod websocket;
mod wheel;

pub use expressway_netio::udp::group::Membership;
pub use framing::{Framing, MAX_HEADER};
pub use kernel::KernelFeed;
pub use options::{Cidr, Limits, Listen, Options, Protocol, SlowClient, Start, StartPolicy};
pub use ring::BLOCK_BYTES;
pub use service::{Fanout, FanoutError};
pub use stats::{Reason, Statistics, SubscriberStatistics};
pub use tls::{TlsError, TlsIdentity};
