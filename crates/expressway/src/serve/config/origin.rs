//! `[control]` and `[[origin]]`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use expressway_origin as origin;
use expressway_settings::{Size, Span, named};
use http::HeaderName;
use ipnet::IpNet;
use origin::{Endpoint, OriginOptions};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::site::Problem;

/// `[control]`: the threads that wait for other servers.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Control {
    /// Their number.
    pub(crate) threads: Spanned<u32>,
}

impl Default for Control {
    fn default() -> Self {
        Self { threads: Spanned::new(0..0, 2) }
    }
}

/// The HTTP version spoken with an origin: `protocol`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// What ALPN selects; without TLS HTTP/1.1.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 over TLS.
    H2,
    /// HTTP/2 without TLS, by prior knowledge.
    H2c,
}

impl Protocol {
    /// All by name.
    pub(crate) const NAMES: [(&'static str, Self); 4] =
        [("auto", Self::Auto), ("http1", Self::Http1), ("h2", Self::H2), ("h2c", Self::H2c)];
}

/// How the server of a request is chosen: `balance`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Balance {
    /// In turn.
    #[default]
    RoundRobin,
    /// The one with the fewest requests.
    LeastConnections,
    /// By host and target.
    Hash,
}

impl Balance {
    /// All by name.
    pub(crate) const NAMES: [(&'static str, Self); 3] = [
        ("round-robin", Self::RoundRobin),
        ("least-connections", Self::LeastConnections),
        ("hash", Self::Hash),
    ];
}

/// The fields that tell an origin of the client: `forwarded`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// All of them.
    #[default]
    Both,
    /// `X-Forwarded-*`.
    Legacy,
    /// `Forwarded`.
    Rfc7239,
    /// None.
    Off,
}

impl Forwarded {
    /// All by name.
    pub(crate) const NAMES: [(&'static str, Self); 4] =
        [("both", Self::Both), ("x-forwarded", Self::Legacy), ("rfc7239", Self::Rfc7239), ("off", Self::Off)];
}

named!(Protocol);
named!(Balance);
named!(Forwarded);

/// `[[origin]]`: servers to pass requests on to.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Origin {
    /// What sites call it by.
    pub(crate) name: Spanned<String>,
    /// URLs of its servers.
    servers: Spanned<Vec<Spanned<String>>>,
    /// Their shares; absent: equal.
    weights: Option<Spanned<Vec<u32>>>,
    protocol: Spanned<Protocol>,
    balance: Balance,
    /// Attempts after the first.
    retries: Spanned<u32>,
    connect_timeout: Spanned<Span>,
    response_timeout: Spanned<Span>,
    read_timeout: Spanned<Span>,
    total_timeout: Option<Spanned<Span>>,
    max_requests: Spanned<u32>,
    max_connections: Spanned<u32>,
    max_idle: Spanned<u32>,
    idle_timeout: Spanned<Span>,
    buffer: Spanned<Size>,
    max_header: Spanned<Size>,
    resolve: Spanned<Span>,
    /// `Host` to send; absent: the client's.
    host: Option<Spanned<String>>,
    forwarded: Forwarded,
    trust: Vec<IpNet>,
    /// Field that has the subject of the client's certificate.
    client_subject: Option<Spanned<String>>,
    /// Pseudonym in `Via`; empty: no such field.
    via: Spanned<String>,
    /// Failures in a row that take a server out of service; 0: none do.
    max_failures: Spanned<u32>,
    eject_time: Spanned<Span>,
    max_eject_time: Spanned<Span>,
    /// Per cent of the servers that must be in service for the others to be left out.
    panic_threshold: Spanned<u32>,
    slow_start: Spanned<Span>,
    ca: Option<Spanned<PathBuf>>,
    server_name: Option<Spanned<String>>,
    verify: bool,
    certificate: Option<Spanned<PathBuf>>,
    private_key: Option<Spanned<PathBuf>>,
    health: Option<Health>,
}

/// `[origin.health]`: requests that ask whether a server is well.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Health {
    path: Spanned<String>,
    interval: Spanned<Span>,
    timeout: Spanned<Span>,
    /// Statuses, and ranges of them such as `200-399`.
    status: Spanned<Vec<String>>,
    rise: Spanned<u32>,
    fall: Spanned<u32>,
}

fn spanned<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

impl Default for Health {
    fn default() -> Self {
        Self {
            path: spanned("/".to_owned()),
            interval: spanned(Span(Duration::from_secs(5))),
            timeout: spanned(Span(Duration::from_secs(2))),
            status: spanned(vec!["200-399".to_owned()]),
            rise: spanned(2),
            fall: spanned(3),
        }
    }
}

impl Default for Origin {
    fn default() -> Self {
        let any = Endpoint { tls: false, site: origin::Site::Unix(PathBuf::new()) };
        let defaults = OriginOptions::new("", any);
        let (timeouts, limits, ejection) = (defaults.timeouts, defaults.limits, defaults.ejection);
        let time = |time| spanned(Span(time));
        Self {
            name: spanned(String::new()),
            servers: spanned(Vec::new()),
            weights: None,
            protocol: spanned(Protocol::default()),
            balance: Balance::default(),
            retries: spanned(defaults.retries),
            connect_timeout: time(timeouts.connect),
            response_timeout: time(timeouts.response),
            read_timeout: time(timeouts.read),
            total_timeout: None,
            max_requests: spanned(limits.requests as u32),
            max_connections: spanned(limits.connections as u32),
            max_idle: spanned(limits.idle as u32),
            idle_timeout: time(limits.idle_timeout),
            buffer: spanned(Size(limits.buffer as u64)),
            max_header: spanned(Size(limits.head as u64)),
            resolve: time(defaults.resolve),
            host: None,
            forwarded: Forwarded::default(),
            trust: Vec::new(),
            client_subject: None,
            via: spanned(defaults.via.unwrap_or_default()),
            max_failures: spanned(ejection.failures),
            eject_time: time(ejection.time),
            max_eject_time: time(ejection.most),
            panic_threshold: spanned(ejection.panic),
            slow_start: time(defaults.slow_start),
            ca: None,
            server_name: None,
            verify: true,
            certificate: None,
            private_key: None,
            health: None,
        }
    }
}

/// What a site's `origin` names.
pub(crate) enum Named<'a> {
    /// A server by its URL.
    Url(Result<Endpoint, String>),
    /// An `[[origin]]`.
    Section(&'a str),
}

impl<'a> Named<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        match text.contains("://") || text.starts_with("unix:") {
            true => Self::Url(Endpoint::parse(text)),
            false => Self::Section(text),
        }
    }
}

impl Origin {
    /// Makes paths absolute.
    pub(crate) fn resolve_paths(&mut self, base: &Path) {
        for path in [&mut self.ca, &mut self.certificate, &mut self.private_key].into_iter().flatten() {
            *path.get_mut() = base.join(path.get_ref());
        }
    }

    /// Files that it names.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Spanned<PathBuf>> {
        [&self.ca, &self.certificate, &self.private_key].into_iter().flatten()
    }

    /// What it amounts to, checked. `place` is where it stands in the file.
    pub(crate) fn options(&self, place: std::ops::Range<usize>) -> Result<OriginOptions, Problem> {
        if self.name.get_ref().is_empty() || Endpoint::parse(self.name.get_ref()).is_ok() {
            let place = if self.name.span().is_empty() { place } else { self.name.span() };
            return Err((place, "give a name, not a URL".to_owned()));
        }
        self.check_numbers()?;
        let servers = self.servers(place)?;
        let mut options = OriginOptions::new(self.name.get_ref().clone(), servers[0].endpoint.clone());
        options.protocol = self.protocol(&servers)?;
        options.servers = servers;
        options.balance = match self.balance {
            Balance::RoundRobin => origin::Balance::RoundRobin,
            Balance::LeastConnections => origin::Balance::LeastConnections,
            Balance::Hash => origin::Balance::Hash,
        };
        options.retries = *self.retries.get_ref();
        options.timeouts = origin::Timeouts {
            connect: self.connect_timeout.get_ref().0,
            response: self.response_timeout.get_ref().0,
            read: self.read_timeout.get_ref().0,
            total: self.total_timeout.as_ref().map(|time| time.get_ref().0),
        };
        options.limits = origin::Limits {
            requests: *self.max_requests.get_ref() as usize,
            connections: *self.max_connections.get_ref() as usize,
            idle: *self.max_idle.get_ref() as usize,
            idle_timeout: self.idle_timeout.get_ref().0,
            buffer: self.buffer.get_ref().0 as usize,
            head: self.max_header.get_ref().0 as usize,
        };
        options.resolve = self.resolve.get_ref().0;
        options.host = self.host.as_ref().map(|host| host.get_ref().clone());
        options.forwarded = match self.forwarded {
            Forwarded::Both => origin::Forwarded::Both,
            Forwarded::Legacy => origin::Forwarded::XForwarded,
            Forwarded::Rfc7239 => origin::Forwarded::Rfc7239,
            Forwarded::Off => origin::Forwarded::Off,
        };
        options.trust.clone_from(&self.trust);
        options.client_subject = self.client_subject()?;
        options.via = Some(self.via.get_ref().clone()).filter(|via| !via.is_empty());
        options.ejection = origin::Ejection {
            failures: *self.max_failures.get_ref(),
            time: self.eject_time.get_ref().0,
            most: self.max_eject_time.get_ref().0,
            panic: *self.panic_threshold.get_ref(),
        };
        options.slow_start = self.slow_start.get_ref().0;
        options.health = self.health.as_ref().map(Health::options).transpose()?;
        options.tls = self.tls()?;
        let place = self.host.as_ref().map_or(self.via.span(), Spanned::span);
        options.validate().map_err(|problem| (place, problem))?;
        Ok(options)
    }

    fn servers(&self, place: std::ops::Range<usize>) -> Result<Vec<origin::ServerOptions>, Problem> {
        let urls = self.servers.get_ref();
        if !(1..=64).contains(&urls.len()) {
            let place = if self.servers.span().is_empty() { place } else { self.servers.span() };
            return Err((place, "give 1 to 64 servers".to_owned()));
        }
        let weights = self.weights.as_ref().map(|weights| (weights.span(), weights.get_ref()));
        if let Some((span, weights)) = &weights
            && (weights.len() != urls.len() || weights.iter().any(|weight| !(1..=1000).contains(weight)))
        {
            return Err((span.clone(), "give each server a weight from 1 to 1000".to_owned()));
        }
        let mut servers: Vec<origin::ServerOptions> = Vec::with_capacity(urls.len());
        for (index, url) in urls.iter().enumerate() {
            let endpoint = Endpoint::parse(url.get_ref()).map_err(|problem| (url.span(), problem))?;
            if servers.iter().any(|server| server.endpoint == endpoint) {
                return Err((url.span(), format!("`{}` is listed twice", url.get_ref())));
            }
            servers.push(origin::ServerOptions {
                endpoint,
                weight: weights.as_ref().map_or(1, |(_, w)| w[index]),
            });
        }
        Ok(servers)
    }

    fn protocol(&self, servers: &[origin::ServerOptions]) -> Result<origin::Protocol, Problem> {
        let is_tls = |tls: bool| servers.iter().all(|server| server.endpoint.tls == tls);
        match self.protocol.get_ref() {
            Protocol::Auto => Ok(origin::Protocol::Auto),
            Protocol::Http1 => Ok(origin::Protocol::Http1),
            Protocol::H2 if is_tls(true) => Ok(origin::Protocol::H2),
            Protocol::H2c if is_tls(false) => Ok(origin::Protocol::H2),
            Protocol::H2 => {
                Err((self.protocol.span(), "h2 needs https:// servers; without TLS use h2c".to_owned()))
            }
            Protocol::H2c => {
                Err((self.protocol.span(), "h2c does not use TLS; use h2 with https://".to_owned()))
            }
        }
    }

    fn tls(&self) -> Result<origin::TlsOptions, Problem> {
        let identity = match (&self.certificate, &self.private_key) {
            (Some(chain), Some(key)) => Some((chain.get_ref().clone(), key.get_ref().clone())),
            (None, None) => None,
            (Some(one), None) | (None, Some(one)) => {
                return Err((one.span(), "certificate and private_key go together".to_owned()));
            }
        };
        Ok(origin::TlsOptions {
            ca: self.ca.as_ref().map(|ca| ca.get_ref().clone()),
            server_name: self.server_name.as_ref().map(|name| name.get_ref().clone()),
            verify: self.verify,
            identity,
        })
    }

    fn client_subject(&self) -> Result<Option<HeaderName>, Problem> {
        let Some(name) = &self.client_subject else { return Ok(None) };
        let wrong = || (name.span(), format!("`{}` is not a valid header field name", name.get_ref()));
        let parsed = name.get_ref().parse().map_err(|_| wrong())?;
        match OriginOptions::may_have_subject(&parsed) {
            true => Ok(Some(parsed)),
            false => Err((
                name.span(),
                format!("`{parsed}` has another meaning; use one such as x-client-subject"),
            )),
        }
    }

    fn check_numbers(&self) -> Result<(), Problem> {
        let number = |value: &Spanned<u32>| (value.span(), u64::from(*value.get_ref()));
        let size = |value: &Spanned<Size>| (value.span(), value.get_ref().0);
        for ((span, value), low, high) in [
            (number(&self.retries), 0, 10),
            (number(&self.max_requests), 1, 1_000_000),
            (number(&self.max_connections), 1, 100_000),
            (number(&self.max_idle), 0, 100_000),
            (size(&self.buffer), 4 << 10, 16 << 20),
            (size(&self.max_header), 8 << 10, 1 << 20),
            (number(&self.max_failures), 0, 1000),
            (number(&self.panic_threshold), 0, 100),
        ] {
            between(span, value, low, high)?;
        }
        let times = [
            Some(&self.connect_timeout),
            Some(&self.response_timeout),
            Some(&self.read_timeout),
            self.total_timeout.as_ref(),
            Some(&self.idle_timeout),
            Some(&self.resolve),
            Some(&self.eject_time),
            Some(&self.max_eject_time),
        ];
        times.into_iter().flatten().try_for_each(lasts)
    }
}

impl Health {
    fn options(&self) -> Result<origin::HealthCheck, Problem> {
        if !self.path.get_ref().starts_with('/') {
            return Err((self.path.span(), "begin the path with /".to_owned()));
        }
        lasts(&self.interval)?;
        lasts(&self.timeout)?;
        for number in [&self.rise, &self.fall] {
            between(number.span(), u64::from(*number.get_ref()), 1, 100)?;
        }
        let range = |text: &String| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
            (200 <= first && first <= last && last < 600).then_some((first, last))
        };
        let status: Option<Vec<_>> = self.status.get_ref().iter().map(range).collect();
        let status = status.filter(|status| !status.is_empty());
        Ok(origin::HealthCheck {
            path: self.path.get_ref().clone(),
            interval: self.interval.get_ref().0,
            timeout: self.timeout.get_ref().0,
            status: status.ok_or_else(|| {
                (self.status.span(), "give statuses such as \"200\" or \"200-399\"".to_owned())
            })?,
            rise: *self.rise.get_ref(),
            fall: *self.fall.get_ref(),
        })
    }
}

fn between(span: std::ops::Range<usize>, value: u64, low: u64, high: u64) -> Result<(), Problem> {
    match (low..=high).contains(&value) {
        true => Ok(()),
        false => Err((span, format!("{value} is not between {low} and {high}"))),
    }
}

fn lasts(time: &Spanned<Span>) -> Result<(), Problem> {
    match (Duration::from_millis(10)..=Duration::from_secs(86_400)).contains(&time.get_ref().0) {
        true => Ok(()),
        false => Err((time.span(), "give a time between \"10ms\" and \"24h\"".to_owned())),
    }
}

#[cfg(test)]
#[path = "origin_tests.rs"]
mod tests;
