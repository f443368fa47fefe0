//! `[io.napi]`: configures the NAPI contexts of the served queues for busy polling while the server runs.

use std::io::ErrorKind;

use expressway_netio::netdev::{NapiGuard, Netdev};

use crate::config::IoConfig;
use crate::data_path::Interface;
use crate::error::Error;

/// Applies `[io.napi]` to the receive queues of `interfaces`. `None` when nothing is configured, or no device names
/// its NAPI contexts; the latter is said.
pub(crate) fn defer(io: &IoConfig, interfaces: &[Interface]) -> Result<Option<NapiGuard>, Error> {
    let Some(settings) = io.napi else { return Ok(None) };
    let failed = |source: std::io::Error| {
        let hint = match source.kind() {
            ErrorKind::PermissionDenied => "; needs CAP_NET_ADMIN",
            ErrorKind::Unsupported | ErrorKind::NotFound => "; needs Linux 6.13",
            _ => "",
        };
        Error::Napi { source, hint }
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
                    "[io] napi has no effect: the driver reports no NAPI context for this queue"
                ),
            }
        }
    }
    if ids.is_empty() {
        return Ok(None);
    }
    let guard = NapiGuard::apply(&ids, settings).map_err(failed)?;
    tracing::info!(contexts = ids.len(), "NAPI settings applied; they will be restored on exit");
    Ok(Some(guard))
}
