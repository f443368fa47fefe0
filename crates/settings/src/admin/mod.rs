//! `[admin]`, which is the same for every command with an admin listener: its address, who may use it, and the
//! limits on clients.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Spanned;

use crate::{ConfigError, Size, SourceFile, Span, named};

mod token;

pub use token::{TOKENS, Token, read_tokens};

/// Octets of a unix socket's path at most: `sun_path` less the zero that ends it (unix(7)).
const LONGEST_PATH: usize = 107;

/// Where an admin listener is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix("unix:") else {
            return text.parse().map(Self::Tcp).map_err(|_| {
                format!("`{text}` is neither an address such as \"127.0.0.1:9180\" nor unix:PATH")
            });
        };
        match path.len() {
            0 => Err("give a path, such as unix:/run/expressway/admin.sock".into()),
            1..=LONGEST_PATH => Ok(Self::Unix(path.into())),
            _ => Err(format!(
                "the path of a unix socket has at most {LONGEST_PATH} bytes: choose a shorter one"
            )),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A page that may be asked for without a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// `/healthz`.
    Health,
    /// `/metrics`.
    Metrics,
}

impl Open {
    const NAMES: [(&'static str, Self); 2] = [("/healthz", Self::Health), ("/metrics", Self::Metrics)];
}

named!(Open);

/// What clients of an admin listener may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent connections. A new one displaces the connection that has been idle longest without a
    /// request.
    pub connections: usize,
    /// How long the head of a request may take to come, whole; also how long a connection may be idle.
    pub header_timeout: Duration,
    /// How long a client may take to take a response, whole.
    pub write_timeout: Duration,
    /// Bytes of the head of a request, at least 8 KiB.
    pub header: usize,
    /// Bytes of pages that clients have been answered with and not taken. A page that would be beyond that is refused.
    pub pages: usize,
}

impl Default for Limits {
    /// 64 connections, 10 s for a head, 10 s for a response, heads of 16 KiB, 64 MiB of pages.
    fn default() -> Self {
        Self {
            connections: 64,
            header_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(10),
            header: 16 << 10,
            pages: 64 << 20,
        }
    }
}

/// The table as it is written.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// A TCP address, or `unix:` and a path. Keep the former off public interfaces.
    pub listen: Spanned<Address>,
    /// Rights to the unix socket: who may write to it may connect. `None`: [`Section::SOCKET_MODE`].
    pub socket_mode: Option<Spanned<u32>>,
    /// The unix socket's group, by name or number; `None`: the process's.
    pub socket_group: Option<Spanned<String>>,
    /// A file with the tokens of those who may ask ([`read_tokens`]); `None`: whoever reaches the listener may.
    pub token_file: Option<Spanned<PathBuf>>,
    /// What may be asked for without a token.
    #[serde(default = "open")]
    pub open: Vec<Open>,
    /// Connections at once. Who comes then has the place of the one that has asked nothing for longest.
    #[serde(default = "max_connections")]
    max_connections: Spanned<u32>,
    /// How long a request's head may take to come, whole, and how long a connection may be idle.
    #[serde(default = "header_timeout")]
    header_timeout: Spanned<Span>,
    /// How long a client may take to take a response, whole.
    #[serde(default = "write_timeout")]
    write_timeout: Spanned<Span>,
    /// Bytes of a request's head.
    #[serde(default = "max_header")]
    max_header: Spanned<Size>,
    /// Bytes of pages that clients were answered with and have not taken.
    #[serde(default = "max_pages")]
    max_pages: Spanned<Size>,
}

fn open() -> Vec<Open> {
    vec![Open::Health]
}

fn max_connections() -> Spanned<u32> {
    Spanned::new(0..0, Limits::default().connections as u32)
}

fn header_timeout() -> Spanned<Span> {
    Spanned::new(0..0, Span(Limits::default().header_timeout))
}

fn write_timeout() -> Spanned<Span> {
    Spanned::new(0..0, Span(Limits::default().write_timeout))
}

fn max_header() -> Spanned<Size> {
    Spanned::new(0..0, Size(Limits::default().header as u64))
}

fn max_pages() -> Spanned<Size> {
    Spanned::new(0..0, Size(Limits::default().pages as u64))
}

impl Section {
    /// The process's user and group.
    pub const SOCKET_MODE: u32 = 0o660;

    /// Of a listener there, and all else as it is by default.
    pub fn at(listen: Address) -> Self {
        Self {
            listen: Spanned::new(0..0, listen),
            socket_mode: None,
            socket_group: None,
            token_file: None,
            open: open(),
            max_connections: max_connections(),
            header_timeout: header_timeout(),
            write_timeout: write_timeout(),
            max_header: max_header(),
            max_pages: max_pages(),
        }
    }

    /// The same with other limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        let size = |bytes: usize| Spanned::new(0..0, Size(bytes as u64));
        Self {
            max_connections: Spanned::new(0..0, limits.connections as u32),
            header_timeout: Spanned::new(0..0, Span(limits.header_timeout)),
            write_timeout: Spanned::new(0..0, Span(limits.write_timeout)),
            max_header: size(limits.header),
            max_pages: size(limits.pages),
            ..self
        }
    }

    /// What clients may take.
    pub fn limits(&self) -> Limits {
        Limits {
            connections: *self.max_connections.get_ref() as usize,
            header_timeout: self.header_timeout.get_ref().0,
            write_timeout: self.write_timeout.get_ref().0,
            header: self.max_header.get_ref().0 as usize,
            pages: self.max_pages.get_ref().0 as usize,
        }
    }

    /// Has relative paths begin at `base`.
    pub fn resolve_paths(&mut self, base: &Path) {
        if let Address::Unix(path) = self.listen.get_mut() {
            *path = base.join(&*path);
        }
        if let Some(file) = &mut self.token_file {
            let path = file.get_mut();
            *path = base.join(&*path);
        }
    }

    /// Checks values, but no files.
    ///
    /// # Errors
    /// What is wrong, and at which bytes of the file.
    pub fn check(&self) -> Result<(), (Range<usize>, String)> {
        let is_tcp = matches!(self.listen.get_ref(), Address::Tcp(_));
        if let Some(mode) = &self.socket_mode {
            if is_tcp {
                return Err((mode.span(), "`listen` is not a unix socket: remove `socket_mode`".into()));
            }
            if !(1..=0o777).contains(mode.get_ref()) {
                return Err((mode.span(), "give rights from 0o001 to 0o777, such as 0o660".into()));
            }
        }
        if let Some(group) = self.socket_group.as_ref().filter(|_| is_tcp) {
            return Err((group.span(), "`listen` is not a unix socket: remove `socket_group`".into()));
        }
        for (span, value, low, high) in [
            (self.max_connections.span(), u64::from(*self.max_connections.get_ref()), 1, 10_000),
            (self.max_header.span(), self.max_header.get_ref().0, 8 << 10, 1 << 20),
            (self.max_pages.span(), self.max_pages.get_ref().0, 1 << 20, 1 << 32),
        ] {
            if !(low..=high).contains(&value) {
                return Err((span, format!("{value} is not between {low} and {high}")));
            }
        }
        for limit in [&self.header_timeout, &self.write_timeout] {
            if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&limit.get_ref().0) {
                return Err((limit.span(), "give a time between \"100ms\" and \"1h\"".into()));
            }
        }
        Ok(())
    }
}

impl SourceFile {
    /// The file's `[admin]`, checked with its tokens; paths begin at the file's folder.
    ///
    /// # Errors
    /// With file, line and key.
    pub fn admin(&self, section: Option<Section>) -> Result<Option<Section>, ConfigError> {
        let Some(mut section) = section else { return Ok(None) };
        section.resolve_paths(self.file.parent().unwrap_or(Path::new(".")));
        section.check().map_err(|(span, problem)| self.at(span, problem))?;
        self.check_tokens(&section)?;
        Ok(Some(section))
    }

    /// Checks the tokens of the file's `[admin]`.
    ///
    /// # Errors
    /// With file, line and key.
    pub fn check_tokens(&self, section: &Section) -> Result<(), ConfigError> {
        let Some(file) = &section.token_file else { return Ok(()) };
        let wrong = |problem| self.at(file.span(), format!("{} {problem}", file.get_ref().display()));
        read_tokens(file.get_ref()).map(drop).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> Result<Section, String> {
        let mut section: Section = toml::from_str(text).map_err(|error| error.to_string())?;
        section.resolve_paths(Path::new("/etc/expressway"));
        section.check().map_err(|(span, problem)| format!("{problem} at {}", &text[span]))?;
        Ok(section)
    }

    #[test]
    fn an_address_or_the_path_of_a_socket() {
        for text in ["127.0.0.1:9180", "[::1]:80", "unix:/run/expressway/admin.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for (text, says) in [
            ("localhost:80", "nor unix:PATH"),
            ("unix:", "give a path"),
            (&format!("unix:/{}", "a".repeat(LONGEST_PATH)), "at most 107 bytes"),
        ] {
            assert!(text.parse::<Address>().unwrap_err().contains(says), "{text}");
        }
    }

    #[test]
    fn paths_begin_at_the_file() {
        let section = section("listen = \"unix:admin.sock\"\ntoken_file = \"admin.token\"").unwrap();
        assert_eq!(section.listen.get_ref().to_string(), "unix:/etc/expressway/admin.sock");
        assert_eq!(section.token_file.unwrap().get_ref(), Path::new("/etc/expressway/admin.token"));
        assert_eq!(section.open, [Open::Health]);
    }

    #[test]
    fn what_is_wrong_is_said_where_it_is() {
        for (text, says) in [
            ("listen = \"127.0.0.1:1\"\nsocket_mode = 0o600", "remove `socket_mode` at 0o600"),
            ("listen = \"127.0.0.1:1\"\nsocket_group = \"adm\"", "remove `socket_group` at \"adm\""),
            ("listen = \"unix:a\"\nsocket_mode = 0o1777", "such as 0o660 at 0o1777"),
            ("listen = \"unix:a\"\nopen = [\"/config\"]", "`/config` is not one of /healthz, /metrics"),
            ("listen = \"unix:a\"\nmax_connections = 0", "between 1 and 10000"),
            ("socket_mode = 0o600", "missing field `listen`"),
        ] {
            let error = section(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
