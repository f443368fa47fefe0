//! `[tcp]` and `[[http]]`: HTTP over TCP.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Spanned;

use expressway_settings::{Size, Span, named};
use expressway_tcp::{Address, Limits};
use ipnet::IpNet;

use super::value::Workers;

/// `[tcp]`: HTTP/1.1 and HTTP/2 on the addresses of `[server] listen`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tcp {
    /// Threads; as many as there are packet workers if absent.
    pub(crate) workers: Workers,
    /// Connections of a worker.
    pub(crate) max_connections: Spanned<u32>,
    /// Connections from one address over all workers; 0: any number.
    pub(crate) max_connections_per_address: u32,
    /// Requests at once on an HTTP/2 connection.
    pub(crate) max_requests: Spanned<u32>,
    /// Bytes of a request's header section.
    pub(crate) max_header: Spanned<Size>,
    /// Bytes of responses of one connection that its client has not taken.
    pub(crate) send_window: Spanned<Size>,
    /// How long a PROXY header and the TLS handshake may take.
    pub(crate) handshake_timeout: Spanned<Span>,
    /// How long a request's header section may take to come, whole.
    pub(crate) header_timeout: Spanned<Span>,
    /// How long a connection may be idle.
    pub(crate) idle_timeout: Spanned<Span>,
    /// A request of whose body nothing comes for this long is ended.
    pub(crate) request_timeout: Spanned<Span>,
    /// Bytes a second that count as sending it while it is waited for; 0: any byte.
    pub(crate) request_rate: Spanned<Size>,
    /// A response of which the client takes nothing for this long is ended.
    pub(crate) response_timeout: Spanned<Span>,
    /// Bytes a second that count as taking it; 0: any byte.
    pub(crate) response_rate: Spanned<Size>,
    /// Those who say in a PROXY header whom they speak for, and have to.
    pub(crate) proxy_protocol: Option<Spanned<Trusted>>,
}

impl Default for Tcp {
    fn default() -> Self {
        let limits = Limits::default();
        let span = |time| Spanned::new(0..0, Span(time));
        Self {
            workers: Workers::default(),
            max_connections: Spanned::new(0..0, limits.max_connections as u32),
            max_connections_per_address: limits.max_connections_per_address as u32,
            max_requests: Spanned::new(0..0, limits.max_requests),
            max_header: Spanned::new(0..0, Size(limits.max_header as u64)),
            send_window: Spanned::new(0..0, Size(limits.send_window as u64)),
            handshake_timeout: span(limits.handshake_timeout),
            header_timeout: span(limits.header_timeout),
            idle_timeout: span(limits.idle_timeout),
            request_timeout: span(limits.request_timeout),
            request_rate: Spanned::new(0..0, Size(limits.request_rate)),
            response_timeout: span(limits.response_timeout),
            response_rate: Spanned::new(0..0, Size(limits.response_rate)),
            proxy_protocol: None,
        }
    }
}

impl Tcp {
    /// What strangers may take.
    pub(crate) fn limits(&self) -> Limits {
        let defaults = Limits::default();
        let send_window = self.send_window.get_ref().0 as usize;
        Limits {
            max_connections: *self.max_connections.get_ref() as usize,
            max_connections_per_address: self.max_connections_per_address as usize,
            max_requests: *self.max_requests.get_ref(),
            max_header: self.max_header.get_ref().0 as usize,
            send_window,
            connection_memory: defaults.connection_memory.max(2 * send_window),
            handshake_timeout: self.handshake_timeout.get_ref().0,
            header_timeout: self.header_timeout.get_ref().0,
            idle_timeout: self.idle_timeout.get_ref().0,
            request_timeout: self.request_timeout.get_ref().0,
            request_rate: self.request_rate.get_ref().0,
            response_timeout: self.response_timeout.get_ref().0,
            response_rate: self.response_rate.get_ref().0,
            ..defaults
        }
    }

    /// What a reload does not apply differs.
    pub(crate) fn needs_restart(&self, running: &Self) -> bool {
        self.workers != running.workers || self.trusted() != running.trusted()
    }

    /// See [`Tcp::proxy_protocol`].
    pub(crate) fn trusted(&self) -> Option<Vec<IpNet>> {
        self.proxy_protocol.as_ref().map(|trusted| trusted.get_ref().0.clone())
    }

    /// Values that make no sense.
    pub(super) fn check(&self) -> Result<(), (Range<usize>, String)> {
        for (span, value, low, high) in [
            (self.max_connections.span(), u64::from(*self.max_connections.get_ref()), 1, 1_000_000),
            (self.max_requests.span(), u64::from(*self.max_requests.get_ref()), 1, 10_000),
            (self.max_header.span(), self.max_header.get_ref().0, 4 << 10, 1 << 20),
            (self.send_window.span(), self.send_window.get_ref().0, 64 << 10, 1 << 30),
            (self.request_rate.span(), self.request_rate.get_ref().0, 0, 1 << 30),
            (self.response_rate.span(), self.response_rate.get_ref().0, 0, 1 << 30),
        ] {
            if !(low..=high).contains(&value) {
                return Err((span, format!("{value} is not between {low} and {high}")));
            }
        }
        for limit in [
            &self.handshake_timeout,
            &self.header_timeout,
            &self.idle_timeout,
            &self.request_timeout,
            &self.response_timeout,
        ] {
            if !(Duration::from_millis(100)..=Duration::from_secs(86_400)).contains(&limit.get_ref().0) {
                return Err((limit.span(), "give a time between \"100ms\" and \"24h\"".into()));
            }
        }
        Ok(())
    }
}

/// Addresses and prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trusted(pub(crate) Vec<IpNet>);

impl Serialize for Trusted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(ToString::to_string))
    }
}

/// A prefix, or an address alone.
fn network(text: &str) -> Result<IpNet, String> {
    let network = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    network.map_err(|_| format!("`{text}` is neither an address nor a prefix such as 10.0.0.0/8"))
}

impl<'de> Deserialize<'de> for Trusted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let networks: Result<_, _> = texts.iter().map(|text| network(text)).collect();
        networks.map(Self).map_err(serde::de::Error::custom)
    }
}

/// What a listener without TLS does: `[[http]] action`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Action {
    /// Sends everybody to https.
    #[default]
    Redirect,
    /// Serves the sites.
    Serve,
}

impl Action {
    /// All actions by name.
    pub(crate) const NAMES: [(&'static str, Self); 2] =
        [("redirect", Self::Redirect), ("serve", Self::Serve)];
}

named!(Action);

/// `[[http]]`: a listener without TLS.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Http {
    /// A TCP address, or `unix:` and a path.
    pub(crate) listen: Spanned<ListenAddress>,
    /// What it does.
    #[serde(default)]
    pub(crate) action: Action,
    /// The status of a redirection.
    #[serde(default = "permanent")]
    pub(crate) status: Spanned<u16>,
    /// The port of a redirection; that of `[server] listen` if absent.
    pub(crate) https_port: Option<u16>,
    /// Those who say in a PROXY header whom they speak for, and have to.
    pub(crate) proxy_protocol: Option<Spanned<Trusted>>,
}

fn permanent() -> Spanned<u16> {
    Spanned::new(0..0, 308)
}

impl Http {
    /// Has the path of a Unix socket begin at `base`.
    pub(super) fn resolve_path(&mut self, base: &Path) {
        if let Address::Unix(path) = &mut self.listen.get_mut().0 {
            *path = base.join(&*path);
        }
    }

    pub(super) fn check(&self) -> Result<(), (Range<usize>, String)> {
        if !matches!(self.status.get_ref(), 301 | 302 | 307 | 308) {
            return Err((self.status.span(), "give 301, 302, 307 or 308".into()));
        }
        if matches!(&self.listen.get_ref().0, Address::Tcp(address) if address.port() == 0) {
            return Err((self.listen.span(), "port 0 is not allowed; use a port such as 80".into()));
        }
        Ok(())
    }
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenAddress(pub(crate) Address);

impl Serialize for ListenAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ListenAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let address = match text.strip_prefix("unix:") {
            Some(path) => Address::Unix(PathBuf::from(path)),
            None => Address::Tcp(text.parse::<SocketAddr>().map_err(|_| {
                serde::de::Error::custom(format!(
                    "`{text}` is neither an address such as \"192.0.2.1:80\" nor unix:PATH"
                ))
            })?),
        };
        Ok(Self(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_the_addresses_that_begin_like_it() {
        // As connections are looked up.
        let has = |prefix: &str, address: &str| {
            network(prefix).unwrap().contains(&address.parse::<IpAddr>().unwrap().to_canonical())
        };
        assert!(has("10.0.0.0/8", "10.255.1.2") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("10.0.0.0/8", "::ffff:10.1.1.1") && !has("::/0", "10.1.1.1"));
        assert!(has("0.0.0.0/0", "203.0.113.9") && has("192.0.2.1", "192.0.2.1"));
        assert!(!has("192.0.2.1", "192.0.2.2"));
        assert!(has("2001:db8::/32", "2001:db8:ffff::1") && !has("2001:db8::/32", "2001:db9::1"));
        for wrong in ["", "x", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "10.0.0.0/"] {
            assert!(network(wrong).is_err(), "{wrong}");
        }
    }
}
