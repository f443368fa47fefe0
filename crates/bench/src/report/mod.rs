//! Reports, made from raw files alone: what is not in there is not drawn.

mod analysis;
#[cfg(test)]
mod fixture;
mod html;
mod markdown;
mod plot;
mod words;

pub use html::html;
pub use markdown::{markdown, tables};
