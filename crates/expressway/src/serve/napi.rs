//! `[io.napi]`: the NAPI contexts of the queues that are served, set for busy polling while the server runs.

use std::io::ErrorKind;

use expressway_gateway::config::Io;
use expressway_netio::netdev::{NapiGuard, Netdev};

use super::data_path::Interface;
use crate::fail::Failure;

/// Applies `[io.napi]` to the receive queues of `interfaces`. `None` when nothing is configured, or no device names
/// its NAPI contexts; the latter is said.
pub(super) fn defer(io: &Io, interfaces: &[Interface]) -> Result<Option<NapiGuard>, Failure> {
    let Some(settings) = io.napi() else { return Ok(None) };
    let failed = |error: std::io::Error| {
        let hint = match error.kind() {
            ErrorKind::PermissionDenied => "; it takes CAP_NET_ADMIN",
            ErrorKind::Unsupported | ErrorKind::NotFound => "; it takes Linux 6.13",
            _ => "",
        };
        Failure::run_time(format!("[io] napi: {error}{hint}"))
    };
    let mut netdev = Netdev::open().map_err(failed)?;
    let mut ids = Vec::new();
    for interface in interfaces {
        for queue in 0..interface.queues {
            match netdev.napi_of_queue(interface.index, queue).map_err(failed)? {
                Some(id) if !ids.contains(&id) => ids.push(id),
                Some(_) => {}
                None => tracing::warn!(
                    interface = interface.name,
                    queue,
                    "[io] napi has no effect: the driver names no NAPI context of this queue"
                ),
            }
        }
    }
    if ids.is_empty() {
        return Ok(None);
    }
    let guard = NapiGuard::apply(&ids, settings).map_err(failed)?;
    tracing::info!(contexts = ids.len(), "NAPI settings applied; they are put back at the end");
    Ok(Some(guard))
}
