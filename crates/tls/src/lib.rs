//! TLS of an edge with many names, shared by QUIC and TCP.
//!
//! * [`Identity`]: a certificate chain with its key, read and checked; its OCSP response.
//! * [`Certificates`]: identities by the names in them; a lookup costs one or two hashes, however many there are.
//! * [`TicketKeys`]: keys of session tickets, rotated, or read from a file that several nodes share.
//! * [`ClientAuth`]: certificates of clients. [`EchKeys`]: Encrypted Client Hello.
//! * [`Tls`]: all of that together; makes the contexts of both transports.
//!
//! A reload makes a new [`Tls`] and only what is [`Lasting`] goes over to it: ticket keys, and what ACME has obtained.
//! Connections that are open keep the context that they were made with.

mod certificates;
mod client_auth;
mod credential;
mod ech;
mod error;
mod identity;
mod issued;
mod server;
#[cfg(test)]
mod testing;
mod ticket;

pub use certificates::{Certificates, MAX_CERTIFICATES};
pub use client_auth::{ClientAuth, ClientAuthMode, peer_subject};
pub use ech::{EchKeys, MAX_ECH_KEYS, generate_ech};
pub use error::TlsError;
pub use identity::{Identity, Validity};
pub use issued::{ACME_TLS_ALPN, Issued};
pub use server::{Lasting, Tls, TlsOptions, UnknownName};
pub use ticket::{TicketKey, TicketKeys};
