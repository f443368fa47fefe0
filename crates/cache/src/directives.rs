//! `cache-control` (RFC 9111, 5.2), read once and in linear time.

use std::time::Duration;

use http::HeaderMap;
use http::header::{CACHE_CONTROL, PRAGMA};

/// The largest number of seconds (RFC 9111, 1.2.2).
const MOST: u64 = 1 << 31;

/// The directives of a request or response that a shared cache acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Directives {
    pub(crate) no_cache: bool,
    pub(crate) no_store: bool,
    pub(crate) private: bool,
    pub(crate) public: bool,
    pub(crate) must_revalidate: bool,
    pub(crate) proxy_revalidate: bool,
    pub(crate) must_understand: bool,
    pub(crate) only_if_cached: bool,
    pub(crate) max_age: Option<Duration>,
    pub(crate) s_maxage: Option<Duration>,
    pub(crate) min_fresh: Option<Duration>,
    /// Without a value: any.
    pub(crate) max_stale: Option<Duration>,
    pub(crate) stale_while_revalidate: Option<Duration>,
    pub(crate) stale_if_error: Option<Duration>,
}

impl Directives {
    /// Reads all `cache-control` fields of a message. A time that cannot be read counts as none left; of a directive
    /// that is there more than once, the shortest counts (RFC 9111, 4.2.1). `no-cache` and `private` with field names
    /// count as if they had none.
    pub(crate) fn read(headers: &HeaderMap) -> Self {
        let mut directives = Self::default();
        for value in headers.get_all(CACHE_CONTROL) {
            let mut rest = value.as_bytes();
            while let Some((directive, after)) = next(rest) {
                directives.take(directive);
                rest = after;
            }
        }
        directives
    }

    /// The same for a request, where `pragma: no-cache` stands in for an absent `cache-control`.
    pub(crate) fn of_request(headers: &HeaderMap) -> Self {
        let mut directives = Self::read(headers);
        if !headers.contains_key(CACHE_CONTROL)
            && let Some(pragma) = headers.get(PRAGMA)
        {
            directives.no_cache = pragma.as_bytes().trim_ascii().eq_ignore_ascii_case(b"no-cache");
        }
        directives
    }

    fn take(&mut self, directive: &[u8]) {
        let at = directive.iter().position(|&b| b == b'=').unwrap_or(directive.len());
        let (name, value) = directive.split_at(at);
        let value = value.get(1..).map(<[u8]>::trim_ascii);
        let is = |text: &str| name.trim_ascii().eq_ignore_ascii_case(text.as_bytes());
        let shortest = |old: &mut Option<Duration>, empty: Duration| {
            let new = value.map_or(empty, seconds);
            *old = Some(old.map_or(new, |old| old.min(new)));
        };
        let none = Duration::ZERO;
        if is("no-cache") {
            self.no_cache = true;
        } else if is("no-store") {
            self.no_store = true;
        } else if is("private") {
            self.private = true;
        } else if is("public") {
            self.public = true;
        } else if is("must-revalidate") {
            self.must_revalidate = true;
        } else if is("proxy-revalidate") {
            self.proxy_revalidate = true;
        } else if is("must-understand") {
            self.must_understand = true;
        } else if is("only-if-cached") {
            self.only_if_cached = true;
        } else if is("max-age") {
            shortest(&mut self.max_age, none);
        } else if is("s-maxage") {
            shortest(&mut self.s_maxage, none);
        } else if is("min-fresh") {
            shortest(&mut self.min_fresh, none);
        } else if is("max-stale") {
            shortest(&mut self.max_stale, Duration::from_secs(MOST));
        } else if is("stale-while-revalidate") {
            shortest(&mut self.stale_while_revalidate, none);
        } else if is("stale-if-error") {
            shortest(&mut self.stale_if_error, none);
        }
    }
}

/// The next member of a list, and what follows its comma. Commas within quotes do not separate.
pub(crate) fn next(list: &[u8]) -> Option<(&[u8], &[u8])> {
    if list.is_empty() {
        return None;
    }
    let (mut quoted, mut escaped) = (false, false);
    for (at, &byte) in list.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => return Some((list[..at].trim_ascii(), &list[at + 1..])),
            _ => {}
        }
    }
    Some((list.trim_ascii(), &[]))
}

/// Delta seconds, quoted or not; none left if it is not a number, the most if it is a larger one.
pub(crate) fn seconds(value: &[u8]) -> Duration {
    let digits = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Duration::ZERO;
    }
    let number = digits.iter().fold(0_u64, |number, digit| (number * 10 + u64::from(digit - b'0')).min(MOST));
    Duration::from_secs(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Directives {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(CACHE_CONTROL, value.parse().unwrap());
        }
        Directives::read(&headers)
    }

    #[test]
    fn directives_are_read_whatever_their_case_and_place() {
        let directives =
            read(&["Public , MAX-AGE=\"60\"", "x=\"no-store, private\",s-maxage=5,no-cache=\"a,b\""]);
        let expected = Directives {
            public: true,
            no_cache: true,
            max_age: Some(Duration::from_secs(60)),
            s_maxage: Some(Duration::from_secs(5)),
            ..Directives::default()
        };
        assert_eq!(directives, expected);
    }

    #[test]
    fn what_cannot_be_read_is_no_time_and_the_shortest_counts() {
        for (value, expected) in [
            ("max-age=-1", 0),
            ("max-age=1.5", 0),
            ("max-age", 0),
            ("max-age=7, max-age=3", 3),
            ("max-age=99999999999999999999", MOST),
        ] {
            assert_eq!(read(&[value]).max_age, Some(Duration::from_secs(expected)), "{value}");
        }
        assert_eq!(read(&["max-stale"]).max_stale, Some(Duration::from_secs(MOST)));
    }

    #[test]
    fn pragma_counts_without_cache_control() {
        let mut headers = HeaderMap::new();
        headers.insert(PRAGMA, "no-cache".parse().unwrap());
        assert!(Directives::of_request(&headers).no_cache);
        headers.insert(CACHE_CONTROL, "max-age=1".parse().unwrap());
        assert!(!Directives::of_request(&headers).no_cache);
    }
}
