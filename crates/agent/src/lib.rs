//! Privilege separation. An agent with privilege prepares what a data path needs (XDP programs on interfaces,
//! bound AF_XDP and UDP sockets, rtnetlink sockets) and passes it over a unix socket to clients without any,
//! by a policy that says who may have what.
//!
//! ```text
//!   client, no capability                          agent, root
//!   ────────────────────────────────────           ──────────────────────────────────────────────
//!   Client::connect          ── SO_PEERCRED ─────▶ policy: first rule with that user or group
//!   route mirror             ◀─ rtnetlink socket ─ opened in the agent's network namespace
//!   kernel sockets           ◀─ bound UDP sockets  one a worker, addresses by the rule
//!   attach                   ◀─ bpf_link ───────── program on; pairs and XSKMAP stay with the agent
//!   Port::open_from ── memfd for the UMEM ───────▶ registered, bound to queue, into the XSKMAP
//!                            ◀─ AF_XDP socket ────
//!   add_pair                 ────────────────────▶ address and port by the rule, own addresses only
//!   connection closes        ────────────────────▶ program off
//! ```
//!
//! What a client holds could not be used for more than its rule: the maps never leave the agent, a bound
//! socket cannot be bound again, and rtnetlink asks for the capability of whoever sends
//! (`netlink_net_capable` in `net/netlink/af_netlink.c`).
//!
//! * [`message`] is what is said, [`channel`] how: one message a datagram, checked before it is parsed.
//! * [`policy`] says who may have what; [`server`] does it (feature `server`).
//! * [`client`] asks.
//! * [`device_plugin`] asks the AF_XDP device plugin of Kubernetes instead, which has a protocol of its own.

#[cfg(feature = "server")]
mod account;
pub mod channel;
pub mod client;
mod connection;
pub mod device_plugin;
pub mod message;
#[cfg(feature = "server")]
mod places;
#[cfg(feature = "server")]
pub mod policy;
#[cfg(feature = "server")]
mod rate;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
mod session;
#[cfg(feature = "server")]
mod table;

pub use client::{AgentError, Client};
