//! A layer 4 load balancer in XDP: services, their nodes, and what is done about nodes that fail, drain and return.
//!
//! The program (`bpf/balance.bpf.c`) sends each packet of a service to a node by layer 2, IP in IP or GUE, and nodes answer
//! clients directly. This module decides what the program's maps say:
//!
//! - [`Config`] reads the file.
//! - [`maglev`] makes a service's ring: which node new flows go to.
//! - [`slots`] gives services and nodes their numbers, which stay for as long as they are in the file.
//! - [`health`] asks nodes whether they serve.
//! - [`Balancer`] joins these with the program: it applies a configuration, follows routes and neighbours, and tells what is.
//!
//! # What moves, and what does not
//!
//! A flow that the program has seen to be established stays with its node, whatever happens to the ring: nodes that are
//! added, drained or get another weight, and nodes that come back. It moves when its node is dead or removed from the
//! file. So a node is taken out by draining it first. What is not established yet (a connection's first packets, a flood)
//! is in a table of its own and cannot push established flows out of theirs. Flows that are in neither table, say after a
//! restart of the balancer, go by the ring, which is the same as long as the nodes are, on every balancer of the
//! service.
//!
//! The order of changes matters, as packets arrive meanwhile: a ring is replaced before a node that it named goes down,
//! and a node is written before a ring names it.
//!
//! # QUIC
//!
//! With `route = "quic-lb"` the node is read from the connection ID (draft-ietf-quic-load-balancers, in clear or
//! encrypted), so a client whose address changes lands where its connection is. The server ID is that of the file, or the
//! last four bytes of the node's address. IDs that no node has, or none issued, go by flow. Each rotation codepoint has its
//! configuration, so keys are changed while connections go on: the next one is made known here first, then the nodes
//! issue by it, and the old one leaves with its connections.

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
