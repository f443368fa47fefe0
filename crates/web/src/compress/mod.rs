//! Compression of responses.
//!
//! ```text
//!   a file of up to 1 MiB ──▶ one job for all who ask ──▶ a block, kept in the block cache ──▶ clients
//!   all else ──▶ 32 KiB at a time ──▶ a job on a reader thread ──▶ client; flushed when the source has no more for now
//! ```
//!
//! Reader threads compress, never workers. A compressor's memory is counted in [`Memory`](crate::memory::Memory);
//! together they may use an eighth of its budget, and a connection has at most four. Beyond these limits a response is
//! sent uncompressed, which is always correct. Compressing a small file does not depend on a client's reading and holds
//! no compressor afterwards. Clients that do not read therefore cannot prevent the compression of the files that most
//! sites consist of.
//!
//! Compression comes after the handler and the site's rules, so it sees the final head. It shares the reader threads
//! with the disk, which is acceptable because jobs are short and the queue serves connections in turn.

mod decision;
mod encoder;
mod stream;
mod whole;

use std::sync::Arc;

use http::HeaderValue;

use crate::Wake;
use crate::files::{Encoding, FileStore};
use crate::memory::Account;
pub(crate) use decision::{Compression, recode};
use expressway_metrics::counters;
pub(crate) use stream::Stream;
pub(crate) use whole::{MAX_WHOLE, Whole};

counters! {
    /// What was compressed.
    pub(crate) struct CompressCounters {
        /// Responses compressed here.
        pub(crate) responses_compressed: AtomicU64,
        /// Responses sent as they are because there was no memory for a compressor.
        pub(crate) compressions_refused: AtomicU64,
        /// Files compressed whole, to be kept in the block cache.
        pub(crate) files_compressed: AtomicU64,
    }
}

/// Media types that a site may list.
pub const MAX_TYPES: usize = 64;

/// What is compressed unless something else is said: text, and what is built like it.
const TYPES: [&str; 17] = [
    "text/html",
    "text/css",
    "text/plain",
    "text/javascript",
    "text/xml",
    "text/vtt",
    "text/markdown",
    "text/csv",
    "application/javascript",
    "application/json",
    "application/manifest+json",
    "application/xml",
    "application/vnd.apple.mpegurl",
    "application/dash+xml",
    "application/ttml+xml",
    "application/wasm",
    "image/svg+xml",
];

/// What of a site's responses is compressed, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompressOptions {
    /// Media types, such as `text/html`; `text/*` is all of them.
    pub types: Vec<String>,
    /// Shorter bodies stay as they are, in octets.
    pub min_length: u64,
    /// Codings in order of preference among equal `q` values, each with its level: brotli 0 to 6, zstd 1 to 6, gzip 1
    /// to 9.
    pub codings: Vec<(Encoding, u8)>,
}

impl Default for CompressOptions {
    /// Text and what is built like it, from 1 KiB; zstd at level 3, brotli at 4, gzip at 5.
    fn default() -> Self {
        Self {
            types: TYPES.map(str::to_owned).into(),
            min_length: 1024,
            codings: [Encoding::Zstd, Encoding::Brotli, Encoding::Gzip]
                .map(|coding| (coding, Self::default_level(coding)))
                .into(),
        }
    }
}

impl CompressOptions {
    /// The level that is used if none is given.
    pub fn default_level(encoding: Encoding) -> u8 {
        match encoding {
            Encoding::Brotli => 4,
            Encoding::Zstd => 3,
            Encoding::Gzip => 5,
        }
    }

    /// What is wrong with the options, naming the one to change.
    pub fn validate(&self) -> Result<(), String> {
        if self.types.is_empty() || self.types.len() > MAX_TYPES {
            return Err(format!("types has {} entries; give 1 to {MAX_TYPES}", self.types.len()));
        }
        for text in &self.types {
            let is_token = |part: &str| {
                !part.is_empty()
                    && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
            };
            let is_type = text
                .split_once('/')
                .is_some_and(|(main, sub)| is_token(main) && (sub == "*" || is_token(sub)));
            if !is_type {
                return Err(format!(
                    "types: {text:?} is not a media type; write text/html, or text/* for all"
                ));
            }
        }
        if self.codings.is_empty() {
            return Err("algorithms is empty; give br, zstd or gzip".to_owned());
        }
        for (position, (encoding, level)) in self.codings.iter().enumerate() {
            let levels = match encoding {
                Encoding::Brotli => 0..=6,
                Encoding::Zstd => 1..=6,
                Encoding::Gzip => 1..=9,
            };
            let name = encoding.as_str();
            if !levels.contains(level) {
                return Err(format!(
                    "level {level} of {name} is not between {} and {}",
                    levels.start(),
                    levels.end()
                ));
            }
            if self.codings[..position].iter().any(|(other, _)| other == encoding) {
                return Err(format!("algorithms has {name} twice"));
            }
        }
        Ok(())
    }

    /// Whether a body of that `content-type` is worth it.
    fn takes(&self, content_type: &HeaderValue) -> bool {
        let media_type =
            content_type.as_bytes().split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
        self.types.iter().any(|taken| match taken.strip_suffix('*') {
            Some(main) => {
                media_type.get(..main.len()).is_some_and(|start| start.eq_ignore_ascii_case(main.as_bytes()))
            }
            None => media_type.eq_ignore_ascii_case(taken.as_bytes()),
        })
    }
}

/// What is needed to have reader threads work for an exchange.
#[derive(Clone)]
pub(crate) struct Workshop {
    store: Arc<FileStore>,
    wake: Wake,
    account: Option<Account>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        let options = CompressOptions::default();
        assert_eq!(options.validate(), Ok(()));
        let types = |types: &[&str]| CompressOptions {
            types: types.iter().map(|text| (*text).to_owned()).collect(),
            ..CompressOptions::default()
        };
        let codings =
            |codings: &[_]| CompressOptions { codings: codings.into(), ..CompressOptions::default() };
        for wrong in [
            types(&[]),
            types(&["text"]),
            types(&["*/*"]),
            types(&["text/html;charset=utf-8"]),
            types(&["text/x"; MAX_TYPES + 1]),
            codings(&[]),
            codings(&[(Encoding::Brotli, 7)]),
            codings(&[(Encoding::Zstd, 0)]),
            codings(&[(Encoding::Gzip, 5), (Encoding::Gzip, 6)]),
        ] {
            assert!(wrong.validate().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn types_are_taken_whatever_their_case_and_parameters() {
        let options =
            CompressOptions { types: vec!["text/*".into(), "image/svg+xml".into()], ..Default::default() };
        for (value, expected) in [
            ("text/html", true),
            ("TEXT/HTML; charset=utf-8", true),
            ("image/svg+xml ;x", true),
            ("image/svg", false),
            ("image/svg+xmlx", false),
            ("text", false),
            ("", false),
            ("video/mp4", false),
        ] {
            assert_eq!(options.takes(&HeaderValue::from_static(value)), expected, "{value}");
        }
    }
}
