//! Origin servers behind the gateway: a [`Handler`](expressway_web::Handler) that passes requests on.
//!
//! An [`Origin`] is a name for one or several servers that hold the same. A request is given to one of them over a
//! pooled connection (HTTP/1.1 or HTTP/2, TCP or a Unix socket, TLS or not), and to another one if that is safe and the
//! first did not answer. Everything runs as tasks of a small runtime of its own ([`Control`]); the thread that polls an
//! exchange only takes what arrived. Bodies go through bounded pipes both ways, so the slower side holds up the faster.
//!
//! * [`Origins`] holds the origins of a configuration; what a reload leaves as it was keeps its connections.
//! * [`OriginOptions`] says all that can be configured, [`Endpoint`] where a server is.
//! * [`OriginReport`] is what the metrics page shows.
//!
//! # Decisions
//!
//! hyper's client frames HTTP/1.1 and HTTP/2, and nothing of a message's framing is copied: lengths are those of bodies as they
//! pass. hyper-util's pool neither bounds a server's connections nor tells a dead pooled connection from a dead server, so the pool
//! is our own. The body of a request belongs to one attempt at a time, and to no other once a byte is taken. An exchange that is
//! dropped early aborts its task. Servers are chosen among those in service: by checks, and by how their requests go; with too few
//! in service by neither, because the fault may be ours. The hash is a rendezvous hash: with at most 64 servers it is cheaper than
//! keeping a table, and exact in what it moves.
//!
//! `Expect: 100-continue` ends here: the transport tells the client to go on when its body is read, which is when a
//! connection takes it (RFC 9110, section 10.1.1, lets a proxy send 100 of its own). Interim responses of the origin are
//! dropped.
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
