//! HTTP over TCP beside the packet workers: its listeners, and what they serve.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use expressway_tcp::{Address, Listen, Listener, Redirect, Role, Setup};
use expressway_tls::Tls;
use expressway_web::Handler;
use expressway_web::access_log::AccessLog;
use http::{HeaderValue, StatusCode};

use super::config::{Action, Config, Workers};
use super::upgrade::inheritance::Inheritance;
use crate::fail::Failure;

/// How many workers serve TCP, where so many handle packets.
pub(crate) fn workers(config: &Config, packet_workers: usize) -> usize {
    match config.tcp.workers {
        Workers::Auto => packet_workers,
        Workers::Count(count) => usize::from(count),
    }
}

/// Binds all listeners, while the process may still bind to ports below 1024. Where nobody asked for TCP, an address
/// that cannot be bound is left to UDP alone.
/// What the process before had is taken from there.
pub(crate) fn bind(
    config: &Config,
    workers: usize,
    inheritance: &Inheritance,
) -> Result<Vec<Listener>, Failure> {
    // And whether what went wrong is with what the process before had, which leaves no choice: that one would leave it too.
    let listener = |listen: Listen| match inheritance.tcp(&listen.address.to_string()) {
        Some(sockets) => Listener::adopt(listen, workers, sockets).map_err(|error| (error, true)),
        None => Listener::bind(listen, workers, false).map_err(|error| (error, false)),
    };
    let mut listeners = Vec::new();
    for listen in https(config) {
        let address = listen.address.to_string();
        match listener(listen) {
            Ok(listener) => listeners.push(listener),
            Err((error, false)) if config.server.tcp.is_none() => {
                tracing::warn!(
                    "TCP {address}: {error}: HTTP/3 only on this address; set [server] tcp to make this an error or to turn TCP off"
                );
            }
            Err((error, _)) => return Err(Failure::run_time(format!("TCP {address}: {error}"))),
        }
    }
    for listen in http(config) {
        let address = listen.address.to_string();
        let listener = listener(listen)
            .map_err(|(error, _)| Failure::run_time(format!("[[http]] listen {address}: {error}")))?;
        listeners.push(listener);
    }
    Ok(listeners)
}

fn https(config: &Config) -> Vec<Listen> {
    if config.server.tcp.as_ref().is_some_and(|tcp| !tcp.get_ref()) {
        return Vec::new();
    }
    let listen = |address: std::net::SocketAddr| Listen {
        address: Address::Tcp(address),
        role: Role::Tls(alt_svc(config, address.port())),
        proxy: config.tcp.trusted(),
    };
    config.listen().into_iter().map(listen).collect()
}

/// What tells clients of HTTP/3 on the same port.
fn alt_svc(config: &Config, port: u16) -> Option<HeaderValue> {
    let seconds = config.server.alt_svc.0.as_secs();
    (seconds > 0).then(|| HeaderValue::try_from(format!("h3=\":{port}\"; ma={seconds}")).ok()).flatten()
}

fn http(config: &Config) -> impl Iterator<Item = Listen> {
    let port = config.listen().first().map_or(443, std::net::SocketAddr::port);
    config.http.iter().map(move |http| Listen {
        address: http.listen.get_ref().0.clone(),
        role: match http.action {
            Action::Serve => Role::Plain,
            Action::Redirect => Role::Other(Arc::new(Redirect {
                status: StatusCode::from_u16(*http.status.get_ref())
                    .unwrap_or(StatusCode::PERMANENT_REDIRECT),
                port: http.https_port.unwrap_or(port),
            })),
        },
        proxy: http.proxy_protocol.as_ref().map(|trusted| trusted.get_ref().0.clone()),
    })
}

/// What TCP workers serve.
pub(crate) fn setup(
    config: &Config,
    tls: &Tls,
    handler: Arc<dyn Handler>,
    access_log: Option<Arc<AccessLog>>,
) -> Result<Arc<Setup>, Failure> {
    let mut context = tls
        .tcp(expressway_tcp::PROTOCOLS)
        .map_err(|error| Failure::run_time(format!("TLS context: {error}")))?;
    if let Some(path) = &config.tls.keylog {
        let keylog = Mutex::new(keylog(path)?);
        context.set_keylog_callback(move |_, line| {
            // Debugging only: a line that cannot be written is lost.
            let _ = writeln!(keylog.lock().unwrap_or_else(PoisonError::into_inner), "{line}");
        });
    }
    let mut limits = config.tcp.limits();
    limits.max_open_files = *config.quic.max_open_files.get_ref() as usize;
    Ok(Arc::new(Setup { handler, access_log, tls: context.build(), limits }))
}

fn keylog(path: &Path) -> Result<File, Failure> {
    // Secrets are for the owner alone.
    File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| Failure::run_time(format!("[tls] keylog {}: {error}", path.display())))
}
