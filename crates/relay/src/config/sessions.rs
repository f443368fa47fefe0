//! Keys shared by the sections with sessions.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use expressway_web::TokenKey;
use toml::Spanned;

use super::file::Problem;

/// Addresses that sessions come to at most.
const ADDRESSES: usize = 8;
/// Sessions at most.
pub(super) const SESSIONS: usize = 65_536;

/// Checks `listen`: a few addresses of this host, each with a port.
pub(super) fn listen(addresses: &Spanned<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>, Problem> {
    let listen = addresses.get_ref();
    if listen.is_empty() || listen.len() > ADDRESSES {
        return Err((addresses.span(), format!("1 to {ADDRESSES} addresses")));
    }
    let is_wrong = |address: &&SocketAddr| {
        address.ip().is_unspecified() || address.ip().is_multicast() || address.port() == 0
    };
    match listen.iter().find(is_wrong) {
        Some(address) => {
            Err((addresses.span(), format!("{address}: give an address of this host, and a port")))
        }
        None => Ok(listen.clone()),
    }
}

/// Reads the file of `token_keys`, if there is one; its path is relative to `folder`.
pub(super) fn token_keys(file: Option<Spanned<PathBuf>>, folder: &Path) -> Result<Vec<TokenKey>, Problem> {
    let Some(file) = file else { return Ok(Vec::new()) };
    TokenKey::load(&folder.join(file.get_ref())).map_err(|error| (file.span(), error.to_string()))
}

/// A number from 1 to `most`; `default` if it is not set.
pub(super) fn number(
    value: Option<Spanned<usize>>,
    default: usize,
    most: usize,
    what: &str,
) -> Result<usize, Problem> {
    match value {
        None => Ok(default),
        Some(value) if (1..=most).contains(value.get_ref()) => Ok(value.into_inner()),
        Some(value) => Err((value.span(), format!("1 to {most} {what}"))),
    }
}
