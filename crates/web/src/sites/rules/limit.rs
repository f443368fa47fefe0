//! How fast bodies go: a rule's rate, or what a media player says it can use (CTA-5004, CMCD).

use percent_encoding::percent_decode_str;

use crate::RequestHead;

/// The lowest rate that a client may ask for, in octets a second: CMCD's own unit of 100 kbit/s. What is slower keeps a
/// response, and what it holds, for too long.
const LEAST: u64 = 12_500;

/// Octets of a query's CMCD that are looked at.
const MAX_CMCD: usize = 2048;

/// Limits the rate of each response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitRate {
    /// Octets a second of a response's body; 0: as fast as it goes.
    pub rate: u64,
    /// Octets that go first, as fast as they go.
    pub after: u64,
    /// A client that names the throughput that it can use (`rtp`, in kbit/s) gets no more.
    pub cmcd_rtp: bool,
}

impl LimitRate {
    /// The rate of the response to a request, if it has one.
    pub(super) fn rate(&self, request: &RequestHead) -> Option<u64> {
        let asked = if self.cmcd_rtp { requested_throughput(request) } else { None };
        let limit = (self.rate > 0).then_some(self.rate);
        match (limit, asked.map(|kilobits| (kilobits * 125).max(LEAST))) {
            (Some(limit), Some(asked)) => Some(limit.min(asked)),
            (limit, asked) => limit.or(asked),
        }
    }
}

/// What `rtp` says, in kbit/s: in `CMCD-Status`, or in the query parameter `CMCD`.
fn requested_throughput(request: &RequestHead) -> Option<u64> {
    for value in request.headers.get_all("cmcd-status") {
        if let Some(rtp) = value.to_str().ok().and_then(rtp) {
            return Some(rtp);
        }
    }
    let (_, query) = request.target.split_once('?')?;
    let cmcd = query.split('&').find_map(|parameter| parameter.strip_prefix("CMCD="))?;
    let decoded: Vec<u8> = percent_decode_str(cmcd).take(MAX_CMCD).collect();
    rtp(std::str::from_utf8(&decoded).ok()?)
}

/// The key `rtp` of a list of them; commas in strings separate nothing.
fn rtp(list: &str) -> Option<u64> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let ends = |c: char| {
        match c {
            _ if std::mem::take(&mut is_escaped) => {}
            '\\' => is_escaped = is_quoted,
            '"' => is_quoted = !is_quoted,
            ',' => return !is_quoted,
            _ => {}
        }
        false
    };
    let mut keys = list.split(ends);
    let value = keys.find_map(|key| key.trim().strip_prefix("rtp="))?;
    value.parse::<u32>().ok().filter(|rtp| *rtp > 0).map(u64::from)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};

    use super::*;
    use crate::{Protocol, Scheme};

    fn rate(limit: LimitRate, target: &str, status: Option<&str>) -> Option<u64> {
        let headers =
            status.map(|status| (http::HeaderName::from_static("cmcd-status"), status.parse().unwrap()));
        limit.rate(&RequestHead {
            method: Method::GET,
            scheme: Scheme::Https,
            authority: String::new(),
            target: target.to_owned(),
            headers: HeaderMap::from_iter(headers),
            protocol: Protocol::H3,
            remote: ([192, 0, 2, 1], 1).into(),
            client_subject: None,
        })
    }

    #[test]
    fn the_lower_of_both_limits_counts() {
        let limit = |rate, cmcd_rtp| LimitRate { rate, after: 0, cmcd_rtp };
        assert_eq!(rate(limit(0, true), "/", None), None);
        assert_eq!(rate(limit(0, true), "/", Some("bs,rtp=12000")), Some(1_500_000));
        assert_eq!(rate(limit(0, false), "/", Some("rtp=12000")), None);
        assert_eq!(rate(limit(1000, true), "/", Some("rtp=12000")), Some(1000));
        assert_eq!(rate(limit(9_000_000, true), "/", Some("rtp=12000")), Some(1_500_000));
        assert_eq!(rate(limit(0, true), "/", Some("rtp=1")), Some(LEAST), "but not next to nothing");
        assert_eq!(rate(limit(0, true), "/a?b=1&CMCD=br%3D3200%2Crtp%3D800&c", None), Some(100_000));
    }

    #[test]
    fn only_a_key_of_that_name_counts() {
        for (list, expected) in [
            ("rtp=15000", Some(15_000)),
            ("bs, rtp=100 ", Some(100)),
            ("cid=\"a,rtp=1\",rtp=2", Some(2)),
            ("cid=\"a\\\",rtp=1\",rtp=2", Some(2)),
            ("cid=\"rtp=1,", None),
            ("com.a-rtp=7", None),
            ("rtp", None),
            ("rtp=0", None),
            ("rtp=-5", None),
            ("rtp=99999999999", None),
            ("", None),
        ] {
            assert_eq!(rtp(list), expected, "{list}");
        }
    }
}
