//! Who is measured, each at its best known configuration.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::{HOST, SERVER_CORE};

/// A server with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "server", rename_all = "lowercase")]
pub enum Contestant {
    /// nginx with HTTP/3 and `quic_gso on`.
    Nginx,
    /// Ours.
    Expressway {
        /// `[io] mode`.
        mode: String,
        /// `[io] udp_send`.
        udp_send: String,
    },
}

/// Where a server finds its files.
pub(crate) struct Place<'a> {
    pub(crate) address: Ipv4Addr,
    pub(crate) root: &'a Path,
    pub(crate) certificates: &'a Path,
    pub(crate) work: &'a Path,
}

/// UDP port that every contestant listens on.
pub(crate) const PORT: u16 = 443;

/// Requests at once on a connection, given to every contestant.
const MAX_REQUESTS: u32 = 128;

impl Contestant {
    /// Ours in one mode, sending by GSO where the kernel sends.
    pub fn mode(mode: &str) -> Self {
        Self::Expressway { mode: mode.into(), udp_send: "gso".into() }
    }

    /// Ours over kernel UDP with one way of sending.
    pub fn udp(udp_send: &str) -> Self {
        Self::Expressway { mode: "udp".into(), udp_send: udp_send.into() }
    }

    /// A short name for tables.
    pub fn name(&self) -> String {
        match self {
            Self::Nginx => "nginx".into(),
            Self::Expressway { mode, udp_send } if mode == "udp" => format!("expressway udp {udp_send}"),
            Self::Expressway { mode, .. } => format!("expressway {mode}"),
        }
    }

    /// Its configuration file's text.
    pub(crate) fn configuration(&self, place: &Place<'_>) -> String {
        match self {
            Self::Nginx => nginx(place),
            Self::Expressway { mode, udp_send } => expressway(place, mode, udp_send),
        }
    }

    /// The command that runs it in the foreground.
    pub(crate) fn command(
        &self,
        tools: &crate::Tools,
        configuration: &Path,
    ) -> Option<(PathBuf, Vec<String>)> {
        let file = configuration.display().to_string();
        match self {
            Self::Nginx => tools.nginx.clone().map(|nginx| (nginx, vec!["-c".into(), file])),
            Self::Expressway { .. } => {
                Some((tools.expressway.clone(), vec!["serve".into(), "--config".into(), file]))
            }
        }
    }
}

/// nginx as its documentation and the measurements of others recommend for HTTP/3: GSO on, no access log, an
/// open-file cache like ours, sendfile for what little it does here.
fn nginx(place: &Place<'_>) -> String {
    let Place { address, root, certificates, work } = place;
    let (root, certificates, work) = (root.display(), certificates.display(), work.display());
    let affinity = 1u64 << SERVER_CORE;
    format!(
        "daemon off;
worker_processes 1;
worker_cpu_affinity {affinity:b};
pid {work}/nginx.pid;
error_log {work}/nginx.log warn;
events {{ worker_connections 32768; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  open_file_cache max=4096 inactive=60s;
  open_file_cache_valid 1s;
  keepalive_requests 1000000000;
  keepalive_timeout 300s;
  client_body_temp_path {work}/body; proxy_temp_path {work}/proxy; fastcgi_temp_path {work}/fastcgi;
  uwsgi_temp_path {work}/uwsgi; scgi_temp_path {work}/scgi;
  quic_gso on;
  http3_max_concurrent_streams {MAX_REQUESTS};
  server {{
    listen {address}:{PORT} quic reuseport;
    server_name {HOST};
    ssl_protocols TLSv1.3;
    ssl_certificate {certificates}/cert.pem;
    ssl_certificate_key {certificates}/key.pem;
    root {root};
  }}
}}
"
    )
}

fn expressway(place: &Place<'_>, mode: &str, udp_send: &str) -> String {
    let Place { address, root, certificates, .. } = place;
    let mut text = String::new();
    let _ = write!(
        text,
        "[server]
listen = [\"{address}:{PORT}\"]
workers = 1
drain = \"100ms\"
[io]
mode = \"{mode}\"
udp_send = \"{udp_send}\"
[tls]
certificate = \"{0}/cert.pem\"
private_key = \"{0}/key.pem\"
[quic]
max_requests = {MAX_REQUESTS}
idle_timeout = \"300s\"
[[site]]
hosts = [\"{HOST}\"]
root = \"{1}\"
[admin]
listen = \"127.0.0.1:9180\"
",
        certificates.display(),
        root.display()
    );
    text
}
