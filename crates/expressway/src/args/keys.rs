//! Arguments of `expressway keys`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Several servers that have the same document take each other's session tickets and Retry tokens and the same signed URLs, and
/// balancers route their connection IDs (QUIC-LB): `[keys]` of `expressway serve`. Whatever distributes files distributes it;
/// running servers take a new one within a second or two.
#[derive(Args)]
pub(crate) struct KeysArguments {
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
}

/// What to do.
#[derive(Subcommand)]
pub(crate) enum KeysCommand {
    /// Make a first document, and who signs it
    New(KeysNew),
    /// Replace a document by the next: each set of keys moves on by one
    Rotate(KeysRotate),
    /// Show version and IDs of a document's keys
    Show(KeysShow),
    /// Check a document as a server does
    Verify(KeysVerify),
}

/// Writes shared.keys, signer.pem (private; stays with whoever rotates) and signer.pub (for the servers). An existing signer.pem
/// in the directory signs it; an existing shared.keys, or a signer.pub of another key, is an error.
#[derive(Args)]
pub(crate) struct KeysNew {
    /// Output directory; created if missing
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Print the names of the written files as one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `next` becomes `current`, `current` becomes `previous`, `previous` is forgotten. Servers may be apart by one rotation: rotate again
/// only when all have the version (metric `expressway_shared_keys_version`). The file is replaced by renaming and keeps its
/// mode and owner. Rotations of files in one directory wait for each other.
#[derive(Args)]
pub(crate) struct KeysRotate {
    /// The document
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Private key to sign with (PEM); the document must be signed with it already
    #[arg(long, value_name = "FILE")]
    pub(crate) signer: PathBuf,
    /// Check the present signature with this public key (PEM) instead: another signer takes over
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
    /// Show the keys too, for programs that sign URLs and for load balancers
    #[arg(long)]
    pub(crate) secrets: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// The exit code is 0 if a server would take it at its start, 1 if not, and 2 if the public keys cannot be read.
#[derive(Args)]
pub(crate) struct KeysVerify {
    /// The document
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Public keys of the signers (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) signer: PathBuf,
}
