//! Header fields that are not passed on, in both directions (RFC 9110, section 7.6.1).

use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Names that a `Connection` field may list before the rest of it is not looked at and the message refused.
const MAX_LISTED: usize = 64;

/// Fields of the connection that a message came in by, whatever `Connection` says. `proxy` is none of HTTP: CGI programs
/// take it for a setting.
const HOP_BY_HOP: [HeaderName; 12] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-authentication-info"),
    HeaderName::from_static("proxy"),
    HeaderName::from_static("http2-settings"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Fields that `Connection` must not take from a message: what the message means depends on them (RFC 9110, section
/// 7.6.1, forbids senders to list them).
const KEPT: [HeaderName; 2] = [HOST, CONTENT_LENGTH];

/// A `Connection` field lists more than any sender does.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// The names that `Connection` fields list.
fn listed(headers: &HeaderMap) -> Result<Vec<HeaderName>, TooMany> {
    let mut names = Vec::new();
    for value in headers.get_all(CONNECTION) {
        for name in value.as_bytes().split(|byte| *byte == b',') {
            if names.len() == MAX_LISTED {
                return Err(TooMany);
            }
            // What is no name is the name of no field.
            if let Ok(name) = HeaderName::from_bytes(name.trim_ascii()) {
                names.push(name);
            }
        }
    }
    Ok(names)
}

/// Removes what ends here.
pub(crate) fn strip(headers: &mut HeaderMap) -> Result<(), TooMany> {
    if headers.contains_key(CONNECTION) {
        for name in listed(headers)? {
            if !KEPT.contains(&name) {
                headers.remove(name);
            }
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
    Ok(())
}

/// `TE` says that trailers are welcome.
pub(crate) fn takes_trailers(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(TE);
    let mut codings = lists.iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    codings.any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
}

/// A field that may be a trailer: none of framing, routing, authentication or content (RFC 9110, section 6.5.1).
fn may_trail(name: &HeaderName) -> bool {
    let name = name.as_str();
    let forbidden = [
        "authorization",
        "cache-control",
        "content-encoding",
        "content-length",
        "content-range",
        "content-type",
        "cookie",
        "date",
        "expect",
        "expires",
        "host",
        "location",
        "max-forwards",
        "range",
        "set-cookie",
        "vary",
        "age",
        "pragma",
        "retry-after",
        "warning",
        "www-authenticate",
        "forwarded",
        "via",
    ];
    !forbidden.contains(&name)
        && !name.starts_with("if-")
        && !name.starts_with("x-forwarded-")
        && !HOP_BY_HOP.iter().any(|field| field == name)
}

/// The value of a `Trailer` field that announces what of `headers`' own may come; `None` if nothing.
pub(crate) fn announced(headers: &HeaderMap) -> Option<HeaderValue> {
    let lists = headers.get_all(TRAILER);
    let names = lists.iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let names = names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).filter(may_trail);
    let names: Vec<_> = names.take(MAX_LISTED).collect();
    let text = names.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ");
    if text.is_empty() { None } else { HeaderValue::from_str(&text).ok() }
}

/// Removes from a trailer section what must not be there.
pub(crate) fn strip_trailers(trailers: HeaderMap) -> Option<HeaderMap> {
    let mut kept = HeaderMap::with_capacity(trailers.len());
    let mut current = None;
    for (name, value) in trailers {
        current = name.or(current);
        if let Some(name) = &current
            && may_trail(name)
        {
            kept.append(name, value);
        }
    }
    (!kept.is_empty()).then_some(kept)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        let field = |(name, value): &(&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        fields.iter().map(field).for_each(|(name, value)| {
            headers.append(name, value);
        });
        headers
    }

    #[test]
    fn fields_of_the_connection_end_here_and_others_do_not() {
        let mut headers = map(&[
            ("connection", "close, X-Secret ,,content-length"),
            ("connection", "X-Other"),
            ("x-secret", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("trailer", "digest"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
            ("proxy-authorization", "x"),
            ("proxy", "http://evil"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("accept", "*/*"),
        ]);
        strip(&mut headers).unwrap();
        assert_eq!(headers, map(&[("content-length", "3"), ("accept", "*/*")]));
    }

    #[test]
    fn a_list_without_end_is_refused() {
        let list = vec!["a"; MAX_LISTED + 1].join(",");
        assert_eq!(strip(&mut map(&[("connection", &list)])), Err(TooMany));
        assert_eq!(strip(&mut map(&[("connection", &list[2..])])), Ok(()));
    }

    #[test]
    fn trailers_change_no_framing() {
        let trailers =
            map(&[("digest", "a"), ("content-length", "1"), ("digest", "b"), ("te", "x"), ("if-match", "x")]);
        assert_eq!(strip_trailers(trailers), Some(map(&[("digest", "a"), ("digest", "b")])));
        assert_eq!(strip_trailers(map(&[("host", "x")])), None);
        assert_eq!(
            announced(&map(&[("trailer", "Digest, host,, x y"), ("trailer", "a")])).unwrap(),
            "digest, a"
        );
        assert_eq!(announced(&map(&[("trailer", "content-length")])), None);
        assert!(takes_trailers(&map(&[("te", "gzip;q=1, Trailers")])));
        assert!(!takes_trailers(&map(&[("te", "trailers;x"), ("x", "trailers")])));
    }

    proptest! {
        /// However it is spelled and wherever it stands, what `Connection` lists does not get through; all else does.
        #[test]
        fn no_listed_field_gets_through(
            fields in proptest::collection::vec(("x-[a-z0-9]{1,3}", "[ -~]{0,8}"), 0..30),
            list in proptest::collection::vec(("x-[a-z0-9]{1,3}", any::<bool>(), "[ \t]{0,2}", 0..3_usize), 0..20),
        ) {
            let mut headers = HeaderMap::new();
            for (name, value) in &fields {
                headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.trim().parse().unwrap());
            }
            let mut lines = [const { Vec::new() }; 3];
            for (name, upper, space, line) in &list {
                let name = if *upper { name.to_uppercase() } else { name.clone() };
                lines[*line].push(format!("{space}{name}{space}"));
            }
            for line in lines {
                headers.append(CONNECTION, line.join(",").trim().parse().unwrap());
            }
            let before = headers.clone();
            strip(&mut headers).unwrap();
            for (name, value) in &before {
                let is_listed = list.iter().any(|(listed, ..)| listed == name.as_str()) || name == CONNECTION;
                prop_assert_eq!(headers.get_all(name).iter().any(|kept| kept == value), !is_listed, "{}", name);
            }
        }
    }
}
