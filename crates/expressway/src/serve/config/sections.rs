//! The sections of the file, and what absent keys mean.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use expressway_gateway::quic::cid::Routable;
use expressway_settings::{Key, Size, Span};
use expressway_web::patience::{REQUEST_RATE, RESPONSE_RATE};

use super::site::Problem;
use super::value::{Congestion, LogFormat, Retry, Seccomp, Workers};

/// `[server]`: where to listen and with how many workers.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    /// UDP addresses for HTTP/3, at least one.
    pub(crate) listen: Spanned<Vec<Spanned<SocketAddr>>>,
    /// Also serve HTTP/1.1 and HTTP/2 on the TCP ports of the same numbers; absent: where they can be bound.
    #[serde(default)]
    pub(crate) tcp: Option<Spanned<bool>>,
    /// For how long clients over TCP may keep that there is HTTP/3 (RFC 7838); 0: they are not told.
    #[serde(default = "one_day")]
    pub(crate) alt_svc: Span,
    /// Workers, one per core.
    #[serde(default)]
    pub(crate) workers: Workers,
    /// Pin each worker to its core.
    #[serde(default = "yes")]
    pub(crate) pin: bool,
    /// What tells this server from others with the same private key; absent: the machine, its boot and the addresses.
    #[serde(default)]
    pub(crate) node: Option<Spanned<String>>,
    /// File of keys that `expressway guard` in front of the server has too.
    #[serde(default)]
    pub(crate) guard_keys: Option<Spanned<PathBuf>>,
    /// Memory for what clients make the server hold, the block cache included; absent: half of what the machine or the
    /// cgroup has.
    #[serde(default)]
    pub(crate) memory: Option<Spanned<Size>>,
    /// How long open connections may finish after SIGTERM.
    #[serde(default = "ten_seconds")]
    pub(crate) drain: Span,
    /// How long connections may stay with this process after another has succeeded it.
    #[serde(default = "one_hour")]
    pub(crate) upgrade_drain: Span,
    /// How long a process that is to succeed this one may take to be ready.
    #[serde(default = "half_a_minute")]
    pub(crate) upgrade_timeout: Span,
    /// User to become once started as root.
    #[serde(default)]
    pub(crate) user: Option<Spanned<String>>,
    /// Group to become; the user's own if absent.
    #[serde(default)]
    pub(crate) group: Option<String>,
    /// Without privilege: open no file outside the folders that the configuration names.
    #[serde(default = "yes")]
    pub(crate) landlock: bool,
    /// Without privilege: make no system call that a server does not need.
    #[serde(default)]
    pub(crate) seccomp: Seccomp,
}

/// `[quic]`: transport parameters and limits.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Quic {
    /// A connection with no packets for this long is closed.
    pub(crate) idle_timeout: Spanned<Span>,
    /// When a client must prove its address first.
    pub(crate) retry: Retry,
    /// Unfinished handshakes on a worker above which `retry = "under-load"` asks for the proof.
    pub(crate) retry_threshold: u32,
    /// Connections that a worker accepts at most.
    pub(crate) max_connections: Spanned<u32>,
    /// Requests at once on a connection.
    pub(crate) max_requests: Spanned<u32>,
    /// Body bytes of one connection that wait for acknowledgement or credit at most.
    pub(crate) send_window: Spanned<Size>,
    /// Memory that one connection may hold; absent: 4 MiB, or twice `send_window` if that is more.
    pub(crate) connection_memory: Option<Spanned<Size>>,
    /// Requests with a file open at once on a connection; more wait.
    pub(crate) max_open_files: Spanned<u32>,
    /// A response of which the client takes nothing for this long is reset.
    pub(crate) response_timeout: Spanned<Span>,
    /// Bytes a second that count as taking it; 0: any byte.
    pub(crate) response_rate: Spanned<Size>,
    /// A request whose header section does not come whole within this time, or of whose body nothing comes for it, is ended.
    pub(crate) request_timeout: Spanned<Span>,
    /// Data may be missing for this long while later data is kept; then the connection is closed.
    pub(crate) missing_timeout: Spanned<Span>,
    /// Bytes a second that count as sending a body while it is waited for; 0: any byte.
    pub(crate) request_rate: Spanned<Size>,
    /// Congestion control.
    pub(crate) congestion: Congestion,
    /// Spread packets over the round trip instead of sending what the window allows at once.
    pub(crate) pacing: bool,
    /// Accept 0-RTT requests. They can be replayed, so that others than GET and HEAD wait for the handshake.
    pub(crate) early_data: bool,
    /// Largest UDP payload to send, bytes; default what the interface's MTU carries.
    pub(crate) max_payload: Option<Spanned<u16>>,
    /// Connection IDs that load balancers can route (QUIC-LB).
    pub(crate) load_balancing: Option<Spanned<LoadBalancing>>,
    /// Folder for one qlog file a connection, for debugging; takes a build with the feature `qlog`.
    pub(crate) qlog: Option<Spanned<PathBuf>>,
}

/// `[quic.load_balancing]`: what connection IDs say to load balancers.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadBalancing {
    /// Rotation codepoint of the configuration.
    #[serde(default)]
    pub(crate) config: u8,
    /// This server's ID, in hexadecimal.
    pub(crate) server_id: String,
    /// File with the key that encrypts server IDs; in clear without.
    pub(crate) key_file: Option<Spanned<PathBuf>>,
    /// The key and its codepoint are those of `[keys]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) shared_keys: bool,
}

impl LoadBalancing {
    /// As the gateway takes it; `None` if it cannot.
    pub(crate) fn routable(&self, key: Option<Key>) -> Option<Routable> {
        self.with(self.config, key.map(|key| key.0))
    }

    /// The same with the key of that codepoint.
    pub(crate) fn with(&self, config: u8, key: Option<[u8; 16]>) -> Option<Routable> {
        Routable::new(config, &HEX.decode(self.server_id.as_bytes()).ok()?, key)
    }

    /// Reads the key, if there is one.
    pub(crate) fn key(&self) -> Result<Option<Key>, Problem> {
        let read = |file: &Spanned<PathBuf>| Key::read(file.get_ref()).map_err(|error| (file.span(), error));
        self.key_file.as_ref().map(read).transpose()
    }
}

impl Default for Quic {
    fn default() -> Self {
        Self {
            idle_timeout: Spanned::new(0..0, Span(Duration::from_secs(30))),
            retry: Retry::default(),
            retry_threshold: 1000,
            max_connections: Spanned::new(0..0, 100_000),
            max_requests: Spanned::new(0..0, 128),
            send_window: Spanned::new(0..0, Size(2 << 20)),
            connection_memory: None,
            max_open_files: Spanned::new(0..0, 128),
            response_timeout: Spanned::new(0..0, Span(Duration::from_secs(60))),
            response_rate: Spanned::new(0..0, Size(RESPONSE_RATE)),
            request_timeout: Spanned::new(0..0, Span(Duration::from_secs(30))),
            missing_timeout: Spanned::new(0..0, Span(Duration::from_secs(60))),
            request_rate: Spanned::new(0..0, Size(REQUEST_RATE)),
            congestion: Congestion::default(),
            pacing: true,
            early_data: false,
            max_payload: None,
            load_balancing: None,
            qlog: None,
        }
    }
}

/// `[files]`: how files are read and kept.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Files {
    /// Memory for hot blocks of files, shared by all workers.
    pub(crate) cache: Size,
    /// Open files kept at most.
    pub(crate) open_files: u32,
    /// How long an open file is served before its path is looked up again; 0 looks it up each time.
    pub(crate) revalidate: Span,
    /// Threads that read what the page cache does not hold.
    pub(crate) readers: Spanned<u8>,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            cache: Size(256 << 20),
            open_files: 4096,
            revalidate: Span(Duration::from_millis(100)),
            readers: Spanned::new(0..0, 4),
        }
    }
}

/// `[log]`: the access log.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Log {
    /// File to append to, or `-` for standard output; absent: no access log.
    pub(crate) access: Option<PathBuf>,
    /// Line format.
    pub(crate) format: LogFormat,
    /// What players say of themselves (CMCD), in JSON.
    pub(crate) cmcd: bool,
}

pub(super) fn yes() -> bool {
    true
}

fn one_day() -> Span {
    Span(Duration::from_secs(86_400))
}

fn one_hour() -> Span {
    Span(Duration::from_secs(3600))
}

fn half_a_minute() -> Span {
    Span(Duration::from_secs(30))
}

fn ten_seconds() -> Span {
    Span(Duration::from_secs(10))
}
