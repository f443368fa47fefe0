//! TLS of an edge with many names, shared by QUIC and TCP.
//!
//! * [`Identity`]: a certificate chain with its key, read and checked; its OCSP response.
//! * [`Certificates`]: identities by name; a lookup costs one or two hashes, however many there are.
//! * [`TicketKeys`]: keys of session tickets, rotated here, or read from a file that several nodes share.
//! * [`ClientAuth`]: client certificates. [`EchKeys`]: Encrypted Client Hello.
//! * [`Tls`]: all of these together; makes the contexts of both transports.
//!
//! A reload makes a new [`Tls`]. Only what is [`Lasting`] is carried over: ticket keys, and certificates from ACME. Open
//! connections keep the context that they were created with.
//!
//! # Decisions
//!
//! The Client Hello callback adds the identities of the requested name to the connection as credentials. BoringSSL uses the first
//! one that suits the client. The context is never exchanged during a handshake, so the engine's own settings (transport
//! parameters, 0-RTT, ALPN) hold for all names.
//!
//! A ticket names its key, and is bound to what clients were asked for: how strictly a certificate is required, and from which
//! authorities. So no resumed session evades a certificate that is required now. Only QUIC has 0-RTT; requests that are not safe to replay are held until the handshake is complete (RFC 8470).

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
