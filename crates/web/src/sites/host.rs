//! The host of an authority.

use std::borrow::Cow;

use crate::scan::looked_at;

/// The longest name of a host, in octets (RFC 1035, 2.3.4, without the root's dot and what DNS itself adds).
const MAX_HOST: usize = 253;

/// The longest authority that can name a host, in octets: its name, the dot of a fully qualified one, a colon, a port.
pub const MAX_AUTHORITY: usize = MAX_HOST + 1 + 1 + 5;

/// Reads hosts out of authorities.
pub(super) struct Host;

impl Host {
    /// The host of `authority` (`host[:port]`, RFC 9110, 7.2) in lower case, without port and without the
    /// dot of a fully qualified name. Empty for an empty authority. `None` if it is not an authority, or longer than
    /// one can be.
    pub(super) fn parse(authority: &str) -> Option<Cow<'_, str>> {
        if authority.len() > MAX_AUTHORITY {
            return None;
        }
        looked_at(authority.len());
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let end = rest.find(']')? + 2;
                let (host, port) = authority.split_at(end);
                let address = &host[1..end - 1];
                address.parse::<std::net::Ipv6Addr>().ok()?;
                (host, port)
            }
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        if !(port.is_empty() || port.strip_prefix(':')?.bytes().all(|b| b.is_ascii_digit())) {
            return None;
        }
        let host = host.strip_suffix('.').unwrap_or(host);
        if host.len() > MAX_HOST || host.is_empty() && !authority.is_empty() {
            return None;
        }
        let valid = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%[:]".contains(&b);
        if !host.bytes().all(valid) || host.starts_with('.') || host.contains("..") {
            return None;
        }
        Some(if host.bytes().any(|b| b.is_ascii_uppercase()) {
            Cow::Owned(host.to_ascii_lowercase())
        } else {
            Cow::Borrowed(host)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_longer_than_a_host_can_be_is_none() {
        let (longest, longer) = ("x".repeat(MAX_HOST), "x".repeat(MAX_HOST + 1));
        assert_eq!(Host::parse(&format!("{longest}.:65535")).as_deref(), Some(longest.as_str()));
        for authority in
            [longer.clone(), format!("{longer}:1"), format!("{longest}.:655350"), "a.".repeat(15_000)]
        {
            assert_eq!(Host::parse(&authority), None, "{} octets", authority.len());
        }
    }

    #[test]
    fn hosts_of_authorities() {
        for (authority, expected) in [
            ("", Some("")),
            ("edge.example", Some("edge.example")),
            ("Edge.Example:8443", Some("edge.example")),
            ("edge.example.", Some("edge.example")),
            ("edge.example:", Some("edge.example")),
            ("192.0.2.1:443", Some("192.0.2.1")),
            ("[2001:DB8::1]:443", Some("[2001:db8::1]")),
            ("[2001:db8::1]", Some("[2001:db8::1]")),
            ("[2001:db8::1", None),
            ("[nonsense]", None),
            (":443", None),
            (".", None),
            ("a..b", None),
            (".a", None),
            ("a b", None),
            ("a/b", None),
            ("user@a", None),
            ("a:b", None),
            ("a:1:2", None),
            ("a\n", None),
        ] {
            assert_eq!(Host::parse(authority).as_deref(), expected, "{authority:?}");
        }
    }
}
