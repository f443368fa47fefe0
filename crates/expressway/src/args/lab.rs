//! The command line of `expressway lab`.

use clap::{Args, Subcommand};
use expressway_lab::{DEFAULT_NAME, LabConfig};

/// The lab is two network namespaces, `server` and `client`, joined by a multi-queue veth. Nothing in it
/// reaches a real network.
#[derive(Args)]
pub(crate) struct LabArguments {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

/// What to do with a lab.
#[derive(Subcommand)]
pub(crate) enum LabCommand {
    /// Create a lab
    Up {
        #[command(flatten)]
        config: LabConfig,
        /// Print its addresses as one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Remove a lab, ending the processes still running inside
    Down {
        /// Name of the lab
        #[arg(default_value = DEFAULT_NAME)]
        name: String,
    },
    /// List the labs on this machine
    Status {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Run a command inside: `lab exec client -- ping 10.0.0.1`
    Exec {
        /// server or client, or LAB/server, LAB/client
        #[arg(value_name = "NAME")]
        target: String,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}
