//! Privilege separation. A privileged agent prepares what a data path needs: XDP programs on interfaces, bound
//! AF_XDP and UDP sockets, rtnetlink sockets. It passes them over a unix socket to unprivileged clients,
//! according to a policy that says who may have what.
//!
//! ```text
//!   client, no capability                          agent, root
//!   ────────────────────────────────────           ──────────────────────────────────────────────
//!   Client::connect          ── SO_PEERCRED ─────▶ policy: first rule with that user or group
//!   route mirror             ◀─ rtnetlink socket ─ opened in the agent's network namespace
//!   kernel sockets           ◀─ bound UDP sockets  one a worker, addresses by the rule
//!   attach                   ◀─ bpf_link ───────── program on; pairs and XSKMAP stay with the agent
//!   XskBinding::open_from ── memfd for the UMEM ─▶ registered, bound to queue, into the XSKMAP
//!                            ◀─ AF_XDP socket ────
//!   add_pair                 ────────────────────▶ address and port by the rule, own addresses only
//!   connection closes        ────────────────────▶ program off
//! ```
//!
//! A client cannot use what it holds for more than its rule allows. The maps never leave the agent, a bound
//! socket cannot be bound again, and rtnetlink checks the capability of the sender
//! (`netlink_net_capable` in `net/netlink/af_netlink.c`).
//!
//! * [`message`] has the messages, [`channel`] their transport: one message per datagram, checked before it is parsed.
//! * [`policy`] says who may have what; [`server`] carries it out (feature `server`).
//! * [`client`] sends requests.
//! * [`device_plugin`] uses the AF_XDP device plugin of Kubernetes instead, which has a protocol of its own.
//!
//! # What may be handed over
//!
//! * bind(2) of an AF_XDP socket checks nothing, so an unbound one would let its holder choose any queue of
//!   any interface: the agent binds first.
//! * Pinned memory is charged to whoever registers it, and users may pin 8 MiB. So the agent registers the
//!   memory, which is a memfd of the client, whose pages are charged to the client. It counts for as long as
//!   it is pinned, which clients can prolong beyond everything that the agent takes back. The kernel shows
//!   when that ends: it seals a memfd against writing only if nothing has pinned its pages. A memfd sealed
//!   against new writers can always be checked, because no holes can be made in it.
//! * A map in a client's hands would let it take other ports. So pairs and XSKMAP stay with the agent, which
//!   adds a pair only if both the rule and the interface have the address.
//! * A bound UDP socket cannot be bound again, and rtnetlink checks the sender's capability, so both can be
//!   handed over. They belong to the agent's network namespace wherever their holder is. So a server in an
//!   empty namespace serves the agent's interfaces and mirrors the agent's routes.
//!
//! # Leases
//!
//! When a connection closes, the agent takes program, pairs and claims back. Clients hold the bpf_link too,
//! and program, maps and sockets live as long as clients hold them, so a dead agent takes nothing down. Its
//! clients keep serving and look for another agent at the same path.
//!
//! A new agent could take over the old program only by trusting a client about what a map is. So it attaches
//! its own, by the procedure that also follows interfaces as they come and go, and kernel sockets serve in
//! between. Objects obtained over the old connection never use the new one, because the end of the old program
//! would then detach the new one.
//!
//! A client can keep an AF_XDP socket beyond its lease. The socket receives nothing any more, but can send any
//! frame on that queue, unless the agent created it without a TX ring. An interface has one client at a time,
//! because the program gives a queue to one socket, whatever the port.
//!
//! Each client has a thread of the agent with its own descriptor table (`unshare(CLONE_FILES)`). A client can
//! send any descriptors, including ones never read: they would exhaust the process's numbers, and closing the
//! last reference to one can take forever (SO_LINGER). In a separate table they affect only that client, and
//! the kernel closes them when the thread ends, without anyone waiting.

#[cfg(feature = "server")]
mod account;
pub mod channel;
pub mod client;
mod connection;
pub mod device_plugin;
pub mod message;
#[cfg(feature = "server")]
pub mod policy;
#[cfg(feature = "server")]
mod rate;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
mod session;
#[cfg(feature = "server")]
mod slots;
#[cfg(feature = "server")]
mod table;

pub use client::{AgentError, Client};
