//! A layer 4 load balancer in XDP: services, their nodes, and how it handles nodes that fail, drain and return.
//!
//! The program (`bpf/balance.bpf.c`) sends each packet of a service to a node over layer 2, IP in IP or GUE, and nodes
//! answer clients directly. This module decides the contents of the program's maps:
//!
//! - [`Config`] reads the file.
//! - [`maglev`] makes a service's ring, which places new flows.
//! - [`slots`] gives services and nodes numbers, which they keep for as long as they are in the file.
//! - [`health`] checks whether nodes serve.
//! - [`Balancer`] connects these with the program: it applies a configuration, follows routes and neighbours, and
//!   reports the state.
//!
//! # What moves, and what does not
//!
//! Once the program has seen that a flow is established, the flow stays with its node, even if nodes are added,
//! drained, return or get another weight. It moves when its node is down or was removed from the file; drain a node
//! before removing it. Flows that are not established yet (a connection's first packets, a flood) are in a separate
//! table and cannot evict established ones. Flows in neither table, for example after a restart of the balancer, are
//! placed by the ring, which is the same on every balancer with the same nodes.
//!
//! The order of changes matters, because packets arrive meanwhile: a ring is replaced before a node that it names is
//! taken down, and a node is written before a ring names it.
//!
//! # QUIC
//!
//! With `route = "quic-lb"` the node is read from the connection ID (draft-ietf-quic-load-balancers, unencrypted or
//! encrypted), so a client whose address changes still reaches its connection. The server ID is that of the file, or
//! the last four bytes of the node's address. Packets with IDs of no node are placed by flow. Each rotation codepoint
//! has its own configuration, so keys can be changed while connections continue: add the next one here, then let the
//! nodes use it, and remove the old one when its connections have ended. With `shared_keys` the configurations are those of
//! a document that nodes and balancers share ([`expressway_keys`]), and follow it.

mod config;
mod control;
pub mod health;
pub mod maglev;
mod paths;
pub mod slots;
mod status;

pub use config::{
    Affinity, Check, CheckKind, Config, Method, Node, Protocol, QuicConfig, Route, Scheduler, Service,
};
pub use control::{Balancer, Error};
pub use status::{NodeStatus, ServiceStatus, Status};
