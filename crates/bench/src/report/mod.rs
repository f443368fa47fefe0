//! Reports, made from raw files alone: what is not in there is not drawn.

mod analysis;
#[cfg(test)]
mod fixture;
mod markdown;
mod words;

pub use markdown::{markdown, tables};
