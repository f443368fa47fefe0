//! Whether a response is compressed, and how its head changes.

use std::sync::Arc;

use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    HeaderName, IF_NONE_MATCH, VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::{CompressOptions, Workshop};
use crate::coding::Accepted;
use crate::condition::list_contains;
use crate::files::{Encoding, FileStore};
use crate::memory::Account;
use crate::scan::looked_at;
use crate::{RequestHead, ResponseHead, Wake};

/// What holds for other octets than those that leave.
const OF_THE_PLAIN: [HeaderName; 6] = [
    ACCEPT_RANGES,
    CONTENT_LENGTH,
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
];

/// What one request and its site say about compression.
pub(crate) struct Compression {
    options: Arc<CompressOptions>,
    /// What the client likes best, and its level.
    coding: Option<(Encoding, u8)>,
    is_head: bool,
    none_match: Vec<HeaderValue>,
    workshop: Workshop,
}

impl Compression {
    pub(crate) fn new(
        options: &Arc<CompressOptions>,
        request: &RequestHead,
        store: &Arc<FileStore>,
        wake: &Wake,
    ) -> Self {
        let accepted = match forbids(&request.headers) {
            true => None,
            false => {
                Accepted::parse(&request.headers).choose(options.codings.iter().map(|(coding, _)| *coding))
            }
        };
        let level = |wanted| options.codings.iter().copied().find(|(coding, _)| *coding == wanted);
        Self {
            coding: accepted.and_then(level),
            is_head: request.method == Method::HEAD,
            none_match: request.headers.get_all(IF_NONE_MATCH).iter().cloned().collect(),
            options: Arc::clone(options),
            workshop: Workshop { store: Arc::clone(store), wake: wake.clone(), account: None },
        }
    }

    pub(crate) fn charge_to(&mut self, account: &Account) {
        self.workshop.account = Some(account.clone());
    }

    /// The coding that a response with that head gets if there is a place for a compressor. Fields of the head that are
    /// due either way are set; the head of an answer to HEAD is finished.
    pub(crate) fn choose(&self, head: &mut ResponseHead) -> Option<(Encoding, u8)> {
        if head.status == StatusCode::NOT_MODIFIED {
            self.not_modified(&mut head.headers);
            return None;
        }
        if !self.suits(head) {
            return None;
        }
        vary(&mut head.headers);
        let coding = self.coding?;
        if self.is_head {
            recode(&mut head.headers, coding.0);
            return None;
        }
        (head.body_length != Some(0)).then_some(coding)
    }

    pub(crate) fn workshop(&self) -> &Workshop {
        &self.workshop
    }

    /// A response that a client may also get compressed.
    fn suits(&self, head: &ResponseHead) -> bool {
        let headers = &head.headers;
        let has_status =
            head.status == StatusCode::OK || head.status.is_client_error() || head.status.is_server_error();
        let length = match self.is_head {
            true => headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok()),
            false => head.body_length,
        };
        has_status
            && headers.get(CONTENT_TYPE).is_some_and(|value| self.options.takes(value))
            && !headers.contains_key(CONTENT_ENCODING)
            && !headers.contains_key(CONTENT_RANGE)
            && length.is_none_or(|length| length >= self.options.min_length)
            && !forbids(headers)
    }

    /// Says what a 200 would have said (RFC 9110, section 15.4.5): that the answer depends on the codings, and, to a
    /// client that has it compressed, the entity tag that it has.
    fn not_modified(&self, headers: &mut HeaderMap) {
        vary(headers);
        let Some(etag) = headers.get(ETAG).filter(|_| self.coding.is_some()) else { return };
        let names =
            |weak| self.none_match.iter().any(|list| list_contains(list.as_bytes(), etag.as_bytes(), weak));
        if !names(false) && names(true) {
            weaken(headers);
        }
    }
}

/// Makes the head that of the coded response.
pub(crate) fn recode(headers: &mut HeaderMap, encoding: Encoding) {
    for name in OF_THE_PLAIN {
        headers.remove(name);
    }
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.as_str()));
    weaken(headers);
}

/// Makes the entity tag a weak one, as nginx does: the coded octets differ from the plain ones, and may from those of a
/// later version of the compressor (RFC 9110, section 8.8.1).
fn weaken(headers: &mut HeaderMap) {
    let Some(etag) = headers.get(ETAG).filter(|etag| !etag.as_bytes().starts_with(b"W/")) else { return };
    if let Ok(weak) = HeaderValue::from_bytes(&[b"W/", etag.as_bytes()].concat()) {
        headers.insert(ETAG, weak);
    }
}

/// Whether a `cache-control` field has `no-transform` (RFC 9111, sections 5.2.1.6 and 5.2.2.6).
fn forbids(headers: &HeaderMap) -> bool {
    members(headers, CACHE_CONTROL).any(|member| member.eq_ignore_ascii_case(b"no-transform"))
}

/// Has `vary` name `accept-encoding`.
fn vary(headers: &mut HeaderMap) {
    let is_there = members(headers, VARY)
        .any(|member| member == b"*" || member.eq_ignore_ascii_case(b"accept-encoding"));
    if !is_there {
        headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
}

fn members(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(name).into_iter();
    values.flat_map(|value| {
        looked_at(value.len());
        value.as_bytes().split(|&b| b == b',').map(<[u8]>::trim_ascii)
    })
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT_ENCODING;

    use super::*;
    use crate::files::FileOptions;
    use crate::scan::assert_linear;
    use crate::{Notify, Protocol, Scheme};

    struct Nobody;

    impl Notify for Nobody {
        fn notify(&self, _token: u64) {}
    }

    fn fields(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn compression(method: Method, lines: &[(&'static str, &'static str)]) -> Compression {
        let request = RequestHead {
            method,
            scheme: Scheme::Https,
            authority: "a".into(),
            target: "/".into(),
            headers: fields(lines),
            protocol: Protocol::H3,
            remote: "192.0.2.1:1".parse().unwrap(),
            client_subject: None,
        };
        let options = FileOptions { reader_threads: 1, ..FileOptions::default() };
        let store = FileStore::new(options).unwrap();
        Compression::new(&Arc::default(), &request, &store, &Wake::new(Arc::new(Nobody), 0))
    }

    fn head(status: u16, length: Option<u64>, lines: &[(&'static str, &'static str)]) -> ResponseHead {
        let mut headers = fields(&[("content-type", "text/html"), ("etag", "\"x\"")]);
        for (name, value) in fields(lines) {
            headers.insert(name.unwrap(), value);
        }
        ResponseHead { status: StatusCode::from_u16(status).unwrap(), headers, body_length: length }
    }

    const TAKES: (&str, &str) = ("accept-encoding", "gzip, br;q=0.9");

    #[test]
    fn what_is_compressed_and_what_is_not() {
        let chosen = |request: &[_], mut head: ResponseHead| {
            let chosen = compression(Method::GET, request).choose(&mut head).map(|(encoding, _)| encoding);
            (chosen, head.headers.contains_key(VARY))
        };
        let (gzip, no) = ((Some(Encoding::Gzip), true), (None, false));
        for (head, expected) in [
            (head(200, Some(5000), &[]), gzip),
            (head(200, None, &[]), gzip),
            (head(404, Some(5000), &[]), gzip),
            (head(200, Some(1024), &[]), gzip),
            (head(200, Some(1023), &[]), no),
            (head(206, Some(5000), &[("content-range", "bytes 0-4999/6000")]), no),
            (head(200, Some(5000), &[("content-encoding", "br")]), no),
            (head(200, Some(5000), &[("cache-control", "public, No-Transform")]), no),
            (head(200, Some(5000), &[("content-type", "video/mp4")]), no),
            (head(302, Some(5000), &[]), no),
        ] {
            assert_eq!(chosen(&[TAKES], head.clone()), expected, "{head:?}");
        }
        let plain = head(200, Some(5000), &[]);
        assert_eq!(chosen(&[], plain.clone()), (None, true), "it could have been");
        assert_eq!(chosen(&[("accept-encoding", "identity")], plain.clone()), (None, true));
        assert_eq!(chosen(&[TAKES, ("cache-control", "no-transform")], plain), (None, true));
    }

    #[test]
    fn an_answer_to_head_says_what_that_to_get_does() {
        let compression = compression(Method::HEAD, &[TAKES]);
        let length = [("content-length", "5000"), ("accept-ranges", "bytes"), ("vary", "Origin")];
        let mut long = head(200, Some(0), &length);
        assert_eq!(compression.choose(&mut long), None);
        assert_eq!(
            (&long.headers[CONTENT_ENCODING], &long.headers[ETAG]),
            (&"gzip".parse().unwrap(), &"W/\"x\"".parse().unwrap())
        );
        assert!(!long.headers.contains_key(CONTENT_LENGTH) && !long.headers.contains_key(ACCEPT_RANGES));
        assert_eq!(long.headers.get_all(VARY).iter().count(), 2);
        let mut short = head(200, Some(0), &[("content-length", "10")]);
        assert_eq!(compression.choose(&mut short), None);
        assert!(!short.headers.contains_key(CONTENT_ENCODING) && short.headers[ETAG] == "\"x\"");
    }

    #[test]
    fn a_304_has_the_entity_tag_that_the_client_has() {
        for (request, expected) in [
            (vec![TAKES, ("if-none-match", "W/\"x\"")], "W/\"x\""),
            (vec![TAKES, ("if-none-match", "\"y\""), ("if-none-match", "W/\"x\"")], "W/\"x\""),
            (vec![TAKES, ("if-none-match", "\"x\"")], "\"x\""),
            (vec![TAKES, ("if-none-match", "*")], "\"x\""),
            (vec![("if-none-match", "W/\"x\"")], "\"x\""),
        ] {
            let mut head = head(304, Some(0), &[]);
            assert_eq!(compression(Method::GET, &request).choose(&mut head), None);
            assert_eq!(
                (&head.headers[ETAG], &head.headers[VARY]),
                (&expected.parse().unwrap(), &"Accept-Encoding".parse().unwrap())
            );
        }
    }

    #[test]
    fn vary_is_said_once() {
        for (there, lines) in [("*", 1), ("Origin, accept-encoding", 1), ("Origin", 2)] {
            let mut headers = fields(&[("vary", there)]);
            vary(&mut headers);
            assert_eq!(headers.get_all(VARY).iter().count(), lines, "{there}");
        }
    }

    #[test]
    fn lists_are_read_once() {
        for member in ["no-transfor,", ",", " ", "a=b, "] {
            let list = |size: usize| member.repeat(size / member.len()).into_bytes();
            assert_linear(member, 1, list, |list| {
                let mut headers = HeaderMap::new();
                headers.insert(CACHE_CONTROL, list.try_into().unwrap());
                assert!(!forbids(&headers) && !headers.contains_key(ACCEPT_ENCODING));
            });
        }
    }
}
