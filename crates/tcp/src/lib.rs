//! HTTP/1.1 and HTTP/2 over TCP, with TLS 1.3 and 1.2, for the handlers of `expressway-web`.
//!
//! hyper implements HTTP and BoringSSL implements TLS. This crate limits what strangers can use of either, passes
//! requests to a [`Handler`](expressway_web::Handler), and returns its [`Exchange`](expressway_web::Exchange).
//!
//! ```text
//!   Server ─▶ worker: a thread, a single-threaded runtime, a listening socket of each address
//!               └─▶ connection: PROXY header ─▶ TLS ─▶ hyper ─▶ service ─▶ Handler
//!                     │ watch: who sends too slowly, takes nothing, or wastes time is ended
//!                     └ account: what the connection keeps in memory
//! ```
//!
//! Workers are separate threads: nothing here runs on a thread that handles packets. A task runs for 0.2 ms at a time, up
//! to the end of a piece of work (a TLS handshake, the start of a request, a chunk), so that no connection delays the
//! others. How long turns take is counted.
//!
//! # Decisions
//!
//! Each worker has a listening socket for every address (`SO_REUSEPORT`), bound while the process may still bind to
//! ports below 1024. A request's body goes into a pipe. A response's chunks come from the exchange as reference-counted
//! slices, and are charged to the connection's account until they are sent. What hyper has read and nobody has taken is charged too; with
//! more of it than the memory that is left permits, a connection is ended.
//!
//! A watch is one timer, armed for the next deadline of handshake, head, idleness, body or response. HTTP/2 responses
//! run in tasks of their own, so that one which the client does not read can be ended alone. Everything that a client
//! sends besides requests and bodies is counted against an allowance, which grows with time and with the data sent to
//! the client. When there are too many connections, a new one replaces the one that has been idle longest. A reload
//! swaps handler, certificate and limits; requests in progress keep the old ones.
#![forbid(unsafe_code)]

mod accept;
mod alarm;
mod body;
mod connection;
mod connections;
mod follow;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod listener;
mod proxy;
mod redirect;
mod request;
mod server;
mod service;
mod setup;
mod stats;
mod transaction;
mod turn;
mod unread;
mod upload;
mod watch;
mod wire;
mod worker;
mod writes;

pub use listener::{Address, Listen, Listener, Role};
pub use redirect::Redirect;
pub use server::Server;
pub use setup::{Limits, Setup};
pub use stats::Stats;

/// What is offered in TLS (ALPN, RFC 7301), the preferred first.
pub const PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];
