//! Fragments of SDP about ICE (RFC 8840, section 9), and which ICE session a request is about (RFC 9725, section 4.3).

use std::net::SocketAddr;

use http::header::{HeaderMap, HeaderValue, IF_MATCH};
use str0m::{Candidate, IceCreds};

/// Lines of a fragment that are read: some tens of candidates.
const LINES: usize = 500;
/// Octets of a line that is repeated in the answer.
const REPEATED: usize = 256;
/// Lengths of a username fragment and of a password (RFC 8839, section 5.4).
const UFRAG: std::ops::RangeInclusive<usize> = 4..=256;
const PASSWORD: std::ops::RangeInclusive<usize> = 22..=256;

/// The ICE session that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Matched {
    /// The one that there is: it has more candidates.
    Current,
    /// Whichever there is: another is to begin.
    Any,
    /// Another one.
    Other,
    /// None.
    Missing,
}

/// The value of ETag for a session (RFC 9110, section 8.8.3); `None` if it has characters that no header may have.
pub(super) fn entity_tag(tag: &str) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("\"{tag}\"")).ok()
}

/// By `If-Match`, of the session with that entity tag (RFC 9110, section 13.1.1).
pub(super) fn matched(headers: &HeaderMap, tag: &str) -> Matched {
    let mut found = Matched::Missing;
    for value in headers.get_all(IF_MATCH) {
        let Ok(value) = value.to_str() else { return Matched::Other };
        for one in value.split(',').map(str::trim) {
            match one {
                "*" => return Matched::Any,
                _ if one.strip_prefix('"').and_then(|one| one.strip_suffix('"')) == Some(tag) => {
                    return Matched::Current;
                }
                _ => found = Matched::Other,
            }
        }
    }
    found
}

/// What a peer says of its ICE.
#[derive(Debug)]
pub(super) struct Fragment<'a> {
    /// Its new credentials.
    pub(super) credentials: Option<IceCreds>,
    /// Its media section: `m=` and `a=mid`.
    section: [Option<&'a str>; 2],
}

impl<'a> Fragment<'a> {
    /// Of one that can be read.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let (mut ufrag, mut password, mut section) = (None, None, [None; 2]);
        for (number, line) in text.lines().enumerate() {
            if number >= LINES || !is_line(line) {
                return None;
            }
            // All media of a session are bundled: the first say it.
            let place = match line {
                _ if line.starts_with("m=") => Some(0),
                _ if line.starts_with("a=mid:") => Some(1),
                _ => None,
            };
            if let Some(place) = place.filter(|_| line.len() <= REPEATED) {
                section[place].get_or_insert(line);
            }
            if let Some(value) = line.strip_prefix("a=ice-ufrag:") {
                ufrag.get_or_insert(value);
            } else if let Some(value) = line.strip_prefix("a=ice-pwd:") {
                password.get_or_insert(value);
            }
        }
        let credentials = match (ufrag, password) {
            (Some(ufrag), Some(password)) if is_ice(ufrag, UFRAG) && is_ice(password, PASSWORD) => {
                Some(IceCreds { ufrag: ufrag.into(), pass: password.into() })
            }
            (None, None) => None,
            _ => return None,
        };
        Some(Self { credentials, section })
    }

    /// The relay's side of a new ICE session.
    pub(super) fn answer(&self, own: &IceCreds, announce: &[SocketAddr]) -> Option<String> {
        let mut out = String::from("a=ice-lite\r\n");
        for line in self.section.iter().flatten() {
            out += &format!("{line}\r\n");
        }
        out += &format!("a=ice-ufrag:{}\r\na=ice-pwd:{}\r\n", own.ufrag, own.pass);
        for address in announce {
            let candidate = Candidate::host(*address, "udp").ok()?.to_sdp_string();
            out += &format!("a={}\r\n", candidate.trim_start_matches("a="));
        }
        out += "a=end-of-candidates\r\n";
        Some(out)
    }
}

/// A line of SDP: a letter, and what it is (RFC 8866, section 5).
fn is_line(line: &str) -> bool {
    line.is_empty() || line.as_bytes().get(1) == Some(&b'=') && !line.chars().any(char::is_control)
}

/// Characters of ICE (RFC 8839, section 5.4), so many of them.
fn is_ice(text: &str, length: std::ops::RangeInclusive<usize>) -> bool {
    length.contains(&text.len())
        && text.bytes().all(|octet| octet.is_ascii_alphanumeric() || b"+/".contains(&octet))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASS: &str = "0123456789012345678901";

    #[test]
    fn credentials_and_a_section_are_read() {
        let text = format!(
            "a=group:BUNDLE 0 1\r\nm=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:0\r\na=ice-ufrag:EsAw\r\na=ice-pwd:{PASS}\r\nm=video 9 RTP/AVP 0\r\na=mid:1\r\n"
        );
        let fragment = Fragment::parse(&text).unwrap();
        let credentials = fragment.credentials.as_ref().unwrap();
        assert_eq!((credentials.ufrag.as_str(), credentials.pass.as_str()), ("EsAw", PASS));
        let own = IceCreds { ufrag: "own".into(), pass: "secret".into() };
        let answer = fragment.answer(&own, &["192.0.2.1:3478".parse().unwrap()]).unwrap();
        let lines: Vec<_> = answer.split("\r\n").collect();
        assert_eq!(
            lines[..5],
            [
                "a=ice-lite",
                "m=audio 9 UDP/TLS/RTP/SAVPF 111",
                "a=mid:0",
                "a=ice-ufrag:own",
                "a=ice-pwd:secret"
            ]
        );
        assert!(
            lines[5].starts_with("a=candidate:") && lines[5].contains(" 192.0.2.1 3478 typ host"),
            "{answer}"
        );
        assert_eq!(lines[6..], ["a=end-of-candidates", ""]);
    }

    #[test]
    fn what_is_none_is_refused() {
        assert!(Fragment::parse("").unwrap().credentials.is_none());
        assert!(Fragment::parse("a=end-of-candidates\r\n").unwrap().credentials.is_none());
        for wrong in [
            "hello".into(),
            "a=ice-ufrag:abcd".into(),
            format!("a=ice-pwd:{PASS}"),
            format!("a=ice-ufrag:abc\na=ice-pwd:{PASS}"),
            format!("a=ice-ufrag:ab d\na=ice-pwd:{PASS}"),
            format!("a=ice-ufrag:abcd\na=ice-pwd:{}", "x".repeat(257)),
            "a=x\u{7}".into(),
            "a=x\n".repeat(LINES + 1),
        ] {
            assert!(Fragment::parse(&wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn an_ice_session_is_named_by_its_tag() {
        let headers = |values: &[&str]| {
            let pairs = values.iter().map(|value| (IF_MATCH, value.parse().unwrap()));
            HeaderMap::from_iter(pairs)
        };
        for (values, expected) in [
            (&[][..], Matched::Missing),
            (&["\"tag\""], Matched::Current),
            (&["\"other\", \"tag\""], Matched::Current),
            (&["\"other\"", "\"tag\""], Matched::Current),
            (&["*"], Matched::Any),
            (&["tag"], Matched::Other),
            (&["W/\"tag\""], Matched::Other),
            (&["\"other\""], Matched::Other),
            (&[""], Matched::Other),
        ] {
            assert_eq!(matched(&headers(values), "tag"), expected, "{values:?}");
        }
    }
}
