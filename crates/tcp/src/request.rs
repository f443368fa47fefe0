//! From hyper's request to a request head, by the rules of RFC 9110, RFC 9112 and RFC 9113.

use std::net::SocketAddr;

use expressway_web::{MAX_AUTHORITY, Protocol, RequestHead, Scheme};
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version};

/// More fields than any client sends, the crumbs of its cookie aside.
pub(crate) const MAX_FIELDS: usize = 128;

/// Octets of a refused request's target that are logged.
const MAX_LOGGED: usize = 1024;

/// A request's head, or that of a request that is not served, as far as it can be read, and the answer to it.
pub(crate) struct Reading {
    pub(crate) head: RequestHead,
    pub(crate) refusal: Option<StatusCode>,
    /// The client waits to be told that its body is wanted.
    pub(crate) expects: bool,
    /// What it says that its body has.
    pub(crate) content_length: Option<u64>,
}

/// Reads a request from `remote` on a connection of `scheme`. Header sections beyond `max_header` octets, counted as
/// RFC 9114, section 4.2.2 does, are refused.
pub(crate) fn read(parts: Parts, remote: SocketAddr, scheme: Scheme, max_header: usize) -> Reading {
    let Parts { method, uri, version, headers, .. } = parts;
    let protocol = match version {
        Version::HTTP_2 => Protocol::H2,
        Version::HTTP_10 => Protocol::Http10,
        _ => Protocol::Http11,
    };
    let size = size(&method, &uri, &headers);
    let (target, authority) = match target(&uri, &method) {
        Ok(target) => (Ok(target), authority(&uri, &headers, protocol)),
        Err(status) => (Err(status), Ok(String::new())),
    };
    let scheme = match uri.scheme_str() {
        None => Ok(scheme),
        Some("https") => Ok(Scheme::Https),
        Some("http") => Ok(Scheme::Http),
        Some(_) => Err(StatusCode::BAD_REQUEST),
    };
    let content_length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    // Clients of HTTP/1.0 do not wait (RFC 9110, section 10.1.1).
    let expects = protocol != Protocol::Http10
        && headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let refusal = if size > max_header || fields(&headers) > MAX_FIELDS {
        Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
    } else if method == Method::CONNECT {
        Some(StatusCode::NOT_IMPLEMENTED)
    } else {
        target.as_ref().err().or(authority.as_ref().err()).or(scheme.as_ref().err()).copied()
    };
    let headers = if refusal.is_some() { HeaderMap::new() } else { end_to_end(headers) };
    let logged = || {
        let path = uri.path();
        path.chars().take(MAX_LOGGED).collect()
    };
    let head = RequestHead {
        method,
        scheme: scheme.unwrap_or(Scheme::Https),
        authority: authority.unwrap_or_default(),
        target: if refusal.is_some() { logged() } else { target.unwrap_or_default() },
        headers,
        protocol,
        remote,
        client_subject: None,
    };
    Reading { head, refusal, expects, content_length }
}

/// Octets as RFC 9114, section 4.2.2 counts them, so that a request is as large over any protocol.
fn size(method: &Method, uri: &Uri, headers: &HeaderMap) -> usize {
    const FIELD: usize = 32;
    let path = uri.path_and_query().map_or(1, |path| path.as_str().len());
    let scheme = uri.scheme_str().map_or(0, |scheme| ":scheme".len() + scheme.len() + FIELD);
    let authority =
        uri.authority().map_or(0, |authority| ":authority".len() + authority.as_str().len() + FIELD);
    let pseudo =
        ":method".len() + method.as_str().len() + ":path".len() + path + 2 * FIELD + scheme + authority;
    pseudo + headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD).sum::<usize>()
}

/// Fields, of which a cookie's crumbs are one.
fn fields(headers: &HeaderMap) -> usize {
    let crumbs = headers.get_all(COOKIE).iter().count();
    headers.len() - crumbs.saturating_sub(1)
}

/// Path and query.
fn target(uri: &Uri, method: &Method) -> Result<String, StatusCode> {
    let target = uri.path_and_query().map_or("", |path| path.as_str());
    let is_good = match target {
        "*" => *method == Method::OPTIONS,
        // Of CONNECT; it is refused for its method.
        "" => *method == Method::CONNECT,
        target => {
            target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
        }
    };
    if is_good { Ok(target.to_owned()) } else { Err(StatusCode::BAD_REQUEST) }
}

/// Whom a request is for: `Host`, or the authority of the target, which has to be the same. A request of HTTP/1.1 without
/// `Host`, or with several, is a bad one (RFC 9112, section 3.2).
fn authority(uri: &Uri, headers: &HeaderMap, protocol: Protocol) -> Result<String, StatusCode> {
    const BAD: StatusCode = StatusCode::BAD_REQUEST;
    let mut hosts = headers.get_all(HOST).iter().map(HeaderValue::as_bytes);
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(BAD);
    }
    let target = uri.authority().map(|authority| authority.as_str().as_bytes());
    let authority = match (target, host) {
        (Some(target), Some(host)) if !target.eq_ignore_ascii_case(host) => return Err(BAD),
        (_, None) if protocol == Protocol::Http11 => return Err(BAD),
        (Some(one), _) | (None, Some(one)) => one,
        (None, None) if protocol == Protocol::Http10 => return Ok(String::new()),
        (None, None) => return Err(BAD),
    };
    let allowed = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'@' | b'/' | b'?' | b'#' | b'\\');
    if authority.is_empty() || authority.len() > MAX_AUTHORITY || !authority.iter().all(allowed) {
        return Err(BAD);
    }
    String::from_utf8(authority.to_vec()).map_err(|_| BAD)
}

/// Without what concerns the connection (RFC 9110, section 7.6.1), and with one cookie (RFC 9113, section 8.2.3).
fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .take(MAX_FIELDS)
        .collect();
    for name in named {
        // What a request is understood by is no matter of the connection, whoever says so.
        if !matches!(name, HOST | CONTENT_LENGTH | COOKIE) {
            headers.remove(name);
        }
    }
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE, EXPECT] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
    if headers.get(TE).is_some_and(|value| value != "trailers") {
        headers.remove(TE);
    }
    let crumbs: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(COOKIE, cookie);
    }
    headers
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn reading(version: Version, method: &str, uri: &str, fields: &[(&str, &str)]) -> Reading {
        let mut request = Request::builder().version(version).method(method).uri(uri);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        read(parts, "192.0.2.1:1".parse().unwrap(), Scheme::Https, 16 << 10)
    }

    fn refused(version: Version, method: &str, uri: &str, fields: &[(&str, &str)]) -> Option<u16> {
        reading(version, method, uri, fields).refusal.map(|status| status.as_u16())
    }

    const V1: Version = Version::HTTP_11;

    #[test]
    fn the_host_is_there_once_and_the_same_everywhere() {
        assert_eq!(refused(V1, "GET", "/", &[("host", "a.example")]), None);
        assert_eq!(refused(V1, "GET", "/", &[]), Some(400));
        assert_eq!(refused(V1, "GET", "/", &[("host", "")]), Some(400));
        assert_eq!(refused(V1, "GET", "/", &[("host", "a.example"), ("host", "a.example")]), Some(400));
        assert_eq!(refused(V1, "GET", "/", &[("host", "a@b.example")]), Some(400));
        assert_eq!(refused(V1, "GET", "/", &[("host", &"a".repeat(1000))]), Some(400));
        assert_eq!(refused(Version::HTTP_10, "GET", "/", &[]), None);
        let absolute = reading(V1, "GET", "http://a.example:8080/x?y", &[("host", "A.example:8080")]);
        assert_eq!(absolute.refusal, None);
        let head = absolute.head;
        assert_eq!((head.authority.as_str(), head.target.as_str()), ("a.example:8080", "/x?y"));
        assert_eq!(head.scheme, Scheme::Http);
        assert_eq!(refused(V1, "GET", "http://a.example/", &[("host", "b.example")]), Some(400));
        assert_eq!(refused(V1, "GET", "http://a.example/", &[]), Some(400));
        assert_eq!(refused(Version::HTTP_2, "GET", "https://a.example/", &[]), None);
        assert_eq!(
            refused(Version::HTTP_2, "GET", "https://a.example/", &[("host", "b.example")]),
            Some(400)
        );
        assert_eq!(refused(Version::HTTP_2, "GET", "ftp://a.example/", &[]), Some(400));
    }

    #[test]
    fn what_is_not_served_is_said_so() {
        let host = ("host", "a.example");
        assert_eq!(refused(V1, "CONNECT", "a.example:443", &[host]), Some(501));
        assert_eq!(refused(V1, "OPTIONS", "*", &[host]), None);
        assert_eq!(refused(V1, "GET", "*", &[host]), Some(400));
        let large = "x".repeat(17 << 10);
        assert_eq!(refused(V1, "GET", "/", &[host, ("x", &large)]), Some(431));
        let many: Vec<_> = (0..200).map(|_| ("x", "")).chain([host]).collect();
        assert_eq!(refused(V1, "GET", "/", &many), Some(431));
        let crumbs: Vec<_> = (0..200).map(|_| ("cookie", "a=b")).chain([host]).collect();
        assert_eq!(refused(V1, "GET", "/", &crumbs), None, "of a cookie there may be many");
    }

    #[test]
    fn what_concerns_the_connection_goes_no_further() {
        let reading = reading(
            V1,
            "POST",
            "/",
            &[
                ("host", "a.example"),
                ("connection", "keep-alive, X-Hop, host, content-length"),
                ("x-hop", "1"),
                ("keep-alive", "5"),
                ("upgrade", "h2c"),
                ("te", "gzip"),
                ("expect", "100-Continue"),
                ("content-length", "5"),
                ("cookie", "a=1"),
                ("cookie", "b=2"),
                ("x-end", "2"),
            ],
        );
        assert!(reading.expects && reading.content_length == Some(5));
        let names: Vec<_> = reading.head.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(reading.head.headers["cookie"], "a=1; b=2");
        assert_eq!(reading.head.headers["x-end"], "2");
    }
}
