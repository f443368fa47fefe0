//! The router: packets between interfaces by the kernel's own tables, and UDP feeds copied to receivers.
//!
//! ```text
//!  frame ─▶ expressway_fwd ── not for us, no route, no neighbour, TTL, MTU, options, multicast … ─▶ kernel, unchanged
//!             │ bpf_fib_lookup           │ destination of a feed
//!             ▼                          ▼
//!           devmap ─▶ device           devmap, one entry a receiver ─▶ forward_copy addresses each copy ─▶ device
//! ```
//!
//! The kernel stays the router: routes, rules, neighbours, MTUs and ICMP are its own, and what the program cannot do
//! is done by it with the same packet. A change of a route needs nothing here. [`Router`] keeps what the lookup does
//! not know: which interfaces take part ([`Config::interfaces`]), which VLAN is which interface, whose addresses are
//! ours, which devices can send redirected frames, and the way to each receiver. It looks once a second and with every
//! change of links, addresses or neighbours.
//!
//! **Not done for what is forwarded**: netfilter, conntrack and NAT, tc, IPsec policies, ICMP redirects, and the counters
//! of `ip -s link` beyond the driver's. Where these decide about packets, do not forward here.
//!
//! **rp_filter** is obeyed: where it is on, sources are looked up as well, and a packet that fails passes to the
//! kernel, which drops and counts it. The lookup back goes by the rules of the incoming interface.
//!
//! **Neighbours** are confirmed by the kernel only for packets of its own. So those of configured interfaces that it
//! calls stale are probed, 64 a second at most: one that has moved is found, and one that is used is not forgotten.
//!
//! **Several next hops**: the lookup hashes what the kernel hashes, for `fib_multipath_hash_policy` 0 and 1.
//!
//! **MTU**: that of the device, and of IPv4 routes whose MTU is locked or with `ip_forward_use_pmtu`: `bpf_fib_lookup`
//! (`ip_mtu_from_fib_result` in net/ipv4/route.c) does not know others.
//!
//! **Copies** have the datagram's source port and payload, the source address of the route to their receiver, and 64
//! hops, or for a unicast feed one less than the datagram had, so that feeds sent in a circle end. The datagram itself goes no
//! further. It counts as of the feed only where it comes by an interface of the feed, to us or, for a group, in a frame to a
//! group, from a source that the kernel would take. Copies are made in native mode only: in the stack they share their
//! bytes. One that is larger than the way to some receiver passes, as its device would leave it out. Fragments, and datagrams with IPv4 options or IPv6 extension headers, are not copied and pass.

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
