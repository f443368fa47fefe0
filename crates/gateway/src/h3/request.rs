//! From a header section to a request head, by the rules of RFC 9114, sections 4.2 to 4.3.

use std::net::SocketAddr;

use bytes::Bytes;
use expressway_web::{MAX_AUTHORITY, Protocol, RequestHead, Scheme};
use http::header::{CONTENT_LENGTH, COOKIE, EXPECT, HOST, TE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::priority;
use crate::quic::engine::Priority;

/// More fields than any client sends, the crumbs of its cookie aside.
const MAX_FIELDS: usize = 128;

/// What a header section amounts to.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) head: RequestHead,
    /// What a connection is asked for (extended CONNECT, RFC 9220), where that may be.
    pub(crate) protocol: Option<String>,
    /// What the client says of it.
    pub(super) priority: Option<Priority>,
    /// The length that the client says its body has.
    pub(super) content_length: Option<u64>,
    /// It waits to be told to go on before it sends its body.
    pub(super) expects: bool,
}

/// Why there is no request in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The section is malformed; the stream is reset with H3_MESSAGE_ERROR.
    Malformed(&'static str),
    /// It is well formed but answered by this layer.
    Answer(StatusCode),
}

use Refusal::{Answer, Malformed};

#[derive(Default)]
struct Pseudo<'a> {
    method: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
    protocol: Option<&'a [u8]>,
    /// Requests may have the last.
    is_extended: bool,
}

impl<'a> Pseudo<'a> {
    fn set(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), Refusal> {
        let place = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            // Longer than a host can be, so it is not read at all.
            b":authority" if value.len() > MAX_AUTHORITY => return Err(Answer(StatusCode::BAD_REQUEST)),
            b":authority" => &mut self.authority,
            b":path" => &mut self.path,
            b":protocol" if self.is_extended => &mut self.protocol,
            _ => return Err(Malformed("unknown pseudo-header field")),
        };
        match place.replace(value) {
            None => Ok(()),
            Some(_) => Err(Malformed("repeated pseudo-header field")),
        }
    }
}

/// Header fields as they come.
#[derive(Default)]
struct Headers {
    map: HeaderMap,
    /// The cookie field, which clients may split (RFC 9114, section 4.2.1) and handlers expect to be one.
    cookie: Option<Vec<u8>>,
}

impl Headers {
    fn is_empty(&self) -> bool {
        self.map.is_empty() && self.cookie.is_none()
    }

    fn append(&mut self, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
        let (name, value) = field(name, value)?;
        if name == COOKIE {
            match &mut self.cookie {
                None => self.cookie = Some(value.as_bytes().to_vec()),
                Some(cookie) => {
                    cookie.extend_from_slice(b"; ");
                    cookie.extend_from_slice(value.as_bytes());
                }
            }
            return Ok(());
        }
        if self.map.len() == MAX_FIELDS {
            return Err(Answer(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
        }
        self.map.append(name, value);
        Ok(())
    }

    fn finish(mut self) -> Result<HeaderMap, Refusal> {
        if let Some(cookie) = self.cookie {
            let cookie =
                HeaderValue::from_maybe_shared(Bytes::from(cookie)).map_err(|_| Malformed("cookie"))?;
            self.map.insert(COOKIE, cookie);
        }
        Ok(self.map)
    }
}

/// Reads the fields of a request that came from `remote`; `max_size` bounds them, in bytes as RFC 9114,
/// section 4.2.2 counts. No field is read more often than a constant number of times.
pub(super) fn parse<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    remote: SocketAddr,
    max_size: u64,
) -> Result<Request, Refusal> {
    read(fields, remote, max_size, false)
}

/// The same where extended CONNECT is served, whose requests have a protocol.
pub(crate) fn parse_extended<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    remote: SocketAddr,
    max_size: u64,
) -> Result<Request, Refusal> {
    read(fields, remote, max_size, true)
}

fn read<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    remote: SocketAddr,
    max_size: u64,
    is_extended: bool,
) -> Result<Request, Refusal> {
    let mut pseudo = Pseudo { is_extended, ..Pseudo::default() };
    let mut headers = Headers::default();
    let mut size = 0u64;
    for (name, value) in fields {
        size += field_size(name, value);
        if size > max_size {
            return Err(Answer(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
        }
        if name.first() != Some(&b':') {
            headers.append(name, value)?;
        } else if headers.is_empty() {
            pseudo.set(name, value)?;
        } else {
            return Err(Malformed("pseudo-header field after a regular field"));
        }
    }
    let headers = headers.finish()?;
    let method = pseudo.method.ok_or(Malformed("missing :method"))?;
    let method = Method::from_bytes(method).map_err(|_| Malformed(":method is not a token"))?;
    if pseudo.protocol.is_some() && method != Method::CONNECT {
        return Err(Malformed(":protocol without CONNECT"));
    }
    if method == Method::CONNECT && pseudo.protocol.is_none() {
        if pseudo.scheme.is_some() || pseudo.path.is_some() || pseudo.authority.is_none() {
            return Err(Malformed("CONNECT must have :authority and neither :scheme nor :path"));
        }
        return Err(Answer(StatusCode::NOT_IMPLEMENTED));
    }
    let scheme = match pseudo.scheme.ok_or(Malformed("missing :scheme"))? {
        scheme if scheme.eq_ignore_ascii_case(b"https") => Scheme::Https,
        scheme if scheme.eq_ignore_ascii_case(b"http") => Scheme::Http,
        _ => return Err(Answer(StatusCode::BAD_REQUEST)),
    };
    let target = target(pseudo.path.ok_or(Malformed("missing :path"))?, &method)?;
    let authority = authority(pseudo.authority, &headers)?;
    let protocol = pseudo.protocol.map(|protocol| String::from_utf8_lossy(protocol).into_owned());
    let content_length = content_length(&headers)?;
    let priority = headers.get("priority").map(|value| priority::parse(value.as_bytes()));
    let expects =
        headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let head = RequestHead {
        method,
        scheme,
        authority,
        target,
        headers,
        protocol: Protocol::H3,
        remote,
        client_subject: None,
    };
    Ok(Request { head, protocol, priority, content_length, expects })
}

/// Bytes of a refused request's fields that are logged.
const MAX_LOGGED: usize = 1024;

/// The method of a section that is not served, as far as it can be read; else GET, whose answer has a body.
pub(super) fn method<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Method {
    find(fields, b":method").and_then(|value| Method::from_bytes(value).ok()).unwrap_or(Method::GET)
}

/// The beginning of a field of a section that is not served, for the log; empty if it is missing.
pub(super) fn text<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>, wanted: &[u8]) -> String {
    find(fields, wanted).map_or_else(String::new, |value| {
        String::from_utf8_lossy(&value[..value.len().min(MAX_LOGGED)]).into_owned()
    })
}

/// A pseudo-header field, which stands in front of all others, of which there may be any number.
fn find<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>, wanted: &[u8]) -> Option<&'a [u8]> {
    fields.take(MAX_FIELDS).find(|(name, _)| *name == wanted).map(|(_, value)| value)
}

/// Why a trailer section is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TrailerError {
    /// It is malformed.
    Malformed(&'static str),
    /// It has more fields, or bytes, than a header section may have.
    TooLarge,
}

/// Reads a trailer section: no pseudo-header fields, well-formed names and values, bounded as a header section.
pub(super) fn trailers<'a>(
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    max_size: u64,
) -> Result<HeaderMap, TrailerError> {
    let (mut size, mut trailers) = (0, HeaderMap::new());
    for (index, (name, value)) in fields.enumerate() {
        size += field_size(name, value);
        if index == MAX_FIELDS || size > max_size {
            return Err(TrailerError::TooLarge);
        }
        if name.first() == Some(&b':') {
            return Err(TrailerError::Malformed("pseudo-header field in trailers"));
        }
        match field(name, value) {
            Ok((name, value)) => trailers.append(name, value),
            Err(Malformed(reason)) => return Err(TrailerError::Malformed(reason)),
            Err(Answer(_)) => return Err(TrailerError::TooLarge),
        };
    }
    Ok(trailers)
}

/// Bytes of a field as RFC 9114, section 4.2.2 counts them.
fn field_size(name: &[u8], value: &[u8]) -> u64 {
    (name.len() + value.len() + 32) as u64
}

fn field(name: &[u8], value: &[u8]) -> Result<(HeaderName, HeaderValue), Refusal> {
    let name = HeaderName::from_lowercase(name).map_err(|_| Malformed("field name"))?;
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| matches!(byte, b' ' | b'\t'));
    if edge(value.first()) || edge(value.last()) {
        return Err(Malformed("white space around a field value"));
    }
    let value = HeaderValue::from_bytes(value).map_err(|_| Malformed("field value"))?;
    match name.as_str() {
        "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade" => {
            return Err(Malformed("connection-specific field"));
        }
        "te" if value != "trailers" => return Err(Malformed("te other than trailers")),
        _ => {}
    }
    debug_assert!(name != TE || value == "trailers");
    Ok((name, value))
}

fn target(path: &[u8], method: &Method) -> Result<String, Refusal> {
    let well_formed = match path {
        b"*" => *method == Method::OPTIONS,
        [b'/', rest @ ..] => rest.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#'),
        _ => false,
    };
    if !well_formed {
        return Err(Malformed(":path"));
    }
    String::from_utf8(path.to_vec()).map_err(|_| Malformed(":path"))
}

fn authority(pseudo: Option<&[u8]>, headers: &HeaderMap) -> Result<String, Refusal> {
    let mut hosts = headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Malformed("repeated host"));
    }
    if host.is_some_and(|host| host.len() > MAX_AUTHORITY) {
        return Err(Answer(StatusCode::BAD_REQUEST));
    }
    let authority = match (pseudo, host) {
        (Some(one), Some(other)) if !one.eq_ignore_ascii_case(other) => {
            return Err(Malformed(":authority and host differ"));
        }
        (Some(one), _) | (None, Some(one)) => one,
        (None, None) => return Err(Malformed("neither :authority nor host")),
    };
    let allowed = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'@' | b'/' | b'?' | b'#' | b'\\');
    if authority.is_empty() || !authority.iter().all(allowed) {
        return Err(Malformed(":authority"));
    }
    String::from_utf8(authority.to_vec()).map_err(|_| Malformed(":authority"))
}

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let mut length = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let text = value.to_str().map_err(|_| Malformed("content-length"))?;
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Malformed("content-length"));
        }
        let value: u64 = text.parse().map_err(|_| Malformed("content-length"))?;
        if length.is_some_and(|length| length != value) {
            return Err(Malformed("content-length fields differ"));
        }
        length = Some(value);
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "edge.example"), (":path", "/a?b=1")];

    #[test]
    fn a_connect_request_has_a_protocol_where_that_may_be() {
        let connect = [(":method", "CONNECT"), (":protocol", "webtransport"), GET[1], GET[2], GET[3]];
        let extended = |fields: &[(&str, &str)]| {
            let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
            parse_extended(fields, "192.0.2.1:1".parse().unwrap(), 16 << 10)
        };
        let request = extended(&connect).unwrap();
        assert_eq!((request.head.method, request.head.target), (Method::CONNECT, "/a?b=1".into()));
        assert_eq!(request.protocol.as_deref(), Some("webtransport"));
        assert!(matches!(read(&connect), Err(Malformed(_))), "where it is not served");
        for missing in 2..5 {
            let fields: Vec<_> = (0..5).filter(|at| *at != missing).map(|at| connect[at]).collect();
            assert!(matches!(extended(&fields), Err(Malformed(_))), "{missing}");
        }
        assert!(matches!(extended(&[connect[0], GET[2]]), Err(Answer(StatusCode::NOT_IMPLEMENTED))));
        assert!(matches!(extended(&[&GET[..], &connect[1..2]].concat()), Err(Malformed(_))));
        assert_eq!(extended(&GET).unwrap().protocol, None);
    }

    fn read(fields: &[(&str, &str)]) -> Result<Request, Refusal> {
        let remote = "192.0.2.1:1".parse().unwrap();
        parse(fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())), remote, 16 << 10)
    }

    fn with(extra: &[(&str, &str)]) -> Result<Request, Refusal> {
        read(&[&GET[..], extra].concat())
    }

    fn without(name: &str, extra: &[(&str, &str)]) -> Result<Request, Refusal> {
        let rest: Vec<_> = GET.iter().copied().filter(|(field, _)| *field != name).collect();
        read(&[&rest[..], extra].concat())
    }

    #[test]
    fn a_request_is_read_whole() {
        let request =
            with(&[("range", "bytes=0-1"), ("priority", "u=1, i"), ("content-length", "0")]).unwrap();
        assert_eq!(request.head.method, Method::GET);
        assert_eq!(request.head.authority, "edge.example");
        assert_eq!(request.head.target, "/a?b=1");
        assert_eq!(request.head.headers["range"], "bytes=0-1");
        assert_eq!(request.priority, Some(Priority { urgency: 1, incremental: true }));
        assert_eq!(request.content_length, Some(0));
    }

    #[test]
    fn malformed_sections_are_refused() {
        let malformed = |result: Result<Request, Refusal>, what: &str| {
            assert!(matches!(result, Err(Malformed(_))), "{what}: {result:?}");
        };
        for name in [":method", ":scheme", ":path", ":authority"] {
            malformed(without(name, &[]), name);
            let value = GET.iter().find(|(field, _)| *field == name).unwrap().1;
            malformed(with(&[(name, value)]), "twice");
        }
        malformed(with(&[(":status", "200")]), "response pseudo-header");
        malformed(with(&[("a", "b"), (":protocol", "x")]), "pseudo after regular");
        for (name, value) in [
            ("Upper", "x"),
            ("sp ace", "x"),
            ("", "x"),
            ("connection", "close"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "x"),
            ("te", "gzip"),
            ("x", " leading"),
            ("x", "trailing\t"),
            ("x", "a\r\nb"),
            ("x", "nul\0"),
            ("host", "other.example"),
            ("content-length", "-1"),
            ("content-length", "+1"),
            ("content-length", ""),
            ("content-length", "99999999999999999999"),
        ] {
            malformed(with(&[(name, value)]), &format!("{name}: {value}"));
        }
        malformed(with(&[("content-length", "1"), ("content-length", "2")]), "two lengths");
        malformed(with(&[("host", "edge.example"), ("host", "edge.example")]), "repeated host");
        for path in ["", "a", "*", "http://x/", "/a b", "/a#b", "/\u{e9}", "/\0"] {
            malformed(without(":path", &[(":path", path)]), path);
        }
        for authority in ["", "user@host", "a b", "a/b", "h\u{f6}st"] {
            malformed(without(":authority", &[(":authority", authority)]), authority);
        }
    }

    #[test]
    fn host_serves_where_authority_is_missing() {
        let request = without(":authority", &[("host", "h.example:8443")]).unwrap();
        assert_eq!(request.head.authority, "h.example:8443");
        assert!(with(&[("host", "EDGE.example")]).is_ok(), "hosts compare without case");
    }

    #[test]
    fn what_is_well_formed_but_not_served_is_answered() {
        let status = |result: Result<Request, Refusal>| match result {
            Err(Answer(status)) => status.as_u16(),
            other => panic!("{other:?}"),
        };
        assert_eq!(status(read(&[(":method", "CONNECT"), (":authority", "a:1")])), 501);
        assert_eq!(status(without(":scheme", &[(":scheme", "ftp")])), 400);
        let long = "x".repeat(20_000);
        assert_eq!(status(with(&[("x", &long)])), 431);
        let many: Vec<(&str, &str)> = vec![("x", "y"); MAX_FIELDS + 1];
        assert_eq!(status(with(&many)), 431);
        assert!(with(&many[1..]).is_ok());
        let authority = "a.".repeat(MAX_AUTHORITY / 2);
        assert!(without(":authority", &[]).is_err() && authority.len() == MAX_AUTHORITY);
        assert!(read(&[GET[0], GET[1], (":authority", &authority), GET[3]]).is_ok());
        let longer = authority + "a";
        assert_eq!(status(read(&[GET[0], GET[1], (":authority", &longer), GET[3]])), 400);
        assert_eq!(status(without(":authority", &[("host", &longer)])), 400);
        assert_eq!(status(with(&[("host", &longer)])), 400);
        assert!(without(":path", &[(":path", "*")]).is_err());
        let options = [(":method", "OPTIONS"), (":scheme", "https"), (":authority", "a"), (":path", "*")];
        assert!(read(&options).is_ok());
    }

    #[test]
    fn what_can_be_read_of_a_refused_section_is() {
        let fields = |list: &'static [(&'static str, &'static str)]| {
            list.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()))
        };
        let head = &[(":method", "HEAD"), (":path", "/a")];
        assert_eq!(method(fields(head)), Method::HEAD, "its answer must have no body");
        assert_eq!(text(fields(head), b":path"), "/a");
        assert_eq!(text(fields(head), b":authority"), "");
        assert_eq!(method(fields(&[(":method", "no token")])), Method::GET);
        let long = vec![0xff; 5000];
        let logged = text([(b":path".as_slice(), &long[..])].into_iter(), b":path");
        assert_eq!(logged.chars().count(), MAX_LOGGED);
    }

    #[test]
    fn cookie_crumbs_are_joined_and_te_trailers_passes() {
        let request = with(&[("cookie", "a=1"), ("te", "trailers"), ("cookie", "b=2")]).unwrap();
        assert_eq!(request.head.headers["cookie"], "a=1; b=2");
        assert_eq!(request.head.headers.get_all("cookie").iter().count(), 1);
        let crumbs: Vec<(&str, &str)> = vec![("cookie", "a=1"); MAX_FIELDS + 1];
        let request = with(&crumbs).unwrap();
        assert_eq!(request.head.headers["cookie"], ["a=1"; MAX_FIELDS + 1].join("; "), "they are one field");
        assert!(with(&[("cookie", "a=1"), (":protocol", "x")]).is_err(), "a crumb is a regular field");
        assert!(matches!(with(&[("cookie", "a"), ("cookie", "b\0")]), Err(Malformed(_))));
        let behind = [&[("cookie", "a=1")], &GET[..]].concat();
        assert!(matches!(read(&behind), Err(Malformed(_))), "pseudo-header fields behind a cookie");
        assert_eq!(with(&[("cookie", "")]).unwrap().head.headers["cookie"], "");
    }

    #[test]
    fn trailers_carry_no_pseudo_fields() {
        let check =
            |name: &'static str| super::trailers([(name.as_bytes(), b"x".as_slice())].into_iter(), 1000);
        assert!(check("digest").is_ok());
        assert!(check(":path").is_err());
        assert!(check("Upper").is_err());
    }

    #[test]
    fn trailers_are_bounded_as_headers_are() {
        let trailers = |count: usize, value: &'static [u8], last: &'static [u8]| {
            let fields = std::iter::repeat_n((b"x".as_slice(), value), count).chain([(last, value)]);
            super::trailers(fields, 16 << 10).map(|trailers| trailers.len())
        };
        assert_eq!(trailers(MAX_FIELDS - 1, b"", b"x"), Ok(MAX_FIELDS));
        assert_eq!(trailers(MAX_FIELDS, b"", b"x"), Err(TrailerError::TooLarge));
        assert!(
            matches!(trailers(MAX_FIELDS - 1, b"", b"Upper"), Err(TrailerError::Malformed(_))),
            "all are checked"
        );
        assert_eq!(trailers(10, &[b'x'; 2000], b"x"), Err(TrailerError::TooLarge));
    }

    #[test]
    fn what_is_refused_is_not_searched_to_its_end() {
        let mut seen = 0;
        let fields = std::iter::repeat_with(|| {
            seen += 1;
            (b"x".as_slice(), b"".as_slice())
        });
        assert_eq!(method(fields.take(100_000)), Method::GET);
        assert_eq!(seen, MAX_FIELDS);
    }
}
