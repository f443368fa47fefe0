//! Conditional requests (RFC 9110, 13) with nginx's reading.

use std::time::UNIX_EPOCH;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::scan::position;

/// More octets than a date in any of the three formats has (RFC 9110, 5.6.7).
const MAX_DATE: usize = 64;

/// The validators of a representation.
#[derive(Debug, Clone, Copy)]
pub struct Validators<'a> {
    /// An entity tag as it is sent: quotes, and `W/` if it is weak. Empty if there is none.
    pub etag: &'a HeaderValue,
    /// The `last-modified` value, unless it is not to be relied on.
    pub last_modified: Option<&'a HeaderValue>,
    /// The same in seconds since the epoch.
    pub modified: i64,
}

/// What the conditions of a request say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
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
    pub fn evaluate(&self, headers: &HeaderMap) -> Verdict {
        if let Some(date) = headers.get(header::IF_UNMODIFIED_SINCE)
            && !self.is_date(date)
            && seconds(date).is_none_or(|date| date <= self.modified)
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
        if since.is_some_and(|date| !self.is_date(date))
            || (none_match && !self.matches(headers, header::IF_NONE_MATCH, true))
        {
            return Verdict::Proceed;
        }
        Verdict::NotModified
    }

    /// The same of a stored response, by RFC 9110, 13.2.2, and RFC 9111, 4.3.2: `if-none-match` makes
    /// `if-modified-since` moot, as `if-match` does `if-unmodified-since`, and any later date will do. `modified` is the
    /// last modification, or else when the response was made.
    pub fn evaluate_stored(&self, headers: &HeaderMap) -> Verdict {
        if headers.contains_key(header::IF_MATCH) {
            if !self.matches(headers, header::IF_MATCH, false) {
                return Verdict::Failed;
            }
        } else if let Some(date) = only_date(headers, header::IF_UNMODIFIED_SINCE)
            && self.last_modified.is_some()
            && self.modified > date
        {
            return Verdict::Failed;
        }
        let is_known = if headers.contains_key(header::IF_NONE_MATCH) {
            self.matches(headers, header::IF_NONE_MATCH, true)
        } else {
            only_date(headers, header::IF_MODIFIED_SINCE).is_some_and(|date| self.modified <= date)
        };
        if is_known { Verdict::NotModified } else { Verdict::Proceed }
    }

    /// Whether `if-range`, if present, lets `range` count: a strong entity tag or the exact date.
    pub fn allows_range(&self, headers: &HeaderMap) -> bool {
        let Some(value) = headers.get(header::IF_RANGE) else { return true };
        let bytes = value.as_bytes();
        if bytes.len() >= 2 && bytes.ends_with(b"\"") {
            return bytes == self.etag.as_bytes() && !bytes.starts_with(b"W/");
        }
        self.is_date(value)
    }

    /// Whether `date` is the modification time, and that can be relied on.
    fn is_date(&self, date: &HeaderValue) -> bool {
        self.last_modified
            .is_some_and(|ours| date.as_bytes() == ours.as_bytes() || seconds(date) == Some(self.modified))
    }

    /// Whether the list of entity tags in `name` holds ours or is `*`. `weak`: by weak comparison.
    fn matches(&self, headers: &HeaderMap, name: HeaderName, weak: bool) -> bool {
        headers.get_all(name).iter().any(|value| {
            value.as_bytes() == b"*" || list_contains(value.as_bytes(), self.etag.as_bytes(), weak)
        })
    }
}

/// Seconds since the epoch of an HTTP date; `None` if it is not one.
pub fn seconds(date: &HeaderValue) -> Option<i64> {
    if date.len() > MAX_DATE {
        return None;
    }
    let time = httpdate::parse_http_date(date.to_str().ok()?).ok()?;
    time.duration_since(UNIX_EPOCH).ok()?.as_secs().try_into().ok()
}

/// The date of a field, unless it has several lines or is not a date (RFC 9110, 13.1.3).
fn only_date(headers: &HeaderMap, name: HeaderName) -> Option<i64> {
    let mut lines = headers.get_all(name).iter();
    lines.next().filter(|_| lines.next().is_none()).and_then(seconds)
}

/// Whether a comma-separated list of entity tags holds `etag`, by weak or by strong comparison (RFC 9110, 8.8.3.2).
/// Commas within quotes do not separate.
pub(crate) fn list_contains(mut list: &[u8], etag: &[u8], weak: bool) -> bool {
    let strong = etag.strip_prefix(b"W/");
    if strong.is_some() && !weak {
        return false;
    }
    let etag = strong.unwrap_or(etag);
    while let Some(start) = position(list, |b| !b" \t,".contains(&b)) {
        list = &list[start..];
        // No further than the end of the member: a list is read once, however many members it has.
        let end = match position(list, |b| b == b'"' || b == b',') {
            Some(open) if list[open] == b'"' => {
                position(&list[open + 1..], |b| b == b'"').map_or(list.len(), |length| open + length + 2)
            }
            separator => separator.unwrap_or(list.len()),
        };
        let (tag, rest) = list.split_at(end);
        let tag = if weak { tag.strip_prefix(b"W/").unwrap_or(tag) } else { tag };
        let (tail, rest) = rest.split_at(position(rest, |b| b == b',').unwrap_or(rest.len()));
        if tag.trim_ascii_end() == etag && tail.trim_ascii().is_empty() {
            return true;
        }
        list = rest;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::assert_linear;
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
        let validators = Validators { etag: &etag, last_modified: Some(&date), modified: 784_111_777 };
        validators.evaluate(&headers(lines))
    }

    /// The same of a file that may change again without its modification time showing it.
    fn evaluate_recent(lines: &[(HeaderName, &str)]) -> (Verdict, bool) {
        let etag = HeaderValue::from_static("W/\"a-1\"");
        let validators = Validators { etag: &etag, last_modified: None, modified: 784_111_777 };
        let headers = headers(lines);
        (validators.evaluate(&headers), validators.allows_range(&headers))
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
    fn conditions_of_stored_responses_are_those_of_the_rfc() {
        use header::*;
        let (etag, date) = (HeaderValue::from_static("\"a-1\""), HeaderValue::from_static(SAME));
        let of = |lines: &[(HeaderName, &str)], last_modified| {
            Validators { etag: &etag, last_modified, modified: 784_111_777 }.evaluate_stored(&headers(lines))
        };
        for (lines, expected) in [
            (&[(IF_MODIFIED_SINCE, SAME)][..], NotModified),
            (&[(IF_MODIFIED_SINCE, LATER)], NotModified),
            (&[(IF_MODIFIED_SINCE, EARLIER)], Proceed),
            (&[(IF_MODIFIED_SINCE, "yesterday")], Proceed),
            (&[(IF_MODIFIED_SINCE, LATER), (IF_MODIFIED_SINCE, LATER)], Proceed),
            (&[(IF_NONE_MATCH, "W/\"a-1\""), (IF_MODIFIED_SINCE, EARLIER)], NotModified),
            (&[(IF_NONE_MATCH, "\"b\""), (IF_MODIFIED_SINCE, LATER)], Proceed),
            (&[(IF_MATCH, "\"a-1\""), (IF_UNMODIFIED_SINCE, EARLIER)], Proceed),
            (&[(IF_MATCH, "\"b\""), (IF_UNMODIFIED_SINCE, LATER)], Failed),
            (&[(IF_MATCH, "\"a-1\""), (IF_NONE_MATCH, "*")], NotModified),
            (&[(IF_UNMODIFIED_SINCE, LATER)], Proceed),
            (&[(IF_UNMODIFIED_SINCE, "yesterday")], Proceed),
        ] {
            assert_eq!(of(lines, Some(&date)), expected, "{lines:?}");
        }
        let earlier = [(IF_UNMODIFIED_SINCE, EARLIER)];
        assert_eq!((of(&earlier, Some(&date)), of(&earlier, None)), (Failed, Proceed));
    }

    #[test]
    fn if_range_wants_a_strong_tag_or_the_exact_date() {
        let (etag, date) = (HeaderValue::from_static("\"a-1\""), HeaderValue::from_static(SAME));
        let validators = Validators { etag: &etag, last_modified: Some(&date), modified: 784_111_777 };
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

    #[test]
    fn a_weak_validator_tells_less() {
        use header::*;
        for (name, value, expected) in [
            (IF_NONE_MATCH, "W/\"a-1\"", NotModified),
            (IF_NONE_MATCH, "\"b\", \"a-1\"", NotModified),
            (IF_NONE_MATCH, "W/\"b\"", Proceed),
            (IF_MATCH, "W/\"a-1\"", Failed),
            (IF_MATCH, "\"a-1\"", Failed),
            (IF_MATCH, "*", Proceed),
            (IF_MODIFIED_SINCE, SAME, Proceed),
            (IF_UNMODIFIED_SINCE, SAME, Failed),
            (IF_UNMODIFIED_SINCE, EARLIER, Failed),
            (IF_UNMODIFIED_SINCE, LATER, Proceed),
        ] {
            assert_eq!(evaluate_recent(&[(name.clone(), value)]).0, expected, "{name}: {value}");
        }
        for (value, expected) in [("\"a-1\"", false), ("W/\"a-1\"", false), (SAME, false)] {
            assert_eq!(evaluate_recent(&[(IF_RANGE, value)]).1, expected, "{value}");
        }
    }

    #[test]
    fn a_list_is_read_once_whatever_is_in_it() {
        let repeated = |member: &'static [u8]| move |size: usize| member.repeat(size / member.len());
        for member in [
            &b"a,"[..],
            b"\"a\",",
            b"\"",
            b",",
            b" ",
            b"\t,",
            b"\"a-1\" x,",
            b"W/\"b\", ",
            b"a\"b,",
            b"x \" ,",
        ] {
            let what = member.escape_ascii().to_string();
            assert_linear(&what, 4, repeated(member), |list| {
                assert!(!list_contains(list, b"\"a-1\"", true));
            });
        }
        let quote_at_the_end = |size: usize| [b"a,".repeat(size / 2).as_slice(), b"\"a-1\""].concat();
        assert_linear("a quote at the end", 4, quote_at_the_end, |list| {
            assert!(list_contains(list, b"\"a-1\"", false));
        });
    }
}
