//! The configuration of an origin.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use http::uri::Authority;
use ipnet::IpNet;

/// Where a server is: `http://host[:port]`, `https://host[:port]` or `unix:/path`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Over TLS.
    pub tls: bool,
    /// The socket.
    pub site: Site,
}

/// The socket of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Site {
    /// A host, by name or address, and a port.
    Tcp {
        /// Name or IP address, without brackets.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Reads a URL. The error says what is wrong with it.
    pub fn parse(url: &str) -> Result<Self, String> {
        if let Some(path) = url.strip_prefix("unix:") {
            if !path.starts_with('/') {
                return Err(format!("`{url}`: give an absolute path, such as unix:/run/app.sock"));
            }
            return Ok(Self { tls: false, site: Site::Unix(path.into()) });
        }
        let (tls, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(format!("`{url}`: give http://HOST:PORT, https://HOST:PORT or unix:/PATH")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#', '@']) {
            return Err(format!("`{url}`: only scheme, host and port are allowed here"));
        }
        let authority: Authority = rest.parse().map_err(|_| format!("`{url}` has no valid host"))?;
        let host = authority.host();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let has_port = rest.len() > authority.host().len();
        let port = match authority.port_u16() {
            None if has_port => return Err(format!("`{url}` has no valid port")),
            Some(0) => return Err(format!("`{url}`: port 0 is not allowed")),
            port => port.unwrap_or(if tls { 443 } else { 80 }),
        };
        if host.is_empty() {
            return Err(format!("`{url}` has no host"));
        }
        Ok(Self { tls, site: Site::Tcp { host: host.to_owned(), port } })
    }

    /// `host` or `host:port` as it stands in a `Host` field; `localhost` for a Unix socket.
    pub fn authority(&self) -> String {
        let (host, port) = match &self.site {
            Site::Tcp { host, port } => (host, *port),
            Site::Unix(_) => return "localhost".to_owned(),
        };
        let host = if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]") } else { host.clone() };
        if port == if self.tls { 443 } else { 80 } { host } else { format!("{host}:{port}") }
    }

    /// It takes a resolver to reach it.
    pub fn is_named(&self) -> bool {
        matches!(&self.site, Site::Tcp { host, .. } if host.parse::<std::net::IpAddr>().is_err())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.site {
            Site::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Site::Tcp { host, port } => write!(f, "{host}:{port}"),
            Site::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// One of the servers of an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Where it is.
    pub endpoint: Endpoint,
    /// Its share of the requests, relative to the others', 1 to 1000.
    pub weight: u32,
}

/// The HTTP version spoken with an origin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Over TLS what ALPN selects of HTTP/2 and HTTP/1.1; without TLS HTTP/1.1.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2; without TLS by prior knowledge (RFC 9113, section 3.3).
    H2,
}

/// How the server of a request is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Balance {
    /// In turn, by weight and without bursts (smooth weighted round-robin).
    #[default]
    RoundRobin,
    /// The one with the fewest requests under way, by weight.
    LeastConnections,
    /// By a hash of host and target: the same always goes to the same server, and only what a missing server had
    /// moves to others (rendezvous hashing).
    Hash,
}

/// Which fields tell the origin of the client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Forwarded {
    /// `Forwarded` and `X-Forwarded-For`, `-Proto` and `-Host`.
    #[default]
    Both,
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Rfc7239,
    /// None.
    Off,
}

/// How long an origin may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// Until there is a connection: a free one of the pool, or a new one with its name looked up and its TLS handshake
    /// done.
    pub connect: Duration,
    /// Until the head of the response is whole, from the last octet of the request that went out.
    pub response: Duration,
    /// Between two pieces of a body.
    pub read: Duration,
    /// For all of a request, retries included; `None`: any time.
    pub total: Option<Duration>,
}

/// What an origin may take of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Requests under way for the whole origin; more are answered 503.
    pub requests: usize,
    /// Requests at a server at once: connections with HTTP/1.1, streams with HTTP/2. More wait for `connect`.
    pub connections: usize,
    /// Idle connections kept for each server.
    pub idle: usize,
    /// How long they are kept.
    pub idle_timeout: Duration,
    /// Octets of a response body that may wait for the client.
    pub buffer: usize,
    /// Octets of a response head, at least 8192.
    pub head: usize,
}

/// When a server that fails gets no requests for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ejection {
    /// Failures in a row; 0: never.
    pub failures: u32,
    /// For how long the first time; each time after another doubles it.
    pub time: Duration,
    /// The longest.
    pub most: Duration,
    /// Per cent of an origin's servers that must be in service for the others to be left out. With fewer, all are
    /// used: those that are left would be overloaded, and what looks like dead servers may be our own network.
    pub panic: u32,
}

/// Requests that ask whether a server is well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// Path and query.
    pub path: String,
    /// From one to the next.
    pub interval: Duration,
    /// For all of one.
    pub timeout: Duration,
    /// Statuses that are well, first and last of each range.
    pub status: Vec<(u16, u16)>,
    /// Good ones in a row after which a server is in service again.
    pub rise: u32,
    /// Bad ones in a row after which it is not.
    pub fall: u32,
}

/// TLS with an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsOptions {
    /// PEM file of the authorities to trust; `None`: the system's.
    pub ca: Option<PathBuf>,
    /// The name that is asked for and must be in the certificate; `None`: the host of the URL.
    pub server_name: Option<String>,
    /// Check the certificate.
    pub verify: bool,
    /// PEM files of the client's certificate chain and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// All of an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginOptions {
    /// The name, for logs and metrics.
    pub name: String,
    /// The servers, 1 to 64, that hold the same.
    pub servers: Vec<ServerOptions>,
    /// HTTP version.
    pub protocol: Protocol,
    /// How one of the servers is chosen.
    pub balance: Balance,
    /// Attempts after the first, each at another server.
    pub retries: u32,
    /// Times.
    pub timeouts: Timeouts,
    /// Quantities.
    pub limits: Limits,
    /// How often names are looked up again.
    pub resolve: Duration,
    /// The `Host` to send; `None`: the client's.
    pub host: Option<String>,
    /// Fields about the client.
    pub forwarded: Forwarded,
    /// Peers whose `Forwarded` and `X-Forwarded-*` are believed and added to.
    pub trust: Vec<IpNet>,
    /// The field that has the subject of the client's certificate, if it has shown one. What clients send by that name
    /// is removed.
    pub client_subject: Option<HeaderName>,
    /// The pseudonym in `Via`; `None`: no such field.
    pub via: Option<String>,
    /// Passive health.
    pub ejection: Ejection,
    /// Active health.
    pub health: Option<HealthCheck>,
    /// Time in which a server that comes back gets its full share; zero: at once.
    pub slow_start: Duration,
    /// TLS.
    pub tls: TlsOptions,
}

/// The most servers that an origin may have.
pub(crate) const MAX_SERVERS: usize = 64;

impl OriginOptions {
    /// An origin of one server, with defaults for all else.
    pub fn new(name: impl Into<String>, endpoint: Endpoint) -> Self {
        let second = Duration::from_secs;
        Self {
            name: name.into(),
            servers: vec![ServerOptions { endpoint, weight: 1 }],
            protocol: Protocol::default(),
            balance: Balance::default(),
            retries: 2,
            timeouts: Timeouts { connect: second(5), response: second(60), read: second(60), total: None },
            limits: Limits {
                requests: 2048,
                connections: 256,
                idle: 64,
                idle_timeout: second(60),
                buffer: 64 << 10,
                head: 64 << 10,
            },
            resolve: second(30),
            host: None,
            forwarded: Forwarded::default(),
            trust: Vec::new(),
            client_subject: None,
            via: Some("expressway".to_owned()),
            ejection: Ejection { failures: 3, time: second(10), most: second(300), panic: 30 },
            health: None,
            slow_start: Duration::ZERO,
            tls: TlsOptions { ca: None, server_name: None, verify: true, identity: None },
        }
    }

    /// Whether `name` is free for the subject of a client's certificate: it begins with `x-` or `client-` and means
    /// nothing else. `Client-Cert` is for a certificate, not its subject (RFC 9440).
    pub fn may_have_subject(name: &HeaderName) -> bool {
        let name = name.as_str();
        let is_taken =
            name.starts_with("x-forwarded-") || name.starts_with("client-cert") || name == "x-real-ip";
        (name.starts_with("x-") || name.starts_with("client-")) && !is_taken
    }

    /// Checks what a configuration's syntax does not.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=MAX_SERVERS).contains(&self.servers.len()) {
            return Err(format!("give 1 to {MAX_SERVERS} servers"));
        }
        if self.servers.iter().any(|server| !(1..=1000).contains(&server.weight)) {
            return Err("a weight is 1 to 1000".to_owned());
        }
        if self.limits.head < 8192 {
            return Err("heads of 8192 bytes must be allowed".to_owned());
        }
        if self.limits.requests == 0 || self.limits.connections == 0 || self.limits.buffer == 0 {
            return Err("a limit of 0 lets nothing through".to_owned());
        }
        let is_token = |via: &String| {
            !via.is_empty() && via.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        if !self.via.as_ref().is_none_or(is_token) {
            return Err("`via` is letters, digits, `-`, `_` and `.`".to_owned());
        }
        if self.host.as_ref().is_some_and(|host| host.parse::<Authority>().is_err()) {
            return Err("`host` is a name and perhaps a port".to_owned());
        }
        if self.client_subject.as_ref().is_some_and(|name| !Self::may_have_subject(name)) {
            return Err("`client_subject` is a field such as x-client-subject".to_owned());
        }
        if let Some(health) = &self.health
            && (!health.path.starts_with('/') || health.path.parse::<http::uri::PathAndQuery>().is_err())
        {
            return Err("the path of a health check begins with `/`".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let tcp = |host: &str, port| Site::Tcp { host: host.into(), port };
        for (url, tls, site, authority) in [
            ("http://127.0.0.1:8080", false, tcp("127.0.0.1", 8080), "127.0.0.1:8080"),
            ("http://app", false, tcp("app", 80), "app"),
            ("https://app.example/", true, tcp("app.example", 443), "app.example"),
            ("https://[::1]:8443", true, tcp("::1", 8443), "[::1]:8443"),
            ("http://[2001:db8::1]", false, tcp("2001:db8::1", 80), "[2001:db8::1]"),
            ("unix:/run/app.sock", false, Site::Unix("/run/app.sock".into()), "localhost"),
        ] {
            let endpoint = Endpoint::parse(url).unwrap();
            assert_eq!((endpoint.tls, &endpoint.site), (tls, &site), "{url}");
            assert_eq!(endpoint.authority(), authority);
        }
    }

    #[test]
    fn what_is_no_url_of_a_server_is_refused() {
        for url in [
            "",
            "app",
            "ftp://app",
            "http://",
            "http://a/b",
            "http://a?b",
            "http://u@a",
            "http://a:b",
            "http://a:0",
            "http://a:99999",
            "unix:run/app",
            "http://a b",
            "http://[::1",
            "http://:80",
            "http://a:",
        ] {
            assert!(Endpoint::parse(url).is_err(), "{url:?}");
        }
    }
}
