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
//!
//! # Decisions
//!
//! BoringSSL's callback for the Client Hello adds the identities of the name to the connection as credentials, and BoringSSL takes
//! the first that suits the client. No context is exchanged for another in the middle of a handshake, so what the engine has set
//! on its own (transport parameters, 0-RTT, ALPN) holds for all names. Tickets name their key, and are bound to what clients were
//! asked for, so that no session gets past a certificate that is required now. 0-RTT is QUIC's only; requests that are not safe to
//! replay are held until the handshake is complete (RFC 8470).

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
