//! What commands are set up by: strict TOML whose errors name file, line and key, and suggest the nearest known key; sizes
//! and spans of time with units; files with keys. Of keys of files it knows only those of `[admin]`, which all commands have alike.

#![forbid(unsafe_code)]

pub mod admin;
mod error;
mod key;
mod keys;
mod named;
pub mod secret;
mod value;

pub use error::{ConfigError, SourceFile};
pub use key::Key;
pub use keys::{KEY_LENGTH, KEYS, read_keys};
pub use named::by_name;
#[doc(hidden)]
pub use serde;
pub use value::{Moment, Size, Span};
