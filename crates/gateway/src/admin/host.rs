//! The names by which the admin listener may be addressed.
//!
//! An attacker can point the domain of a page in an operator's browser at this listener (DNS rebinding). To the
//! browser, page and listener then have the same origin, so it lets the page read and order anything. But the `Host` of
//! its requests is still the attacker's domain. Pages and orders are therefore limited to requests by an address,
//! `localhost` or this machine's own name, which a foreign domain cannot be.

use std::net::Ipv6Addr;

use http::{Request, header};

/// This machine's own name, without regard to case; empty if it has none.
#[derive(Debug)]
pub(super) struct Names(String);

impl Names {
    /// The name that the system has now.
    pub(super) fn of_system() -> Self {
        Self(rustix::system::uname().nodename().to_string_lossy().into_owned())
    }

    /// Whether a request is addressed to this listener by something that only this machine is called. Requests without `Host` are:
    /// browsers always send it.
    pub(super) fn allow<B>(&self, request: &Request<B>) -> bool {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        // A target in absolute form takes precedence (RFC 9112, section 3.2.2), and there is one Host at most (3.2).
        match (request.uri().authority(), hosts.next(), hosts.next()) {
            (_, _, Some(_)) => false,
            (Some(authority), ..) => self.is_ours(authority.as_str()),
            (None, Some(host), None) => host.to_str().is_ok_and(|host| self.is_ours(host)),
            (None, None, None) => true,
        }
    }

    /// Of a host with or without a port (RFC 3986, section 3.2).
    fn is_ours(&self, authority: &str) -> bool {
        if let Some(rest) = authority.strip_prefix('[') {
            return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
        }
        let host = authority.split_once(':').map_or(authority, |(host, _)| host);
        let host = host.strip_suffix('.').unwrap_or(host);
        host.parse::<std::net::Ipv4Addr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || (!host.is_empty() && host.eq_ignore_ascii_case(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_our_own_names_are_ours_and_domains_are_not() {
        let names = Names("edge-1".into());
        for ours in [
            "127.0.0.1",
            "192.0.2.1:9180",
            "[::1]",
            "[2001:db8::1]:80",
            "localhost:9180",
            "LocalHost.",
            "Edge-1:1",
        ] {
            assert!(names.is_ours(ours), "{ours}");
        }
        for other in [
            "",
            ":80",
            "evil.example",
            "localhost.evil.example:9180",
            "127.0.0.1.evil.example",
            "[evil]",
            "[::1",
            "edge-1.evil.example",
            "::1",
            "user@localhost",
        ] {
            assert!(!names.is_ours(other), "{other}");
        }
        assert!(!Names(String::new()).is_ours(""));
    }

    #[test]
    fn of_several_hosts_none_counts() {
        let request = |uri: &str, hosts: &[&str]| {
            let request = Request::builder().uri(uri);
            hosts.iter().fold(request, |request, host| request.header(header::HOST, *host)).body(()).unwrap()
        };
        let names = Names(String::new());
        assert!(names.allow(&request("/", &[])));
        assert!(names.allow(&request("/", &["localhost"])));
        assert!(!names.allow(&request("/", &["localhost", "localhost"])));
        assert!(!names.allow(&request("/", &["evil.example"])));
        assert!(!names.allow(&request("http://evil.example/", &["localhost"])));
        assert!(names.allow(&request("http://127.0.0.1/", &["evil.example"])));
    }
}
