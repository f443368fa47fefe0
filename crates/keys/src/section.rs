//! `[keys]` of a configuration.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::{Document, Store, check};

/// Where the document is that a process shares with others.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// File with the document of `expressway keys`.
    pub file: Spanned<PathBuf>,
    /// PEM file with the public keys of those who may sign it.
    pub signer: Spanned<PathBuf>,
}

impl Section {
    /// What is wrong where something goes by shared keys and there is no such section.
    pub const MISSING: &str = "there is no [keys]: give its file and signer";

    /// Paths are relative to `folder`.
    pub fn resolve(&mut self, folder: &Path) {
        for path in [&mut self.file, &mut self.signer] {
            *path.get_mut() = folder.join(path.get_ref());
        }
    }

    /// The document as it is now.
    ///
    /// # Errors
    /// As [`check`].
    pub fn check(&self) -> Result<Document, String> {
        check(self.file.get_ref(), self.signer.get_ref())
    }

    /// Follows the file.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(&self) -> Result<Store, String> {
        Store::open(self.file.get_ref(), self.signer.get_ref(), Instant::now())
    }
}
