//! Delivery directives of a request for a playlist (draft-pantos-hls-rfc8216bis, section 6.2.5).

/// The part of a live playlist that a client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::files) struct Reload {
    /// The media sequence number of a segment.
    pub(super) segment: u64,
    /// A partial segment of it, from 0.
    pub(super) part: Option<u64>,
}

/// A directive has no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

const SEGMENT: &str = "_HLS_msn";
const PART: &str = "_HLS_part";

impl Reload {
    /// What a query asks for. Directives that are not known are ignored, as `_HLS_skip` is: the playlist is sent whole.
    pub(super) fn parse(query: &str) -> Result<Option<Self>, Malformed> {
        let (mut segment, mut part) = (None, None);
        for parameter in query.split('&') {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let place = match name {
                SEGMENT => &mut segment,
                PART => &mut part,
                _ => continue,
            };
            if place.replace(number(value).ok_or(Malformed)?).is_some() {
                return Err(Malformed);
            }
        }
        match (segment, part) {
            (Some(segment), part) => Ok(Some(Self { segment, part })),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Malformed),
        }
    }
}

/// A decimal integer without a sign.
fn number(value: &str) -> Option<u64> {
    value.bytes().all(|byte| byte.is_ascii_digit()).then(|| value.parse().ok()).flatten()
}

/// The directives of a request for a playlist, which change its answer.
const DIRECTIVES: [&str; 3] = [SEGMENT, PART, "_HLS_skip"];

/// Whether a path is that of an HLS playlist.
pub fn is_playlist(path: &[u8]) -> bool {
    path.len() > 5 && path[path.len() - 5..].eq_ignore_ascii_case(b".m3u8")
}

/// Whether a parameter of a query is a delivery directive.
pub fn is_directive(name: &str) -> bool {
    DIRECTIVES.contains(&name)
}

/// Whether `target` asks for a playlist that may not be there yet: its answer may take some target durations.
pub fn is_blocking_reload(target: &str) -> bool {
    let Some((path, query)) = target.split_once('?') else { return false };
    let is_segment =
        |parameter: &str| parameter.strip_prefix(SEGMENT).is_some_and(|rest| rest.starts_with('='));
    is_playlist(path.as_bytes()) && query.split('&').any(is_segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_of_queries() {
        let reload = |segment, part| Ok(Some(Reload { segment, part }));
        for (query, expected) in [
            ("", Ok(None)),
            ("a=1&_HLS_skip=YES", Ok(None)),
            ("_HLS_msn=7", reload(7, None)),
            ("_HLS_msn=7&_HLS_part=0&_HLS_skip=v2&_HLS_report=x", reload(7, Some(0))),
            ("_HLS_part=3&a&_HLS_msn=18446744073709551615", reload(u64::MAX, Some(3))),
            ("_HLS_msn=18446744073709551616", Err(Malformed)),
            ("_HLS_msn", Err(Malformed)),
            ("_HLS_msn=", Err(Malformed)),
            ("_HLS_msn=-1", Err(Malformed)),
            ("_HLS_msn=+1", Err(Malformed)),
            ("_HLS_msn=1.5", Err(Malformed)),
            ("_HLS_msn=%31", Err(Malformed)),
            ("_HLS_msn=1&_HLS_msn=1", Err(Malformed)),
            ("_HLS_part=1", Err(Malformed)),
            ("_HLS_msn=1&_HLS_part=x", Err(Malformed)),
        ] {
            assert_eq!(Reload::parse(query), expected, "{query}");
        }
    }

    #[test]
    fn reloads_are_told_by_their_targets() {
        assert!(is_blocking_reload("/a.m3u8?b&_HLS_msn=x"));
        for target in [
            "/a.m4s?_HLS_msn=1",
            "/_HLS_msn=1",
            "/a.m3u8?x_HLS_msn=1",
            "/a.m3u8?_HLS_msn",
            "/a.m3u8?_HLS_part=1",
        ] {
            assert!(!is_blocking_reload(target), "{target}");
        }
    }
}
