//! Origin servers behind the gateway: a [`Handler`](expressway_web::Handler) that passes requests on.
//!
//! An [`Origin`] is a name for one or more servers with the same content. A request goes to one of them over a pooled
//! connection (HTTP/1.1 or HTTP/2, TCP or a Unix socket, with or without TLS), and to another one if the first did not
//! answer and that is safe. Everything runs as tasks of a small separate runtime ([`Control`]); the thread that polls
//! an exchange only takes what has arrived. Bodies go through bounded pipes in both directions, so the faster side
//! waits for the slower one.
//!
//! * [`Origins`] holds the origins of a configuration; those that a reload does not change keep their connections.
//! * [`OriginOptions`] is the configuration of an origin, [`Endpoint`] the location of a server.
//! * [`OriginReport`] is what the metrics page shows.
//!
//! # Decisions
//!
//! hyper's client frames HTTP/1.1 and HTTP/2. A message's framing is never copied: lengths are those of the bodies that
//! pass. The pool is our own, because hyper-util's neither limits a server's connections nor distinguishes a dead
//! pooled connection from a dead server. The body of a request belongs to one attempt at a time, and once a byte of it
//! was read, to no other. An exchange that is dropped early aborts its task. A server is in service according to its
//! checks and the outcome of its requests. If too few are, both are ignored, because the fault may be ours. The hash is
//! a rendezvous hash: with at most 64 servers it is cheaper than a table, and moves exactly the targets of a lost
//! server.
//!
//! `Expect: 100-continue` is not passed on: the transport tells the client to continue when its body is first read,
//! which is when a connection accepts it. (RFC 9110, section 10.1.1, allows a proxy to send its own 100.) Interim
//! responses of the origin are dropped.
//!
//! Not supported: WebSocket and other upgrades (answered 501), and extended CONNECT (refused by the transports).
#![forbid(unsafe_code)]

mod address;
mod balance;
mod connect;
mod control;
mod exchange;
mod failure;
mod fields;
mod forwarded;
mod health;
mod options;
mod origin;
mod origins;
mod pool;
mod proxy;
mod request;
mod response;
mod server;
mod stats;
mod tls;
mod upload;

pub use control::Control;
pub use options::{
    Balance, Ejection, Endpoint, Forwarded, HealthCheck, Limits, OriginOptions, Protocol, ServerOptions,
    Site, Timeouts, TlsOptions,
};
pub use origin::{HlsOrigin, Origin};
pub use origins::{OriginError, Origins};
pub use stats::{OriginReport, ServerReport};
