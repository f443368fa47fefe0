//! A stored response and the variants of a URL.

use std::sync::Arc;

use expressway_web::condition::{self, Validators};
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VARY,
};
use http::{StatusCode, header};

use crate::directives;
use crate::policy::{Freshness, strong_validator};

/// Variants that are kept of a URL; the one that came first gives way.
pub(crate) const MAX_VARIANTS: usize = 8;

/// Octets of header fields that are kept of a response; one with more is not stored.
pub(crate) const MAX_HEADERS: usize = 16 << 10;

/// Header fields that a response may vary by.
pub(crate) const MAX_VARY: usize = 16;

/// Octets of request header fields that a variant is selected by.
const MAX_SELECTING: usize = 4 << 10;

/// Surrogate keys that are kept of a response; more purge nothing.
const MAX_TAGS: usize = 128;

/// What a field costs in memory beyond its octets, about.
const FIELD: usize = 160;

/// One version of a response.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Object {
    /// Names its body's blocks. No two bodies have the same.
    pub(crate) version: u64,
    pub(crate) status: StatusCode,
    /// Without those of the connection, `content-length`, `age`, and `content-range` of a part.
    pub(crate) headers: HeaderMap,
    /// Octets of the body.
    pub(crate) length: u64,
    /// The fields of the request that `vary` names, with their values.
    pub(crate) selecting: Vec<(HeaderName, Vec<u8>)>,
    pub(crate) freshness: Freshness,
    /// Parts of it can be fetched: the origin gives ranges, and there is a validator to keep them together.
    pub(crate) is_sliced: bool,
    /// It counts as stored after all purges up to this one.
    pub(crate) purges_seen: u64,
}

impl Object {
    /// A version of `length` octets; `None` if its fields are too many.
    pub(crate) fn new(
        status: StatusCode,
        headers: &HeaderMap,
        request: &HeaderMap,
        length: u64,
        freshness: Freshness,
    ) -> Option<Self> {
        let headers = stored(headers);
        let selecting = selecting(&headers, request)?;
        if octets(&headers) > MAX_HEADERS {
            return None;
        }
        Some(Self {
            version: 0,
            status,
            headers,
            length,
            selecting,
            freshness,
            is_sliced: false,
            purges_seen: 0,
        })
    }

    /// Whether a request with these fields gets this variant.
    pub(crate) fn is_for(&self, request: &HeaderMap) -> bool {
        self.selecting.iter().all(|(name, value)| {
            let mut left = value.iter();
            let mut is_same = true;
            select(request, name, |byte| is_same &= left.next() == Some(&byte));
            is_same && left.next().is_none()
        })
    }

    pub(crate) fn validators(&self) -> Validators<'_> {
        static NONE: HeaderValue = HeaderValue::from_static("");
        let last_modified = self.headers.get(LAST_MODIFIED);
        Validators {
            etag: self.headers.get(ETAG).unwrap_or(&NONE),
            last_modified,
            modified: last_modified
                .or_else(|| self.headers.get(header::DATE))
                .and_then(condition::seconds)
                .unwrap_or((self.freshness.received / 1000) as i64),
        }
    }

    /// What `if-range` names to get parts of this version.
    pub(crate) fn strong_validator(&self) -> Option<&HeaderValue> {
        strong_validator(&self.headers)
    }

    pub(crate) fn can_be_revalidated(&self) -> bool {
        self.headers.contains_key(ETAG) || self.headers.contains_key(LAST_MODIFIED)
    }

    /// Takes over what a 304 says (RFC 9111, 3.2).
    pub(crate) fn refreshed(&self, headers: &HeaderMap, freshness: Freshness) -> Self {
        let mut merged = self.headers.clone();
        let new = stored(headers);
        for name in new.keys() {
            // The body stays as it is, and so does what says how it is to be read (RFC 9111, 3.2).
            if *name == CONTENT_RANGE
                || (matches!(*name, header::CONTENT_ENCODING | ETAG) && merged.contains_key(name))
            {
                continue;
            }
            merged.remove(name);
            for value in new.get_all(name) {
                merged.append(name, value.clone());
            }
        }
        if octets(&merged) > MAX_HEADERS {
            merged.clone_from(&self.headers);
        }
        Self { headers: merged, freshness, ..self.clone() }
    }

    /// Whether a 304 with these fields is about this version (RFC 9111, 4.3.4).
    pub(crate) fn is_same(&self, headers: &HeaderMap) -> bool {
        let weak =
            |value: &HeaderValue| value.as_bytes().strip_prefix(b"W/").unwrap_or(value.as_bytes()).to_vec();
        match (self.headers.get(ETAG), headers.get(ETAG)) {
            (Some(ours), Some(theirs)) => weak(ours) == weak(theirs),
            (None, Some(_)) => false,
            (_, None) => {
                headers.get(LAST_MODIFIED).is_none_or(|date| Some(date) == self.headers.get(LAST_MODIFIED))
            }
        }
    }

    /// Its surrogate keys: `surrogate-key` is separated by spaces, `cache-tag` by commas.
    pub(crate) fn tags(&self) -> impl Iterator<Item = &[u8]> {
        let of = |name: &'static str, separator: u8| {
            let values = self.headers.get_all(name).iter();
            values.flat_map(move |value| value.as_bytes().split(move |&b| b == separator || b == b' '))
        };
        let tags = of("surrogate-key", b' ').chain(of("cache-tag", b','));
        tags.map(<[u8]>::trim_ascii).filter(|tag| !tag.is_empty()).take(MAX_TAGS)
    }

    /// Octets of memory, about.
    pub(crate) fn footprint(&self) -> usize {
        let selecting: usize =
            self.selecting.iter().map(|(name, value)| name.as_str().len() + value.len() + 64).sum();
        size_of::<Self>() + octets(&self.headers) + self.headers.len() * FIELD + selecting
    }
}

/// Octets of names and values.
fn octets(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

/// The fields of a response that are kept: not those of its connection (RFC 9111, 3.1), nor those that are made anew.
fn stored(headers: &HeaderMap) -> HeaderMap {
    let listed: Vec<&[u8]> = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&b| b == b','))
        .map(<[u8]>::trim_ascii)
        .take(MAX_VARY)
        .collect();
    let is_kept = |name: &HeaderName| {
        !matches!(
            *name,
            CONNECTION
                | PROXY_AUTHENTICATE
                | PROXY_AUTHORIZATION
                | TE
                | TRAILER
                | TRANSFER_ENCODING
                | UPGRADE
                | CONTENT_LENGTH
                | header::AGE
        ) && !matches!(
            name.as_str(),
            "keep-alive" | "proxy-connection" | "proxy-authentication-info" | "cache-status"
        ) && !listed.iter().any(|listed| listed.eq_ignore_ascii_case(name.as_str().as_bytes()))
    };
    // A map for one field more may take twice the memory.
    let mut kept = HeaderMap::with_capacity(headers.keys().filter(|name| is_kept(name)).count());
    for (name, value) in headers.iter().filter(|(name, _)| is_kept(name)) {
        kept.append(name.clone(), value.clone());
    }
    kept
}

/// The values that select a variant; `None` if it varies by too much.
fn selecting(response: &HeaderMap, request: &HeaderMap) -> Option<Vec<(HeaderName, Vec<u8>)>> {
    let mut selecting = Vec::new();
    let mut size = 0;
    for value in response.get_all(VARY) {
        for name in value.as_bytes().split(|&b| b == b',').map(<[u8]>::trim_ascii) {
            if name.is_empty() {
                continue;
            }
            let name = HeaderName::from_bytes(name).ok()?;
            if selecting.iter().any(|(other, _)| *other == name) {
                continue;
            }
            let mut value = Vec::new();
            select(request, &name, |byte| value.push(byte));
            size += value.len();
            selecting.push((name, value));
            if selecting.len() > MAX_VARY || size > MAX_SELECTING {
                return None;
            }
        }
    }
    Some(selecting)
}

/// The values of a field as one list, in the form that all ways to write it have in common (RFC 9111, 4.1): lines joined, no
/// white space around commas, and lower case where case tells nothing. Nothing if the field is absent.
fn select(request: &HeaderMap, name: &HeaderName, mut emit: impl FnMut(u8)) {
    let is_lower =
        matches!(*name, header::ACCEPT_ENCODING | header::ACCEPT_LANGUAGE | header::ACCEPT_CHARSET);
    let mut separator = b'=';
    for value in request.get_all(name) {
        let mut rest = value.as_bytes();
        // An absent field and an empty one are not the same.
        if rest.is_empty() {
            emit(separator);
            separator = b',';
        }
        while let Some((member, after)) = directives::next(rest) {
            emit(separator);
            separator = b',';
            for &byte in member {
                emit(if is_lower { byte.to_ascii_lowercase() } else { byte });
            }
            rest = after;
        }
    }
}

/// What is known of a URL: its variants, the one that came last first. Never changed, only replaced.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// The key's text.
    pub(crate) key: Box<str>,
    pub(crate) variants: Vec<Arc<Object>>,
}

impl Entry {
    /// The variant for a request with these fields.
    pub(crate) fn variant(&self, request: &HeaderMap) -> Option<&Arc<Object>> {
        self.variants.iter().find(|object| object.is_for(request))
    }

    /// The same with `object` in the place of the variant that it replaces. What that was.
    pub(crate) fn with(&self, object: Arc<Object>) -> (Self, Option<Arc<Object>>) {
        let replaced = self.variants.iter().find(|other| other.selecting == object.selecting).cloned();
        let mut variants = Vec::with_capacity(self.variants.len() + 1);
        variants.push(Arc::clone(&object));
        // A response that varies by other fields than those before says by what the resource varies now.
        let names = |object: &Object| -> Vec<HeaderName> {
            object.selecting.iter().map(|(name, _)| name.clone()).collect()
        };
        let now = names(&object);
        variants.extend(
            self.variants
                .iter()
                .filter(|other| other.selecting != object.selecting && names(other) == now)
                .take(MAX_VARIANTS - 1)
                .cloned(),
        );
        (Self { key: self.key.clone(), variants }, replaced)
    }

    /// Octets of memory, about.
    pub(crate) fn footprint(&self) -> usize {
        size_of::<Self>()
            + self.key.len()
            + 128
            + self.variants.iter().map(|object| object.footprint()).sum::<usize>()
    }
}
