//! The static table (RFC 9204, appendix A), and its index by name.

/// A field of the table.
pub(super) type Entry = (&'static [u8], &'static [u8]);

/// The entries by their index.
#[rustfmt::skip]
pub(super) const TABLE: [Entry; 99] = [
    (b":authority", b""),
    (b":path", b"/"),
    (b"age", b"0"),
    (b"content-disposition", b""),
    (b"content-length", b"0"),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"referer", b""),
    (b"set-cookie", b""),
    (b":method", b"CONNECT"),
    (b":method", b"DELETE"),
    (b":method", b"GET"),
    (b":method", b"HEAD"),
    (b":method", b"OPTIONS"),
    (b":method", b"POST"),
    (b":method", b"PUT"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"103"),
    (b":status", b"200"),
    (b":status", b"304"),
    (b":status", b"404"),
    (b":status", b"503"),
    (b"accept", b"*/*"),
    (b"accept", b"application/dns-message"),
    (b"accept-encoding", b"gzip, deflate, br"),
    (b"accept-ranges", b"bytes"),
    (b"access-control-allow-headers", b"cache-control"),
    (b"access-control-allow-headers", b"content-type"),
    (b"access-control-allow-origin", b"*"),
    (b"cache-control", b"max-age=0"),
    (b"cache-control", b"max-age=2592000"),
    (b"cache-control", b"max-age=604800"),
    (b"cache-control", b"no-cache"),
    (b"cache-control", b"no-store"),
    (b"cache-control", b"public, max-age=31536000"),
    (b"content-encoding", b"br"),
    (b"content-encoding", b"gzip"),
    (b"content-type", b"application/dns-message"),
    (b"content-type", b"application/javascript"),
    (b"content-type", b"application/json"),
    (b"content-type", b"application/x-www-form-urlencoded"),
    (b"content-type", b"image/gif"),
    (b"content-type", b"image/jpeg"),
    (b"content-type", b"image/png"),
    (b"content-type", b"text/css"),
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-type", b"text/plain"),
    (b"content-type", b"text/plain;charset=utf-8"),
    (b"range", b"bytes=0-"),
    (b"strict-transport-security", b"max-age=31536000"),
    (b"strict-transport-security", b"max-age=31536000; includesubdomains"),
    (b"strict-transport-security", b"max-age=31536000; includesubdomains; preload"),
    (b"vary", b"accept-encoding"),
    (b"vary", b"origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-xss-protection", b"1; mode=block"),
    (b":status", b"100"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"302"),
    (b":status", b"400"),
    (b":status", b"403"),
    (b":status", b"421"),
    (b":status", b"425"),
    (b":status", b"500"),
    (b"accept-language", b""),
    (b"access-control-allow-credentials", b"FALSE"),
    (b"access-control-allow-credentials", b"TRUE"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"get"),
    (b"access-control-allow-methods", b"get, post, options"),
    (b"access-control-allow-methods", b"options"),
    (b"access-control-expose-headers", b"content-length"),
    (b"access-control-request-headers", b"content-type"),
    (b"access-control-request-method", b"get"),
    (b"access-control-request-method", b"post"),
    (b"alt-svc", b"clear"),
    (b"authorization", b""),
    (b"content-security-policy", b"script-src 'none'; object-src 'none'; base-uri 'none'"),
    (b"early-data", b"1"),
    (b"expect-ct", b""),
    (b"forwarded", b""),
    (b"if-range", b""),
    (b"origin", b""),
    (b"purpose", b"prefetch"),
    (b"server", b""),
    (b"timing-allow-origin", b"*"),
    (b"upgrade-insecure-requests", b"1"),
    (b"user-agent", b""),
    (b"x-forwarded-for", b""),
    (b"x-frame-options", b"deny"),
    (b"x-frame-options", b"sameorigin"),
];

/// The longest name in the table.
const MAX_NAME: usize = 32;

/// Ends a chain.
const END: u8 = u8::MAX;

/// The table by names: names of one length are a chain, entries of one name another.
struct Index {
    /// The first entry of the first name of each length.
    by_length: [u8; MAX_NAME + 1],
    /// From the first entry of a name to that of the next name of the same length.
    next_name: [u8; TABLE.len()],
    /// From an entry to the next of the same name.
    next_value: [u8; TABLE.len()],
}

const fn equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

static INDEX: Index = {
    let mut index = Index {
        by_length: [END; MAX_NAME + 1],
        next_name: [END; TABLE.len()],
        next_value: [END; TABLE.len()],
    };
    // Backwards, so that chains run forwards.
    let mut at = TABLE.len();
    while at > 0 {
        at -= 1;
        let mut earlier = at;
        let mut is_first = true;
        while earlier > 0 {
            earlier -= 1;
            if equal(TABLE[earlier].0, TABLE[at].0) {
                index.next_value[earlier] = at as u8;
                is_first = false;
                break;
            }
        }
        if is_first {
            let length = TABLE[at].0.len();
            index.next_name[at] = index.by_length[length];
            index.by_length[length] = at as u8;
        }
    }
    index
};

/// What the table has of a field, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// Name and value.
    Field(u8),
    /// The name only.
    Name(u8),
}

/// The first entry with `name`.
#[inline]
fn find_name(name: &[u8]) -> Option<u8> {
    let mut at = *INDEX.by_length.get(name.len())?;
    while at != END {
        if TABLE[usize::from(at)].0 == name {
            return Some(at);
        }
        at = INDEX.next_name[usize::from(at)];
    }
    None
}

/// Finds a field, or its name.
#[inline]
pub(super) fn find(name: &[u8], value: &[u8]) -> Option<Match> {
    let first = find_name(name)?;
    let mut at = first;
    while at != END {
        if TABLE[usize::from(at)].1 == value {
            return Some(Match::Field(at));
        }
        at = INDEX.next_value[usize::from(at)];
    }
    Some(Match::Name(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_where_it_is() {
        for (at, (name, value)) in TABLE.iter().enumerate() {
            assert_eq!(find(name, value), Some(Match::Field(at as u8)));
            let first = TABLE.iter().position(|(other, _)| other == name).unwrap();
            assert_eq!(find(name, b"no such value"), Some(Match::Name(first as u8)));
        }
        for name in ["", "x", "dates", "a-name-longer-than-any-in-the-table-of-qpack"] {
            assert_eq!(find(name.as_bytes(), b""), None);
        }
    }

    #[test]
    fn entries_stand_where_rfc_9204_has_them() {
        let entry = |name: &'static str, value: &'static str| (name.as_bytes(), value.as_bytes());
        for (at, expected) in [
            (0, entry(":authority", "")),
            (1, entry(":path", "/")),
            (25, entry(":status", "200")),
            (62, entry("x-xss-protection", "1; mode=block")),
            (63, entry(":status", "100")),
            (98, entry("x-frame-options", "sameorigin")),
        ] {
            assert_eq!(TABLE[at], expected);
        }
    }
}
