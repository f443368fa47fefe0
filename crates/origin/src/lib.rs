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
//! Not supported: WebSocket and other upgrades (answered 501), extended CONNECT (refused by the transports), and
//! waiting for `100 (Continue)` of the origin.
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
pub use origin::Origin;
pub use origins::{OriginError, Origins};
pub use stats::{LATENCY_BOUNDS, OriginReport, ServerReport};
