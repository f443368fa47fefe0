//! Certificates by ACME (RFC 8555): obtained when they are needed, stored, renewed at two thirds of their life, and given
//! to [`expressway_tls::Issued`], from where every connection has them at once.
//!
//! One thread does it all, one name after the other, with a certificate for each name: a name whose DNS is wrong delays
//! no other for longer than one attempt. Authorities check a name by TLS-ALPN-01 (RFC 8737), which the TLS of the TCP
//! listener answers by itself, or by HTTP-01, which [`Answers`] answers in front of another handler.
//!
//! [`development`] is the authority of one's own machine, which nobody needs to be asked for.
//!
//! It is the only part of a server that opens connections to strangers and replaces files; what that takes is allowed to the
//! process only if it is configured.

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
