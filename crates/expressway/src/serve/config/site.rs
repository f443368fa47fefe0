//! `[[site]]`, and the keys of its paths.

use std::path::PathBuf;

use serde::Deserialize;
use toml::Spanned;

use super::sections::yes;

/// `[[site]]`: what some hosts serve.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Site {
    /// Host names without ports, lower case; `*.example` matches any name below `example`.
    pub(crate) hosts: Spanned<Vec<String>>,
    /// Folder that files come from.
    pub(crate) root: Option<Spanned<PathBuf>>,
    /// An origin server to proxy and cache.
    pub(crate) origin: Option<Spanned<String>>,
    /// Files that answer for a folder, in order.
    #[serde(default = "index_html")]
    pub(crate) index: Vec<String>,
    /// Follow symbolic links as long as they stay under the root.
    #[serde(default)]
    pub(crate) symlinks: bool,
    /// Serve names that begin with a dot; without it only those under `/.well-known/` are.
    #[serde(default)]
    pub(crate) hidden: bool,
    /// Answer with `.br` and `.gz` siblings where the client takes them.
    #[serde(default = "yes")]
    pub(crate) precompressed: bool,
}

fn index_html() -> Vec<String> {
    vec!["index.html".into()]
}
