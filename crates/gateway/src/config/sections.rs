//! The sections of the file, and what absent keys mean.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use expressway_settings::{Size, Span};

use super::value::{Attach, Congestion, IoMode, LogFormat, Retry, Seccomp, Sharing, UdpSend, Workers};
use super::wait::{Moment, Napi, Waiting};
use crate::admin;

/// `[server]`: where to listen and with how many workers.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// UDP addresses for HTTP/3, at least one.
    pub listen: Spanned<Vec<Spanned<SocketAddr>>>,
    /// Also serve HTTP/1.1 and HTTP/2 on the same TCP port.
    #[serde(default)]
    pub tcp: Option<Spanned<bool>>,
    /// Workers, one per core.
    #[serde(default)]
    pub workers: Workers,
    /// Pin each worker to its core.
    #[serde(default = "yes")]
    pub pin: bool,
    /// What tells this server from others with the same private key; absent: the machine, its boot and the addresses.
    #[serde(default)]
    pub node: Option<Spanned<String>>,
    /// Memory for what clients make the server hold, the block cache included; absent: half of what the machine or the
    /// cgroup has.
    #[serde(default)]
    pub memory: Option<Spanned<Size>>,
    /// How long open connections may finish after SIGTERM.
    #[serde(default = "ten_seconds")]
    pub drain: Span,
    /// User to become once started as root.
    #[serde(default)]
    pub user: Option<Spanned<String>>,
    /// Group to become; the user's own if absent.
    #[serde(default)]
    pub group: Option<String>,
    /// Without privilege: open no file outside the folders that the configuration names.
    #[serde(default = "yes")]
    pub landlock: bool,
    /// Without privilege: make no system call that a server does not need.
    #[serde(default)]
    pub seccomp: Seccomp,
}

/// `[io]`: how packets move.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Io {
    /// The mode; `--io` overrides it.
    pub mode: IoMode,
    /// How the XDP program is attached.
    pub attach: Spanned<Attach>,
    /// How the kernel path sends.
    pub udp_send: UdpSend,
    /// In mode `auto`, measure what sending costs where the order is not certain.
    pub calibrate: bool,
    /// Where measurements are kept; empty: nowhere.
    pub calibration_cache: PathBuf,
    /// For each interface, the one of this machine at the other end of its link, which must receive the
    /// self-test's probe frame.
    pub probe_peers: BTreeMap<String, String>,
    /// UMEM frames of each AF_XDP socket, a power of two; default 8192.
    pub frames: Option<Spanned<u32>>,
    /// Socket buffers of the kernel sockets.
    pub socket_buffer: Option<Spanned<Size>>,
    /// Detach a foreign XDP program from the interface; `--replace` does the same.
    pub replace: bool,
    /// How workers wait for packets.
    pub wait: Waiting,
    /// How long one wait polls the device before it sleeps.
    pub busy_poll: Option<Spanned<Moment>>,
    /// Packets that one poll of the device may take.
    pub busy_poll_budget: Option<Spanned<u16>>,
    /// How long a spinning worker leaves its kernel sockets unasked.
    pub spin_kernel: Option<Spanned<Moment>>,
    /// NAPI settings of the interfaces.
    pub napi: Option<Napi>,
    /// Packets that one system call may send in AF_XDP copy mode; default the TX ring's size.
    pub tx_budget: Option<Spanned<u32>>,
    /// Socket of an agent that prepares what takes privilege; `--agent` overrides it.
    pub agent: Option<PathBuf>,
    /// Socket of the AF_XDP device plugin of Kubernetes, whose XDP program is used.
    pub device_plugin: Option<Spanned<PathBuf>>,
    /// Whether to share interfaces with other XDP programs by a libxdp dispatcher.
    pub dispatcher: Sharing,
    /// Receive queues to open AF_XDP sockets on; absent: all. Others are served by the kernel sockets.
    pub queues: Option<Spanned<Vec<u32>>>,
}

impl Default for Io {
    fn default() -> Self {
        Self {
            mode: IoMode::default(),
            attach: Spanned::new(0..0, Attach::default()),
            udp_send: UdpSend::default(),
            calibrate: true,
            calibration_cache: PathBuf::from("/var/cache/expressway/calibration.json"),
            probe_peers: BTreeMap::new(),
            frames: None,
            socket_buffer: None,
            replace: false,
            wait: Default::default(),
            busy_poll: None,
            busy_poll_budget: None,
            spin_kernel: None,
            napi: None,
            tx_budget: None,
            agent: None,
            device_plugin: None,
            dispatcher: Sharing::default(),
            queues: None,
        }
    }
}

/// `[tls]`: the certificate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// PEM file with the leaf first and its chain behind.
    pub certificate: Spanned<PathBuf>,
    /// PEM file with the private key.
    pub private_key: Spanned<PathBuf>,
    /// File that TLS secrets are appended to in the SSLKEYLOGFILE format, for debugging.
    pub keylog: Option<PathBuf>,
}

/// `[quic]`: transport parameters and limits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quic {
    /// A connection with no packets for this long is closed.
    pub idle_timeout: Spanned<Span>,
    /// When a client must prove its address first.
    pub retry: Retry,
    /// Unfinished handshakes on a worker above which `retry = "under-load"` asks for the proof.
    pub retry_threshold: u32,
    /// Connections that a worker accepts at most.
    pub max_connections: Spanned<u32>,
    /// Concurrent requests per connection.
    pub max_requests: Spanned<u32>,
    /// Body bytes of one connection that wait for acknowledgement or credit at most.
    pub send_window: Spanned<Size>,
    /// Memory that one connection may hold; absent: 4 MiB, or twice `send_window` if that is more.
    pub connection_memory: Option<Spanned<Size>>,
    /// Concurrent requests with an open file per connection; more wait.
    pub max_open_files: Spanned<u32>,
    /// A response of which the client takes nothing for this long is reset.
    pub response_timeout: Spanned<Span>,
    /// A request whose header section does not come whole within this time is rejected.
    pub request_timeout: Spanned<Span>,
    /// Congestion control.
    pub congestion: Congestion,
    /// Spread packets over the round trip instead of sending what the window allows at once.
    pub pacing: bool,
    /// Accept 0-RTT requests (GET and HEAD only; they can be replayed).
    pub early_data: bool,
    /// Largest UDP payload to send, bytes; default what the interface's MTU carries.
    pub max_payload: Option<Spanned<u16>>,
    /// Directory for one qlog file per connection, for debugging; needs a build with the feature `qlog`.
    pub qlog: Option<Spanned<PathBuf>>,
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
            request_timeout: Spanned::new(0..0, Span(Duration::from_secs(30))),
            congestion: Congestion::default(),
            pacing: true,
            early_data: false,
            max_payload: None,
            qlog: None,
        }
    }
}

/// `[files]`: how files are read and kept.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Files {
    /// Memory for hot blocks of files, shared by all workers.
    pub cache: Size,
    /// Open files kept at most.
    pub open_files: u32,
    /// How long an open file is served before its path is looked up again; 0 looks it up each time.
    pub revalidate: Span,
    /// Threads that read what the page cache does not hold.
    pub readers: Spanned<u8>,
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
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// File to append to, or `-` for standard output; absent: no access log.
    pub access: Option<PathBuf>,
    /// Line format.
    pub format: LogFormat,
}

/// `[[site]]`: what some hosts serve.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Host names without ports, lower case; `*.example` matches any name below `example`.
    pub hosts: Spanned<Vec<String>>,
    /// Folder that files come from.
    pub root: Option<Spanned<PathBuf>>,
    /// An origin server to proxy and cache.
    pub origin: Option<Spanned<String>>,
    /// Files that answer for a folder, in order.
    #[serde(default = "index_html")]
    pub index: Vec<String>,
    /// Follow symbolic links as long as they stay under the root.
    #[serde(default)]
    pub symlinks: bool,
    /// Serve names that begin with a dot; without it only those under `/.well-known/` are.
    #[serde(default)]
    pub hidden: bool,
    /// Answer with `.br` and `.gz` siblings where the client takes them.
    #[serde(default = "yes")]
    pub precompressed: bool,
}

/// `[admin]`: metrics and health over HTTP/1.1.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// TCP address; keep it off public interfaces.
    pub listen: Spanned<SocketAddr>,
    /// Concurrent connections. A new one displaces the connection that has been idle longest without a
    /// request.
    #[serde(default = "Admin::max_connections")]
    pub max_connections: Spanned<u32>,
    /// How long a request's head may take to come, whole, and how long a connection may be idle.
    #[serde(default = "Admin::header_timeout")]
    pub header_timeout: Spanned<Span>,
    /// How long a client may take to take a response, whole.
    #[serde(default = "Admin::write_timeout")]
    pub write_timeout: Spanned<Span>,
    /// Bytes of a request's head.
    #[serde(default = "Admin::max_header")]
    pub max_header: Spanned<Size>,
    /// Bytes of responses that clients have not read yet.
    #[serde(default = "Admin::max_pages")]
    pub max_pages: Spanned<Size>,
}

impl Admin {
    /// What clients may take.
    pub fn limits(&self) -> admin::Limits {
        admin::Limits {
            connections: *self.max_connections.get_ref() as usize,
            header_timeout: self.header_timeout.get_ref().0,
            write_timeout: self.write_timeout.get_ref().0,
            header: self.max_header.get_ref().0 as usize,
            pages: self.max_pages.get_ref().0 as usize,
        }
    }

    fn max_connections() -> Spanned<u32> {
        Spanned::new(0..0, admin::Limits::default().connections as u32)
    }

    fn header_timeout() -> Spanned<Span> {
        Spanned::new(0..0, Span(admin::Limits::default().header_timeout))
    }

    fn write_timeout() -> Spanned<Span> {
        Spanned::new(0..0, Span(admin::Limits::default().write_timeout))
    }

    fn max_header() -> Spanned<Size> {
        Spanned::new(0..0, Size(admin::Limits::default().header as u64))
    }

    fn max_pages() -> Spanned<Size> {
        Spanned::new(0..0, Size(admin::Limits::default().pages as u64))
    }
}

fn yes() -> bool {
    true
}

fn ten_seconds() -> Span {
    Span(Duration::from_secs(10))
}

fn index_html() -> Vec<String> {
    vec!["index.html".into()]
}
