//! What an origin learns about the client: `Forwarded` (RFC 7239), `X-Forwarded-*` and `Via` (RFC 9110, section 7.6.3).

use expressway_web::{Protocol, RequestHead};
use http::header::{FORWARDED, VIA};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{Forwarded, OriginOptions};

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const AS_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What only a trusted peer may say.
const CLAIMS: [HeaderName; 9] = [
    FORWARDED,
    FOR,
    PROTO,
    AS_HOST,
    HeaderName::from_static("x-forwarded-port"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-forwarded-server"),
    HeaderName::from_static("x-forwarded-ssl"),
    HeaderName::from_static("x-real-ip"),
];

/// Times that a request may have come through here: more are a loop.
const MAX_PASSES: usize = 8;

/// The request has come through here too often.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Loop;

/// Sets the fields about the client of `request` in `headers`, which are those that it sent.
pub(crate) fn describe(
    headers: &mut HeaderMap,
    request: &RequestHead,
    options: &OriginOptions,
) -> Result<(), Loop> {
    let client = request.remote.ip().to_canonical();
    if !options.trust.iter().any(|network| network.contains(&client)) {
        CLAIMS.iter().for_each(|name| {
            headers.remove(name);
        });
    }
    if let Some(name) = &options.client_subject {
        remove_all_spellings(headers, name);
        if let Some(subject) = &request.client_subject {
            headers.insert(name, subject_value(subject));
        }
    }
    let (proto, host) = (request.scheme.as_str(), request.authority.as_str());
    if matches!(options.forwarded, Forwarded::Both | Forwarded::XForwarded) {
        append(headers, FOR, client.to_string());
        // Of a trusted peer's request they say what its client used.
        if !headers.contains_key(PROTO) {
            headers.insert(PROTO, HeaderValue::from_static(proto));
        }
        if !headers.contains_key(AS_HOST)
            && let Ok(host) = HeaderValue::from_str(host)
        {
            headers.insert(AS_HOST, host);
        }
    }
    if matches!(options.forwarded, Forwarded::Both | Forwarded::Rfc7239) {
        let node = if client.is_ipv6() { format!("\"[{client}]\"") } else { client.to_string() };
        append(headers, FORWARDED, format!("for={node};host=\"{host}\";proto={proto}"));
    }
    if let Some(via) = &options.via {
        if passes(headers, via) >= MAX_PASSES {
            return Err(Loop);
        }
        append(headers, VIA, format!("{} {via}", version(request.protocol)));
    }
    Ok(())
}

/// Removes `name`, and what an origin may read as it: CGI, WSGI and others do not tell `-` from `_`.
pub(crate) fn remove_all_spellings(headers: &mut HeaderMap, name: &HeaderName) {
    let same = |a: u8, b: u8| a == b || matches!((a, b), (b'-', b'_') | (b'_', b'-'));
    let is_it = |other: &HeaderName| {
        let (name, other) = (name.as_str().as_bytes(), other.as_str().as_bytes());
        name.len() == other.len() && name.iter().zip(other).all(|(&a, &b)| same(a, b))
    };
    let spellings: Vec<HeaderName> = headers.keys().filter(|other| is_it(other)).cloned().collect();
    for spelling in spellings {
        headers.remove(spelling);
    }
}

/// A subject as a field's value. Octets that are not printable ASCII are escaped as RFC 4514 has it (section 2.4): `\C3\BC`.
fn subject_value(subject: &str) -> HeaderValue {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut value = Vec::with_capacity(subject.len());
    for &octet in subject.as_bytes() {
        match octet {
            b' '..=b'~' => value.push(octet),
            _ => value.extend([b'\\', DIGITS[usize::from(octet >> 4)], DIGITS[usize::from(octet & 15)]]),
        }
    }
    HeaderValue::from_bytes(&value).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// How often `via` stands in `Via` fields.
fn passes(headers: &HeaderMap, via: &str) -> usize {
    let members = headers.get_all(VIA).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let names = members.filter_map(|member| member.trim_ascii().split(|byte| *byte == b' ').nth(1));
    names.filter(|name| *name == via.as_bytes()).count()
}

fn version(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http10 => "1.0",
        Protocol::Http11 => "1.1",
        Protocol::H2 => "2.0",
        Protocol::H3 => "3.0",
    }
}

/// Adds a member to the list that a field is. Its lines become one, since not everybody reads more.
fn append(headers: &mut HeaderMap, name: HeaderName, member: String) {
    let mut list = Vec::new();
    for value in headers.get_all(&name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(member.as_bytes());
    if let Ok(value) = HeaderValue::from_bytes(&list) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use expressway_web::Scheme;
    use http::Method;

    use super::*;
    use crate::Endpoint;

    fn request(remote: &str) -> RequestHead {
        RequestHead {
            method: Method::GET,
            scheme: Scheme::Https,
            authority: "a.example:8443".into(),
            target: "/".into(),
            headers: HeaderMap::new(),
            protocol: Protocol::H3,
            remote: remote.parse().unwrap(),
            client_subject: None,
        }
    }

    fn options(trust: &[&str]) -> OriginOptions {
        let trust = trust.iter().map(|network| network.parse().unwrap()).collect();
        OriginOptions { trust, ..OriginOptions::new("app", Endpoint::parse("http://app").unwrap()) }
    }

    fn claims() -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-forwarded-for", "192.0.2.7"),
            ("x-forwarded-for", "192.0.2.8"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "evil"),
            ("x-real-ip", "192.0.2.7"),
            ("forwarded", "for=192.0.2.7"),
            ("via", "1.1 other"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_stranger_is_not_believed() {
        let mut headers = claims();
        describe(&mut headers, &request("198.51.100.1:5"), &options(&["10.0.0.0/8"])).unwrap();
        assert_eq!(headers["x-forwarded-for"], "198.51.100.1");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["x-forwarded-host"], "a.example:8443");
        assert_eq!(headers["forwarded"], "for=198.51.100.1;host=\"a.example:8443\";proto=https");
        assert_eq!(headers["via"], "1.1 other, 3.0 expressway");
        assert!(!headers.contains_key("x-real-ip"));
    }

    #[test]
    fn what_a_trusted_peer_says_is_added_to() {
        let mut headers = claims();
        describe(&mut headers, &request("[::ffff:10.1.2.3]:5"), &options(&["10.0.0.0/8"])).unwrap();
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7, 192.0.2.8, 10.1.2.3");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["forwarded"], "for=192.0.2.7, for=10.1.2.3;host=\"a.example:8443\";proto=https");
        assert_eq!(headers.get_all("x-forwarded-for").iter().count(), 1);
    }

    #[test]
    fn ipv6_is_quoted_and_fields_can_be_turned_off() {
        let mut headers = HeaderMap::new();
        let all = options(&[]);
        describe(&mut headers, &request("[2001:db8::1]:5"), &all).unwrap();
        assert!(headers["forwarded"].to_str().unwrap().starts_with("for=\"[2001:db8::1]\";"));
        let mut headers = claims();
        let none = OriginOptions { forwarded: Forwarded::Off, via: None, ..all };
        describe(&mut headers, &request("[2001:db8::1]:5"), &none).unwrap();
        assert_eq!(headers.len(), 1, "{headers:?}");
        assert_eq!(headers["via"], "1.1 other");
    }

    #[test]
    fn the_subject_of_a_certificate_is_ours_to_tell() {
        let name = HeaderName::from_static("x-client-subject");
        let options = OriginOptions { client_subject: Some(name.clone()), ..options(&["0.0.0.0/0"]) };
        let claimed = || {
            let mut headers = HeaderMap::new();
            for claim in ["x-client-subject", "x_client_subject", "x-client_subject", "x-client-subjects"] {
                headers.append(HeaderName::from_static(claim), HeaderValue::from_static("CN=root"));
                headers.append(HeaderName::from_static(claim), HeaderValue::from_static("CN=root"));
            }
            headers
        };
        let mut headers = claimed();
        describe(&mut headers, &request("192.0.2.1:1"), &options).unwrap();
        assert!(!headers.contains_key(&name) && !headers.contains_key("x_client_subject"));
        assert_eq!(headers.get_all("x-client-subjects").iter().count(), 2, "another name");
        let mut headers = claimed();
        let subject = Some("CN=J\u{fc}rgen\n,O=Example".into());
        let shown = RequestHead { client_subject: subject, ..request("192.0.2.1:1") };
        describe(&mut headers, &shown, &options).unwrap();
        assert_eq!(headers[&name], "CN=J\\C3\\BCrgen\\0A,O=Example");
        assert_eq!(headers.get_all(&name).iter().count(), 1);
        assert!(!headers.contains_key("x-client_subject"));
    }

    #[test]
    fn a_loop_ends() {
        let mut headers = HeaderMap::new();
        let options = options(&[]);
        let passes =
            (0..20).take_while(|_| describe(&mut headers, &request("192.0.2.1:1"), &options).is_ok());
        assert_eq!(passes.count(), MAX_PASSES);
    }
}
