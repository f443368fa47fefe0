//! Arguments of `expressway keys`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Servers with the same document accept each other's session tickets and Retry tokens and the same signed URLs, and issue
/// connection IDs that balancers can route (QUIC-LB): see `[keys]` of `expressway serve`. Distribute the document like any file;
/// running servers pick up a new one within a second or two.
#[derive(Args)]
pub(crate) struct KeysArguments {
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
}

/// What to do.
#[derive(Subcommand)]
pub(crate) enum KeysCommand {
    /// Make the first document and the key that signs it
    New(KeysNew),
    /// Replace a document with the next one: each set of keys moves on by one
    Rotate(KeysRotate),
    /// Show the version and key IDs of a document
    Show(KeysShow),
    /// Check a document the way a server does
    Verify(KeysVerify),
}

/// Writes shared.keys, signer.pem (private: keep it where you rotate keys) and signer.pub (for the servers). An existing signer.pem
/// in the directory is used; an existing shared.keys, or a signer.pub of another key, is an error.
#[derive(Args)]
pub(crate) struct KeysNew {
    /// Output directory; created if missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Print the names of the written files as one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `next` becomes `current`, `current` becomes `previous`, and `previous` is deleted. Servers may be one rotation apart: rotate
/// again only when all of them have the new version (metric `expressway_shared_keys_version`). The file is replaced by renaming and
/// keeps its mode and owner. Concurrent rotations in one directory wait for each other.
#[derive(Args)]
pub(crate) struct KeysRotate {
    /// The document
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Private key to sign with (PEM); the document must already be signed with it
    #[arg(long, value_name = "FILE")]
    pub(crate) signer: PathBuf,
    /// Check the existing signature with this public key (PEM) instead: a new signer takes over
    #[arg(long, value_name = "FILE")]
    pub(crate) former_signer: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints the version and, for each set of keys, its ID.
#[derive(Args)]
pub(crate) struct KeysShow {
    /// The document
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Public keys of the signers (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) signer: PathBuf,
    /// Also print the keys themselves, for programs that sign URLs and for load balancers
    #[arg(long)]
    pub(crate) secrets: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// The exit code is 0 if a server would start with the document, 1 if not, and 2 if the public keys cannot be read.
#[derive(Args)]
pub(crate) struct KeysVerify {
    /// The document
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Public keys of the signers (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) signer: PathBuf,
}
