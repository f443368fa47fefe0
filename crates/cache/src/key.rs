//! The key of an object: scheme, host, path and query, as far as the site says that they matter.

use expressway_web::{RequestHead, is_directive, is_playlist};
use http::uri::Authority;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::options::{Query, SiteOptions};

/// Query parameters that are looked at one by one; a query of more is taken as it is.
const MAX_PARAMETERS: usize = 256;

/// A key with its hash. Two keys with the same hash are told apart by their text wherever an object is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) hash: u128,
    pub(crate) text: Box<str>,
}

impl Key {
    /// The key of a request for `target` at `authority`.
    pub(crate) fn new(request: &RequestHead, options: &SiteOptions, seed: u64) -> Self {
        Self::of(request.scheme.as_str(), &request.authority, &request.target, options, seed)
    }

    /// The key of a URL.
    pub(crate) fn of(scheme: &str, authority: &str, target: &str, options: &SiteOptions, seed: u64) -> Self {
        let text = text(scheme, authority, target, options).into_boxed_str();
        Self { hash: xxh3_128_with_seed(text.as_bytes(), seed), text }
    }
}

/// `scheme://host/path?query`, with `*` as the host where it does not matter.
pub(crate) fn text(scheme: &str, authority: &str, target: &str, options: &SiteOptions) -> String {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let host = if options.include_host { host(scheme, authority) } else { "*" };
    // No more than it takes: a boxed text is not copied then.
    let mut text = String::with_capacity(scheme.len() + host.len() + target.len() + 3);
    text.push_str(scheme);
    text.push_str("://");
    let begin = text.len();
    text.push_str(host);
    text[begin..].make_ascii_lowercase();
    text.push_str(path);
    if let Some(query) = query {
        append_query(path, query, options, &mut text);
    }
    text
}

/// Without the scheme's own port.
fn host<'a>(scheme: &str, authority: &'a str) -> &'a str {
    let default = if scheme == "https" { ":443" } else { ":80" };
    authority.strip_suffix(default).unwrap_or(authority)
}

/// What begins the name of a delivery directive of HLS.
fn append_query(path: &str, query: &str, options: &SiteOptions, text: &mut String) {
    let which = &options.query;
    let (names, keep) = match which {
        Query::Whole => (&[][..], false),
        Query::Strip(names) => (&names[..], false),
        Query::Keep(names) => (&names[..], true),
    };
    if matches!(which, Query::Whole) || query.bytes().filter(|&b| b == b'&').count() >= MAX_PARAMETERS {
        text.push('?');
        text.push_str(query);
        return;
    }
    let mut separator = '?';
    let has_directives = options.hls_hold.is_some() && is_playlist(path.as_bytes());
    for parameter in query.split('&') {
        let name = parameter.split('=').next().unwrap_or(parameter);
        if has_directives && is_directive(name) || names.iter().any(|listed| listed == name) == keep {
            text.push(separator);
            text.push_str(parameter);
            separator = '&';
        }
    }
}

/// Scheme, authority and target of an absolute URL.
pub(crate) fn split_url(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    if scheme != "http" && scheme != "https" {
        return None;
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    authority.parse::<Authority>().ok()?;
    Some((scheme, authority, if target.is_empty() { "/" } else { target }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(target: &str, query: Query) -> String {
        text("https", "Edge.Example:443", target, &SiteOptions { query, ..SiteOptions::default() })
    }

    #[test]
    fn a_key_has_the_parameters_that_matter() {
        let names = || vec!["a".to_owned(), "utm".to_owned()];
        assert_eq!(key("/x?a=1&b=2", Query::Whole), "https://edge.example/x?a=1&b=2");
        assert_eq!(key("/x?a=1&b=2&utm&c", Query::Strip(names())), "https://edge.example/x?b=2&c");
        assert_eq!(key("/x?a=1&b=2&utm&c", Query::Keep(names())), "https://edge.example/x?a=1&utm");
        assert_eq!(key("/x?b=2", Query::Keep(names())), "https://edge.example/x");
        assert_eq!(key("/x", Query::Whole), "https://edge.example/x");
    }

    #[test]
    fn directives_of_hls_matter_where_they_are_known() {
        let mut options = SiteOptions { query: Query::Keep(Vec::new()), ..SiteOptions::default() };
        assert_eq!(text("http", "a", "/x.m3u8?s=1&_HLS_msn=2", &options), "http://a/x.m3u8");
        options.hls_hold = Some(std::time::Duration::from_secs(1));
        assert_eq!(
            text("http", "a", "/x.m3u8?s=1&_HLS_msn=2&_HLS_skip=YES&_HLS_z=1", &options),
            "http://a/x.m3u8?_HLS_msn=2&_HLS_skip=YES"
        );
        // Of other paths, and others of that name, there may be any number.
        assert_eq!(text("http", "a", "/x?s=1&_HLS_msn=2", &options), "http://a/x");
    }

    #[test]
    fn hosts_may_share_and_other_ports_do_not() {
        let shared = SiteOptions { include_host: false, ..SiteOptions::default() };
        assert_eq!(text("http", "a", "/", &shared), "http://*/");
        assert_eq!(text("http", "a:80", "/", &SiteOptions::default()), "http://a/");
        assert_eq!(text("https", "a:80", "/", &SiteOptions::default()), "https://a:80/");
    }

    #[test]
    fn urls_have_three_parts() {
        assert_eq!(split_url("https://a:1/b?c"), Some(("https", "a:1", "/b?c")));
        assert_eq!(split_url("http://a"), Some(("http", "a", "/")));
        assert_eq!(split_url("ftp://a/"), None);
        assert_eq!(split_url("/b"), None);
    }
}
