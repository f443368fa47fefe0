//! Admin listeners on the command line: one's own, and another process's.

use std::path::PathBuf;

use clap::Args;
use expressway_settings::admin::{Address, Open, Section};
use toml::Spanned;

use crate::fail::Failure;

/// One that a command opens, with the keys of `[admin]`.
#[derive(Args)]
pub(crate) struct AdminListener {
    /// Serve /dashboard, /metrics, /subscribers and /healthz at this address, or at unix:PATH
    #[arg(long, value_name = "ADDR")]
    pub(crate) admin: Option<Address>,
    /// File with the tokens that these pages accept, one per line; reread on SIGHUP
    #[arg(long = "admin-token-file", value_name = "FILE", requires = "admin")]
    pub(crate) token_file: Option<PathBuf>,
    /// Page to serve without a token, /healthz or /metrics; may be repeated
    #[arg(long = "admin-open", value_name = "PAGE", default_value = "/healthz")]
    pub(crate) open: Vec<Open>,
    /// Mode of the --admin unix socket, in octal [default: 660]
    #[arg(long = "admin-socket-mode", value_name = "MODE", requires = "admin", value_parser = octal)]
    pub(crate) socket_mode: Option<u32>,
    /// Group of the --admin unix socket, by name or number
    #[arg(long = "admin-socket-group", value_name = "GROUP", requires = "admin")]
    pub(crate) socket_group: Option<String>,
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).map_err(|_| "not octal digits, such as 660".to_owned())
}

impl AdminListener {
    /// The arguments that errors name.
    pub(crate) const KEYS: crate::daemon::Keys = ("--admin", "--admin-token-file");

    /// The section that says the same.
    pub(crate) fn section(&self) -> Result<Option<Section>, Failure> {
        let Some(address) = &self.admin else { return Ok(None) };
        let mut section = Section::at(address.clone());
        section.socket_mode = self.socket_mode.map(|mode| Spanned::new(0..0, mode));
        section.socket_group = self.socket_group.clone().map(|group| Spanned::new(0..0, group));
        section.token_file = self.token_file.clone().map(|file| Spanned::new(0..0, file));
        section.open.clone_from(&self.open);
        section.check().map_err(|(_, problem)| Failure::usage(format!("--admin {address}: {problem}")))?;
        Ok(Some(section))
    }
}

/// Another process's.
#[derive(Args)]
pub(crate) struct AdminPeer {
    /// Admin listener of the process: an address, or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9180")]
    pub(crate) admin: Address,
    /// File with the listener's tokens; the first one is sent
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}
