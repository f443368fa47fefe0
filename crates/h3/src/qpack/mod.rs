//! QPACK (RFC 9204) without a dynamic table: no state to keep for a peer, no stream that waits for another.
//!
//! * [`Fields`] decodes a field section, lending names and values from where they lie.
//! * [`Encoder`] appends the fields of a response head.

mod decoder;
mod encoder;
mod huffman;
mod integer;
mod static_table;

pub use decoder::{DecodeError, Fields};
pub use encoder::Encoder;
