//! HTTP/1.1 and HTTP/2 over TCP, with TLS 1.3 and 1.2, for the handlers of `expressway-web`.
//!
//! hyper speaks HTTP, BoringSSL TLS; here is what a stranger may have of either, and how a request comes to a
//! [`Handler`](expressway_web::Handler) and its [`Exchange`](expressway_web::Exchange) back.
//!
//! ```text
//!   Server ─▶ worker: a thread, a single-threaded runtime, a listening socket of each address
//!               └─▶ connection: PROXY header ─▶ TLS ─▶ hyper ─▶ service ─▶ Handler
//!                     │ watch: who sends too slowly, takes nothing, or wastes time is ended
//!                     └ account: what the connection keeps in memory
//! ```
//!
//! Workers are threads of their own: nothing here runs on a thread that handles packets. What a worker does for one
//! connection is cut by tokio's budget, by chunks of bodies and by bounded buffers, so that none holds up the others.
#![forbid(unsafe_code)]

mod accept;
mod alarm;
mod body;
mod connection;
mod listener;
mod places;
mod proxy;
mod redirect;
mod request;
mod server;
mod service;
mod setup;
mod stats;
mod transaction;
mod upload;
mod watch;
mod wire;
mod worker;

pub use listener::{Address, Listen, Listener, Role};
pub use redirect::Redirect;
pub use server::Server;
pub use setup::{Limits, Setup};
pub use stats::{Metric, Stats};

/// What is offered in TLS (ALPN, RFC 7301), the preferred first.
pub const PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];
