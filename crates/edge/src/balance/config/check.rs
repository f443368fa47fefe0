//! `[service.check]`: how nodes are checked, and which answers are good.

use std::time::Duration;

use expressway_settings::{ConfigError, SourceFile, Span, named};
use serde::Deserialize;
use toml::Spanned;

/// The longest `body` and `alpn`, in bytes.
const TEXT: usize = 255;

/// What a node is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// To accept a connection.
    Tcp,
    /// To answer a request over HTTP/1.
    Http,
    /// To answer a QUIC packet of an unknown version with the versions that it has.
    Quic,
    /// To complete a QUIC handshake.
    QuicHandshake,
    /// To answer a request over HTTP/3.
    Http3,
}

impl CheckKind {
    const NAMES: [(&'static str, Self); 5] = [
        ("tcp", Self::Tcp),
        ("http", Self::Http),
        ("quic", Self::Quic),
        ("quic-handshake", Self::QuicHandshake),
        ("http3", Self::Http3),
    ];
}
named!(CheckKind);

/// `[service.check]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What is asked.
    pub kind: CheckKind,
    /// At which port of the node; the service's if absent.
    pub port: Option<u16>,
    /// The target of an HTTP request.
    pub path: String,
    /// Its host, and the name that TLS asks for; the node's address, and none, if absent.
    pub host: Option<String>,
    /// Protocols that a QUIC handshake offers.
    pub alpn: Vec<String>,
    /// Good statuses; those of 2xx and 3xx if empty.
    pub status: Vec<u16>,
    /// How the body of a good response begins.
    pub body: String,
    /// Time between two questions.
    pub interval: Duration,
    /// Time for an answer.
    pub timeout: Duration,
    /// Good answers in a row that bring a node back.
    pub rise: u32,
    /// Failures in a row that take it down.
    pub fall: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCheck {
    kind: CheckKind,
    port: Option<u16>,
    path: Option<Spanned<String>>,
    host: Option<Spanned<String>>,
    alpn: Option<Spanned<Vec<String>>>,
    #[serde(default)]
    status: Vec<Spanned<u16>>,
    body: Option<Spanned<String>>,
    interval: Option<Spanned<Span>>,
    timeout: Option<Spanned<Span>>,
    rise: Option<u32>,
    fall: Option<u32>,
}

/// Checks a table.
pub(super) fn check(source: &SourceFile, raw: RawCheck) -> Result<Check, ConfigError> {
    let span = |value: Option<Spanned<Span>>, default: u64| match value {
        Some(value) if value.get_ref().0 < Duration::from_millis(10) => {
            Err(source.at(value.span(), "must be 10ms or more"))
        }
        value => Ok(value.map_or(Duration::from_secs(default), |value| value.into_inner().0)),
    };
    let plain = |value: &Spanned<String>| {
        let fine = value.get_ref().bytes().all(|byte| byte.is_ascii_graphic());
        if fine { Ok(()) } else { Err(source.at(value.span(), "must be printable ASCII without spaces")) }
    };
    for text in [&raw.path, &raw.host].into_iter().flatten() {
        plain(text)?;
    }
    if let Some(path) = raw.path.as_ref().filter(|path| !path.get_ref().starts_with('/')) {
        return Err(source.at(path.span(), "must begin with /"));
    }
    let is_http = matches!(raw.kind, CheckKind::Http | CheckKind::Http3);
    let misplaced = [
        (raw.path.as_ref().map(Spanned::span), is_http, "of http and http3"),
        (raw.status.first().map(Spanned::span), is_http, "of http and http3"),
        (raw.body.as_ref().map(Spanned::span), is_http, "of http and http3"),
        (raw.alpn.as_ref().map(Spanned::span), raw.kind == CheckKind::QuicHandshake, "of quic-handshake"),
    ];
    for (span, fits, of) in misplaced {
        if let Some(span) = span.filter(|_| !fits) {
            return Err(source.at(span, format!("is a key {of}, not of kind = \"{}\"", raw.kind)));
        }
    }
    if let Some(status) = raw.status.iter().find(|status| !(200..600).contains(status.get_ref())) {
        return Err(source.at(status.span(), "statuses are from 200 to 599"));
    }
    if let Some(body) = raw.body.as_ref().filter(|body| body.get_ref().len() > TEXT) {
        return Err(source.at(body.span(), format!("must have {TEXT} bytes at most")));
    }
    let fits = |name: &String| (1..=TEXT).contains(&name.len());
    if let Some(alpn) = raw.alpn.as_ref().filter(|alpn| {
        let names = alpn.get_ref();
        names.is_empty() || names.len() > 8 || !names.iter().all(fits)
    }) {
        return Err(source.at(alpn.span(), format!("must be 1 to 8 names of 1 to {TEXT} bytes")));
    }
    Ok(Check {
        kind: raw.kind,
        port: raw.port,
        path: raw.path.map_or_else(|| "/".to_owned(), Spanned::into_inner),
        host: raw.host.map(Spanned::into_inner),
        alpn: raw.alpn.map_or_else(|| vec!["h3".to_owned()], Spanned::into_inner),
        status: raw.status.into_iter().map(Spanned::into_inner).collect(),
        body: raw.body.map(Spanned::into_inner).unwrap_or_default(),
        interval: span(raw.interval, 2)?,
        timeout: span(raw.timeout, 1)?,
        rise: raw.rise.unwrap_or(2).max(1),
        fall: raw.fall.unwrap_or(3).max(1),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(check: &str) -> Result<Check, String> {
        let text = format!(
            "[[service]]\nlisten = \"192.0.2.10:443\"\nprotocol = \"udp\"\n[service.check]\n{check}\n[[service.node]]\n\
             address = \"192.0.2.21\"\n"
        );
        let config = Config::parse(SourceFile { file: "b.toml".into(), text });
        Ok(config.map_err(|error| error.to_string())?.services[0].check.clone().unwrap())
    }

    #[test]
    fn a_whole_check_is_read() {
        let check = parse(
            "kind = \"http3\"\nport = 8443\npath = \"/live\"\nhost = \"edge.example\"\nstatus = [200, 204]\nbody = \"ok\"\n\
             interval = \"1s\"\ntimeout = \"500ms\"\nrise = 1\nfall = 5",
        );
        let check = check.unwrap();
        assert_eq!((check.kind, check.port, check.path.as_str()), (CheckKind::Http3, Some(8443), "/live"));
        assert_eq!((check.status.as_slice(), check.body.as_str()), (&[200, 204][..], "ok"));
        assert_eq!((check.rise, check.fall), (1, 5));
        assert_eq!(parse("kind = \"quic-handshake\"").unwrap().alpn, ["h3"]);
        assert_eq!(parse("kind = \"quic-handshake\"\nalpn = [\"moq-00\"]").unwrap().alpn, ["moq-00"]);
    }

    #[test]
    fn what_a_kind_does_not_have_is_refused() {
        for (check, expected) in [
            (
                "kind = \"tcp\"\npath = \"/\"",
                "b.toml:6: service.0.check.path: is a key of http and http3, not of kind = \"tcp\"",
            ),
            ("kind = \"quic\"\nstatus = [200]", "is a key of http and http3"),
            ("kind = \"quic-handshake\"\nbody = \"x\"", "service.0.check.body: is a key of http and http3"),
            ("kind = \"http3\"\nalpn = [\"h3\"]", "is a key of quic-handshake"),
            ("kind = \"http3\"\nstatus = [100]", "statuses are from 200 to 599"),
            ("kind = \"quic-handshake\"\nalpn = []", "1 to 8 names"),
            ("kind = \"ping\"", "`ping` is not one of tcp, http, quic, quic-handshake, http3"),
            ("kind = \"http\"\npath = \"live\"", "must begin with /"),
        ] {
            let error = parse(check).unwrap_err();
            assert!(error.contains(expected), "{error} | {expected}");
            assert_eq!(error.lines().count(), 1);
        }
        let long = parse(&format!("kind = \"http\"\nbody = \"{}\"", "x".repeat(256))).unwrap_err();
        assert!(long.contains("255 bytes at most"), "{long}");
    }
}
