//! The HTTP/3 gateway: QUIC endpoint, HTTP/3, WebTransport, metrics and the admin listener.
//!
//! Request handling itself (files, ranges, conditions) is in `expressway-web`, which knows nothing of QUIC. Packets are
//! received and sent by `expressway-netio`, which knows nothing of HTTP. This crate connects the two.

pub mod admin;
mod h3;
pub mod otlp;
pub mod quic;
pub mod webtransport;

/// What the admin listener's page is made of.
pub use expressway_metrics as metrics;
pub use h3::Http3;
