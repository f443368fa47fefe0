//! Reports. They are made from raw files alone, and show nothing that is not in there.

mod analysis;
mod claims;
#[cfg(test)]
pub(crate) mod fixture;
mod html;
mod markdown;
mod pairs;
mod picture;
mod plot;
mod standing;
mod words;

pub(crate) use analysis::{Point, points, ratios};
pub use html::html;
pub use markdown::{MADE_BY, PICTURE, markdown, tables};
pub(crate) use pairs::{Pairs, pairs};
pub use picture::picture;
pub(crate) use plot::escape;
pub(crate) use words::point as point_in_words;
