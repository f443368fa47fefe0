//! Settings of commands: strict TOML whose errors name file, line and key and suggest the nearest known key; sizes
//! and durations with units; files with keys. The only section known here is `[admin]`, which all commands share.

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
