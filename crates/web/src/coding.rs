//! `accept-encoding`: the codings that a client accepts (RFC 9110, 12.5.3).

use http::header::{ACCEPT_ENCODING, HeaderMap};

use crate::files::Encoding;
use crate::scan::looked_at;

/// Thousandths, so that weights compare exactly.
type Weight = u16;

/// What `accept-encoding` says of each coding that we may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Accepted {
    brotli: Option<Weight>,
    zstd: Option<Weight>,
    gzip: Option<Weight>,
    identity: Option<Weight>,
    any: Option<Weight>,
}

impl Accepted {
    /// Reads every `accept-encoding` line. Malformed members count as not there.
    pub(crate) fn parse(headers: &HeaderMap) -> Self {
        let mut accepted = Self::default();
        for value in headers.get_all(ACCEPT_ENCODING) {
            for member in value.as_bytes().split(|&b| b == b',') {
                accepted.add(member);
            }
        }
        accepted
    }

    fn add(&mut self, member: &[u8]) {
        looked_at(member.len() + 1);
        let mut parameters = member.split(|&b| b == b';');
        let coding = parameters.next().unwrap_or_default().trim_ascii();
        let mut weight = Some(1000);
        for parameter in parameters {
            let parameter = parameter.trim_ascii();
            if let Some(value) = parameter.strip_prefix(b"q=").or_else(|| parameter.strip_prefix(b"Q=")) {
                weight = parse_weight(value);
            }
        }
        let slot = match coding {
            b"*" => &mut self.any,
            _ if coding.eq_ignore_ascii_case(b"br") => &mut self.brotli,
            _ if coding.eq_ignore_ascii_case(b"zstd") => &mut self.zstd,
            _ if coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip") => {
                &mut self.gzip
            }
            _ if coding.eq_ignore_ascii_case(b"identity") => &mut self.identity,
            _ => return,
        };
        *slot = weight.or(*slot);
    }

    /// The weight of `encoding`; `None` if the client does not take it or would rather have no coding.
    fn weight(&self, encoding: Encoding) -> Option<Weight> {
        let explicit = match encoding {
            Encoding::Brotli => self.brotli,
            Encoding::Zstd => self.zstd,
            Encoding::Gzip => self.gzip,
        };
        let weight = explicit.or(self.any).filter(|&weight| weight > 0)?;
        (self.identity.is_none_or(|identity| identity <= weight)).then_some(weight)
    }

    /// The one of `available` that the client likes best, earlier ones winning ties.
    pub(crate) fn choose(&self, available: impl Iterator<Item = Encoding>) -> Option<Encoding> {
        let mut best: Option<(Weight, Encoding)> = None;
        for encoding in available {
            if let Some(weight) = self.weight(encoding)
                && best.is_none_or(|(highest, _)| weight > highest)
            {
                best = Some((weight, encoding));
            }
        }
        best.map(|(_, encoding)| encoding)
    }
}

/// `0`, `1`, or either with up to three decimals, and no more than 1.
fn parse_weight(text: &[u8]) -> Option<Weight> {
    let (&first, rest) = text.split_first()?;
    let whole = match first {
        b'0' => 0,
        b'1' => 1000,
        _ => return None,
    };
    let decimals = match rest.split_first() {
        None => return Some(whole),
        Some((b'.', decimals)) if decimals.len() <= 3 => decimals,
        Some(_) => return None,
    };
    let mut scale = 100;
    let mut fraction = 0;
    for &digit in decimals {
        fraction += Weight::try_from(char::from(digit).to_digit(10)?).ok()? * scale;
        scale /= 10;
    }
    (whole + fraction <= 1000).then_some(whole + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::assert_linear;
    use Encoding::{Brotli, Gzip, Zstd};

    fn choose(value: &str, available: &[Encoding]) -> Option<Encoding> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, value.parse().unwrap());
        Accepted::parse(&headers).choose(available.iter().copied())
    }

    #[test]
    fn weights_decide_and_then_our_order() {
        for (value, expected) in [
            ("gzip, deflate, br, zstd", Some(Brotli)),
            ("gzip;q=1.0, br;q=0.9", Some(Gzip)),
            ("GZIP", Some(Gzip)),
            ("x-gzip", Some(Gzip)),
            ("br;q=0, gzip;q=0.001", Some(Gzip)),
            ("gzip;q=0", None),
            ("gzip;q=0.0, *;q=0.5", Some(Brotli)),
            ("*", Some(Brotli)),
            ("*;q=0", None),
            ("identity", None),
            ("identity;q=1, gzip;q=0.5", None),
            ("identity;q=0.5, gzip;q=0.5", Some(Gzip)),
            ("deflate", None),
            ("", None),
            ("gzip;q=2", None),
            ("gzip;q=1.001", None),
            ("gzip;q=0.1234", None),
            ("gzipped", None),
            (" gzip ; q=0.5 ", Some(Gzip)),
        ] {
            assert_eq!(choose(value, &[Brotli, Gzip]), expected, "{value}");
        }
        assert_eq!(choose("br, gzip", &[Gzip, Brotli]), Some(Gzip));
        assert_eq!(choose("br", &[Gzip]), None);
        assert_eq!(choose("gzip, br, zstd", &[Zstd, Brotli, Gzip]), Some(Zstd));
        assert_eq!(choose("zstd;q=0, *;q=0.1", &[Zstd]), None);
        assert_eq!(Accepted::parse(&HeaderMap::new()).choose([Gzip].into_iter()), None);
    }

    #[test]
    fn a_list_is_read_once_whatever_is_in_it() {
        for member in ["gzip,", "a;q=1,", ";", ",", "br;q=0.0001;q=1,", " ", "gzip ;q=0 "] {
            let list = |size: usize| member.repeat(size / member.len()).into_bytes();
            assert_linear(member, 1, list, |list| {
                let mut headers = HeaderMap::new();
                headers.insert(ACCEPT_ENCODING, list.try_into().unwrap());
                Accepted::parse(&headers);
            });
        }
    }
}
