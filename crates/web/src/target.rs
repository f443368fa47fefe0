//! The request target: percent-decoded once, dot segments resolved, slashes merged.
//!
//! What comes out never names anything above the root: it begins with `/`, no segment is empty, `.` or
//! `..`, and it holds no NUL. `openat2(RESOLVE_BENEATH)` says the same to the kernel; neither relies on
//! the other.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::scan::{last_position, looked_at};

/// A target in normal form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    /// The decoded path. Octets, not text: file names on Linux are octets.
    pub(crate) path: Cow<'a, [u8]>,
    /// What follows `?`, as received.
    pub(crate) query: Option<&'a str>,
}

/// The target is not valid in HTTP, or it climbs above the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidTarget;

impl<'a> Target<'a> {
    /// Normalises `target` (path and query as received) the way nginx does with `merge_slashes on`.
    pub(crate) fn parse(target: &'a str) -> Result<Self, InvalidTarget> {
        let bytes = target.as_bytes();
        if bytes.first() != Some(&b'/') || bytes.iter().any(|&b| b <= b' ' || b == 0x7f) {
            return Err(InvalidTarget);
        }
        let end = bytes.iter().position(|&b| b == b'?' || b == b'#').unwrap_or(bytes.len());
        let query = (bytes.get(end) == Some(&b'?')).then(|| &target[end + 1..]);
        let raw = &bytes[..end];
        let path = if is_normal(raw) { Cow::Borrowed(raw) } else { Cow::Owned(normalize(&decode(raw)?)?) };
        Ok(Self { path, query })
    }
}

/// Whether `raw` is its own normal form; true for nearly every request.
fn is_normal(raw: &[u8]) -> bool {
    looked_at(raw.len());
    let mut previous = 0;
    raw.iter().all(|&b| {
        let plain = b != b'%' && !(previous == b'/' && (b == b'/' || b == b'.'));
        previous = b;
        plain
    })
}

/// Percent-decodes once. NUL and broken escapes are errors.
fn decode(raw: &[u8]) -> Result<Vec<u8>, InvalidTarget> {
    looked_at(raw.len());
    let mut decoded = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            decoded.push(first);
            continue;
        }
        let [high, low, ..] = *tail else { return Err(InvalidTarget) };
        let digit = |b: u8| char::from(b).to_digit(16).ok_or(InvalidTarget);
        let byte = (digit(high)? << 4 | digit(low)?) as u8;
        if byte == 0 {
            return Err(InvalidTarget);
        }
        decoded.push(byte);
        rest = &tail[2..];
    }
    Ok(decoded)
}

/// Resolves `.` and `..` and merges slashes. A path that climbs above the root is an error.
fn normalize(path: &[u8]) -> Result<Vec<u8>, InvalidTarget> {
    looked_at(path.len());
    let mut normal = Vec::with_capacity(path.len());
    // Ends with `/` between segments; the last segment decides whether it does at the end.
    normal.push(b'/');
    let mut segments = path[1..].split(|&b| b == b'/').peekable();
    while let Some(segment) = segments.next() {
        match segment {
            b"" | b"." => {}
            b".." => {
                if normal.len() == 1 {
                    return Err(InvalidTarget);
                }
                normal.pop();
                // No further than what is taken off: a path is read once, however it climbs.
                let parent = last_position(&normal, |b| b == b'/').unwrap_or(0);
                normal.truncate(parent + 1);
            }
            name => {
                normal.extend_from_slice(name);
                if segments.peek().is_some() {
                    normal.push(b'/');
                }
            }
        }
    }
    Ok(normal)
}

/// What a path may hold as it is: unreserved characters, sub-delimiters, `:`, `@` and `/` (RFC 3986, 3.3).
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@')
    .remove(b'/');

/// `path` percent-encoded for a `location` header, so that no octet of a file name can end or split it.
pub(crate) fn encode_path(path: &[u8]) -> String {
    percent_encode(path, PATH).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::assert_linear;
    use proptest::prelude::*;

    fn path(target: &str) -> Option<String> {
        Target::parse(target).ok().map(|target| String::from_utf8_lossy(&target.path).into_owned())
    }

    #[test]
    fn normal_targets_are_borrowed() {
        let target = Target::parse("/video/clip.mp4?t=1?2").unwrap();
        assert!(matches!(target.path, Cow::Borrowed(b"/video/clip.mp4")));
        assert_eq!(target.query, Some("t=1?2"));
    }

    #[test]
    fn resolves_as_nginx_does() {
        for (target, expected) in [
            ("/", "/"),
            ("//a///b", "/a/b"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/a/...", "/a/..."),
            ("/a/.b", "/a/.b"),
            ("/%61%2fb", "/a/b"),
            ("/a/%2e%2e/b", "/b"),
            ("/a/%2e%2E%2Fb", "/b"),
            ("/%252e%252e/a", "/%2e%2e/a"),
            ("/a%3Fb", "/a?b"),
            ("/a#b", "/a"),
            ("/a\\..\\b", "/a\\..\\b"),
            ("/a%5c..%5cb", "/a\\..\\b"),
        ] {
            assert_eq!(path(target).as_deref(), Some(expected), "{target}");
        }
    }

    #[test]
    fn refuses_what_climbs_or_is_malformed() {
        for target in [
            "",
            "a",
            "*",
            "/..",
            "/../a",
            "/a/../../b",
            "/%2e%2e/a",
            "/.%2e/",
            "/a%2f..%2f..%2fb",
            "/%00",
            "/a%00.txt",
            "/%",
            "/%4",
            "/%zz",
            "/a b",
            "/a\nb",
            "/a\x7f",
        ] {
            assert_eq!(path(target), None, "{target:?}");
        }
    }

    #[test]
    fn only_path_characters_survive_encoding() {
        assert_eq!(encode_path(b"/a b\"\r\n\\?#%\xff/"), "/a%20b%22%0D%0A%5C%3F%23%25%FF/");
    }

    #[test]
    fn a_target_is_read_once_whatever_is_in_it() {
        let bare = |piece: &'static str| (piece, "");
        for (piece, end) in [
            bare("/a"),
            bare("/"),
            bare("/."),
            bare("/a/.."),
            bare("/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/.."),
            bare("%2e"),
            bare("/%2e%2e"),
            ("/a", "%"),
            ("a", "/../.."),
        ] {
            let target = |size: usize| format!("/{}{end}", piece.repeat(size / piece.len())).into_bytes();
            assert_linear(piece, 4, target, |target| {
                let _ = Target::parse(std::str::from_utf8(target).unwrap());
            });
            // Half of it goes down, the other half up again.
            let climbs =
                |size: usize| format!("/{}{}", "a/".repeat(size / 5), "../".repeat(size / 5)).into_bytes();
            assert_linear("down and up", 4, climbs, |target| {
                assert_eq!(*Target::parse(std::str::from_utf8(target).unwrap()).unwrap().path, *b"/");
            });
        }
    }

    proptest! {
        #[test]
        fn a_normal_path_never_climbs(target in "/([a-c./\\\\%]|%2e|%2E|%2f|%5c|%25|%c0%ae|\\.\\./){0,24}") {
            if let Ok(target) = Target::parse(&target) {
                prop_assert_eq!(target.path[0], b'/');
                prop_assert!(!target.path.contains(&0));
                let segments: Vec<_> = target.path[1..].split(|&b| b == b'/').collect();
                for (index, segment) in segments.iter().enumerate() {
                    prop_assert!(*segment != b"." && *segment != b"..");
                    prop_assert!(!segment.is_empty() || index + 1 == segments.len());
                }
            }
        }

        #[test]
        fn an_encoded_path_parses_to_itself(segments in prop::collection::vec("[ -~]{1,8}", 1..5)) {
            let path = format!("/{}", segments.join("/").replace("//", "/"));
            let encoded = encode_path(path.as_bytes());
            if let Ok(once) = Target::parse(&encoded) {
                let again = encode_path(&once.path);
                prop_assert_eq!(Target::parse(&again).unwrap().path, once.path);
            }
        }
    }
}
