//! Conditional requests (RFC 9110, 13) with nginx's reading.

use std::time::UNIX_EPOCH;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// The validators of a representation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validators<'a> {
    /// A strong entity tag with its quotes.
    pub(crate) etag: &'a HeaderValue,
    /// The `last-modified` value.
    pub(crate) last_modified: &'a HeaderValue,
    /// The same in seconds since the epoch.
    pub(crate) modified: i64,
}

/// What the conditions of a request say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Answer as if there were none.
    Proceed,
    /// 304: the client's copy is good.
    NotModified,
    /// 412: the client asked for another version.
    Failed,
}

impl Validators<'_> {
    /// Evaluates `if-match`, `if-unmodified-since`, `if-none-match` and `if-modified-since`.
    ///
    /// As nginx does it: `if-modified-since` must name the modification time exactly, and when it stands
    /// beside `if-none-match` both must hold for a 304. RFC 9110 lets a recipient ignore the date there;
    /// requiring both can only send a full response where a 304 would have done.
    pub(crate) fn evaluate(&self, headers: &HeaderMap) -> Verdict {
        if let Some(date) = headers.get(header::IF_UNMODIFIED_SINCE)
            && self.seconds(date).is_none_or(|date| date < self.modified)
        {
            return Verdict::Failed;
        }
        if headers.contains_key(header::IF_MATCH) && !self.matches(headers, header::IF_MATCH, false) {
            return Verdict::Failed;
        }
        let since = headers.get(header::IF_MODIFIED_SINCE);
        let none_match = headers.contains_key(header::IF_NONE_MATCH);
        if since.is_none() && !none_match {
            return Verdict::Proceed;
        }
        if since.is_some_and(|date| self.seconds(date) != Some(self.modified))
            || (none_match && !self.matches(headers, header::IF_NONE_MATCH, true))
        {
            return Verdict::Proceed;
        }
        Verdict::NotModified
    }

    /// Whether `if-range`, if present, lets `range` count: a strong entity tag or the exact date.
    pub(crate) fn allows_range(&self, headers: &HeaderMap) -> bool {
        let Some(value) = headers.get(header::IF_RANGE) else { return true };
        let bytes = value.as_bytes();
        if bytes.len() >= 2 && bytes.ends_with(b"\"") {
            return bytes == self.etag.as_bytes();
        }
        self.seconds(value) == Some(self.modified)
    }

    /// Seconds since the epoch of an HTTP date; `None` if it is not one.
    fn seconds(&self, date: &HeaderValue) -> Option<i64> {
        if date.as_bytes() == self.last_modified.as_bytes() {
            return Some(self.modified);
        }
        let time = httpdate::parse_http_date(date.to_str().ok()?).ok()?;
        time.duration_since(UNIX_EPOCH).ok()?.as_secs().try_into().ok()
    }

    /// Whether the list of entity tags in `name` holds ours or is `*`. `weak`: by weak comparison.
    fn matches(&self, headers: &HeaderMap, name: HeaderName, weak: bool) -> bool {
        headers.get_all(name).iter().any(|value| {
            value.as_bytes() == b"*" || list_contains(value.as_bytes(), self.etag.as_bytes(), weak)
        })
    }
}

/// Whether a comma-separated list of entity tags holds `etag`. Commas within quotes do not separate.
fn list_contains(mut list: &[u8], etag: &[u8], weak: bool) -> bool {
    loop {
        let start = list.iter().position(|b| !b" \t,".contains(b));
        let Some(start) = start else { return false };
        list = &list[start..];
        let quote = list.iter().position(|&b| b == b'"');
        let separator = list.iter().position(|&b| b == b',').unwrap_or(list.len());
        let end = match quote {
            Some(open) if open < separator => {
                let close = list[open + 1..].iter().position(|&b| b == b'"');
                close.map_or(list.len(), |close| open + close + 2)
            }
            _ => separator,
        };
        let tag = &list[..end];
        let tag = if weak { tag.strip_prefix(b"W/").unwrap_or(tag) } else { tag };
        let rest = &list[end..];
        let next = rest.iter().position(|&b| b == b',');
        let tail = &rest[..next.unwrap_or(rest.len())];
        if tag.trim_ascii_end() == etag && tail.trim_ascii().is_empty() {
            return true;
        }
        list = &rest[next.unwrap_or(rest.len())..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::*;

    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn headers(lines: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn evaluate(lines: &[(HeaderName, &str)]) -> Verdict {
        let (etag, date) = (HeaderValue::from_static("\"a-1\""), HeaderValue::from_static(SAME));
        let validators = Validators { etag: &etag, last_modified: &date, modified: 784_111_777 };
        validators.evaluate(&headers(lines))
    }

    #[test]
    fn each_condition_alone() {
        use header::*;
        for (name, value, expected) in [
            (IF_NONE_MATCH, "\"a-1\"", NotModified),
            (IF_NONE_MATCH, "W/\"a-1\"", NotModified),
            (IF_NONE_MATCH, "*", NotModified),
            (IF_NONE_MATCH, "\"b\" , W/\"c,d\",\t\"a-1\"", NotModified),
            (IF_NONE_MATCH, "\"b,\"a-1\"", Proceed),
            (IF_NONE_MATCH, "\"a-12\"", Proceed),
            (IF_NONE_MATCH, "a-1", Proceed),
            (IF_NONE_MATCH, "", Proceed),
            (IF_MATCH, "\"a-1\"", Proceed),
            (IF_MATCH, "*", Proceed),
            (IF_MATCH, "W/\"a-1\"", Failed),
            (IF_MATCH, "\"b\"", Failed),
            (IF_MODIFIED_SINCE, SAME, NotModified),
            (IF_MODIFIED_SINCE, "Sunday, 06-Nov-94 08:49:37 GMT", NotModified),
            (IF_MODIFIED_SINCE, EARLIER, Proceed),
            (IF_MODIFIED_SINCE, LATER, Proceed),
            (IF_MODIFIED_SINCE, "yesterday", Proceed),
            (IF_UNMODIFIED_SINCE, SAME, Proceed),
            (IF_UNMODIFIED_SINCE, LATER, Proceed),
            (IF_UNMODIFIED_SINCE, EARLIER, Failed),
            (IF_UNMODIFIED_SINCE, "yesterday", Failed),
        ] {
            assert_eq!(evaluate(&[(name.clone(), value)]), expected, "{name}: {value}");
        }
    }

    #[test]
    fn pairs_of_conditions() {
        use header::*;
        for (first, second, expected) in [
            ((IF_NONE_MATCH, "\"a-1\""), (IF_MODIFIED_SINCE, SAME), NotModified),
            ((IF_NONE_MATCH, "\"a-1\""), (IF_MODIFIED_SINCE, EARLIER), Proceed),
            ((IF_NONE_MATCH, "\"b\""), (IF_MODIFIED_SINCE, SAME), Proceed),
            ((IF_NONE_MATCH, "\"b\""), (IF_NONE_MATCH, "\"a-1\""), NotModified),
            ((IF_MATCH, "\"b\""), (IF_NONE_MATCH, "\"a-1\""), Failed),
            ((IF_MATCH, "\"a-1\""), (IF_NONE_MATCH, "\"a-1\""), NotModified),
            ((IF_UNMODIFIED_SINCE, EARLIER), (IF_MATCH, "\"a-1\""), Failed),
        ] {
            assert_eq!(evaluate(&[first.clone(), second.clone()]), expected, "{first:?} {second:?}");
        }
    }

    #[test]
    fn if_range_wants_a_strong_tag_or_the_exact_date() {
        let (etag, date) = (HeaderValue::from_static("\"a-1\""), HeaderValue::from_static(SAME));
        let validators = Validators { etag: &etag, last_modified: &date, modified: 784_111_777 };
        for (value, expected) in [
            ("\"a-1\"", true),
            ("W/\"a-1\"", false),
            ("\"b\"", false),
            (SAME, true),
            (LATER, false),
            ("x", false),
        ] {
            assert_eq!(validators.allows_range(&headers(&[(header::IF_RANGE, value)])), expected, "{value}");
        }
        assert!(validators.allows_range(&HeaderMap::new()));
    }
}
