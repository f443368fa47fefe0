//! The router: forwards packets between interfaces using the kernel's own tables, and copies UDP feeds to receivers.
//!
//! ```text
//!  frame ─▶ expressway_fwd ── not for us, no route, no neighbour, TTL, MTU, options, multicast … ─▶ kernel, unchanged
//!             │ bpf_fib_lookup           │ destination of a feed
//!             ▼                          ▼
//!           devmap ─▶ device           devmap, one entry a receiver ─▶ forward_copy addresses each copy ─▶ device
//! ```
//!
//! The kernel remains the router: routes, rules, neighbours, MTUs and ICMP are its own, and it handles each packet that
//! the program cannot. A change of a route needs no action here. [`Router`] maintains what the lookup does not know:
//! which interfaces take part ([`Config::interfaces`]), which VLAN is which interface, which addresses are ours, which
//! devices can send redirected frames, and the path to each receiver. It checks once a second, and on every change of
//! links, addresses or neighbours.
//!
//! **Forwarded packets bypass** netfilter, conntrack and NAT, tc, IPsec policies, ICMP redirects, and the counters of
//! `ip -s link` except the driver's. Do not use this router where these decide about packets.
//!
//! **rp_filter** is respected: where it is on, sources are looked up too, and a packet that fails passes to the kernel,
//! which drops and counts it. This lookup uses the rules of the incoming interface.
//!
//! **Neighbours** are only confirmed by packets that the kernel sends itself. Those of configured interfaces that it
//! considers stale are therefore probed, at most 64 a second: a neighbour that has moved is found, and one in use is
//! not forgotten.
//!
//! **Several next hops**: the lookup hashes what the kernel hashes, for `fib_multipath_hash_policy` 0 and 1.
//!
//! **MTU**: that of the device, and of IPv4 routes whose MTU is locked or with `ip_forward_use_pmtu`: `bpf_fib_lookup`
//! (`ip_mtu_from_fib_result` in net/ipv4/route.c) does not know others.
//!
//! **Copies** have the datagram's source port and payload, and the source address of the route to their receiver. Their
//! hop limit is 64, or for a unicast feed one less than the datagram's, so that feeds sent in a circle end. The
//! datagram itself goes no further. A datagram only belongs to a feed if it arrives on an interface of the feed, from a
//! source that the kernel would accept, in a frame to us or, for a group, to a group. Copies are made in native mode
//! only, because in generic mode they would share their bytes. A datagram that exceeds the MTU on the path to some
//! receiver passes instead, because that device would drop its copy. Fragments, and datagrams with IPv4 options or IPv6
//! extension headers, are not copied but pass.

mod config;
mod interface;
mod receivers;
mod router;
mod slots;
mod statistics;

pub use config::{Config, MOST_RECEIVERS, Replicate, To};
pub use interface::Unfit;
pub use router::{Error, Router};
pub use statistics::{FeedReport, InterfaceReport, ReceiverReport, Statistics};
