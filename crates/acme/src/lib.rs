//! Certificates by ACME (RFC 8555). They are obtained when they are needed, stored, and renewed at two thirds of
//! their life. [`expressway_tls::Issued`] gets them, so every new connection has them at once.
//!
//! One thread obtains one name after the other, with a certificate for each. A name with wrong DNS delays the others
//! by at most one attempt. Authorities check a name by TLS-ALPN-01 (RFC 8737) or HTTP-01. The TLS of the TCP
//! listener answers the former itself; [`Answers`] answers the latter in front of another handler.
//!
//! [`development`] is a local authority for development, which needs no one else.
//!
//! This is the only part of a server that opens connections to strangers and replaces files. The process has the
//! rights for both only if ACME is configured.

mod answers;
mod client;
pub mod development;
mod manager;
mod order;
mod schedule;
mod store;

pub use answers::{Answers, Tokens};
pub use manager::{Acme, Plan};
pub use order::Challenge;
pub use store::{Store, StoreError};

/// Let's Encrypt.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// Names of one server at most.
pub const MAX_NAMES: usize = 1000;
