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

/// Whether `target` asks for a playlist that may not be there yet: its answer may take some target durations.
pub fn is_blocking_reload(target: &str) -> bool {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    query
        .split('&')
        .any(|parameter| parameter.strip_prefix(SEGMENT).is_some_and(|rest| rest.starts_with('=')))
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
        for target in ["/_HLS_msn=1", "/a?x_HLS_msn=1", "/a?_HLS_msn", "/a?_HLS_part=1", "/a?_HLS_msnx=1"] {
            assert!(!is_blocking_reload(target), "{target}");
        }
    }
}
