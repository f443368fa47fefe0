//! Orders of the admin listener: bans, whether there is an attack, proofs of sources.

use std::net::IpAddr;
use std::time::Duration;

use expressway_edge::guard::{Attack, list};
use expressway_settings::Span;
use serde::Deserialize;

/// How long a ban lasts that says nothing of it.
const BAN: Duration = Duration::from_secs(600);

/// How long one lasts at most.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

/// `{"sources": ["192.0.2.7", "2001:db8:1:2::/64"], "for": "1h"}`
#[derive(Debug, PartialEq)]
pub(super) struct Ban {
    pub(super) sources: Vec<IpAddr>,
    pub(super) time: Duration,
}

/// Which bans end: `{"sources": […]}` or `{"all": true}`.
#[derive(Debug, PartialEq)]
pub(super) enum Unban {
    All,
    Sources(Vec<IpAddr>),
}

fn read<'a, T: Deserialize<'a>>(order: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(order).map_err(|error| format!("not understood: {error}"))
}

/// What is banned of a source: an IPv4 address, or an IPv6 address with the /64 around it.
fn banned(text: &str) -> Result<IpAddr, String> {
    let prefix = list::prefix(text)?;
    let whole = |most: u8| {
        let wrong = || format!("`{text}`: bans are for IPv4 addresses and /64 of IPv6; use a block list");
        if prefix.length >= most { Ok(prefix.address) } else { Err(wrong()) }
    };
    whole(if prefix.address.is_ipv4() { 32 } else { 64 })
}

fn sources(texts: &[String]) -> Result<Vec<IpAddr>, String> {
    if texts.is_empty() {
        return Err("`sources` is empty: name one, such as \"192.0.2.7\"".to_owned());
    }
    texts.iter().map(|text| banned(text)).collect()
}

impl Ban {
    pub(super) fn read(order: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Order {
            sources: Vec<String>,
            #[serde(rename = "for")]
            time: Option<Span>,
        }
        let order: Order = read(order)?;
        let time = order.time.map_or(BAN, |time| time.0);
        if time.is_zero() || time > LONGEST {
            return Err(format!("`for` is {}: 1s to {}", Span(time), Span(LONGEST)));
        }
        Ok(Self { sources: sources(&order.sources)?, time })
    }
}

impl Unban {
    pub(super) fn read(order: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Order {
            #[serde(default)]
            sources: Vec<String>,
            #[serde(default)]
            all: bool,
        }
        match read::<Order>(order)? {
            Order { sources, all: true } if sources.is_empty() => Ok(Self::All),
            Order { all: true, .. } => Err("`all` excludes `sources`".to_owned()),
            Order { sources: texts, .. } => Ok(Self::Sources(sources(&texts)?)),
        }
    }
}

/// `{"attack": "on"}`, `"off"`, or `"auto"`.
pub(super) fn attack(order: &[u8]) -> Result<Attack, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Order {
        attack: Attack,
    }
    read::<Order>(order).map(|order| order.attack)
}

/// `{"sources": ["192.0.2.7"]}`: single addresses.
pub(super) fn learn(order: &[u8]) -> Result<Vec<IpAddr>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Order {
        sources: Vec<IpAddr>,
    }
    read::<Order>(order).map(|order| order.sources)
}

/// `{}`
pub(super) fn nothing(order: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Order {}
    read::<Order>(order).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_are_of_hosts_and_have_an_end() {
        let ban = Ban::read(br#"{"sources": ["192.0.2.7", "2001:db8:1:2::/64"], "for": "1h"}"#).unwrap();
        assert_eq!(ban.sources, ["192.0.2.7", "2001:db8:1:2::"].map(|text| text.parse::<IpAddr>().unwrap()));
        assert_eq!(ban.time, Duration::from_secs(3600));
        assert_eq!(Ban::read(br#"{"sources": ["192.0.2.7/32"]}"#).unwrap().time, BAN);
        for (wrong, says) in [
            (&br#"{"sources": ["192.0.2.0/24"]}"#[..], "block list"),
            (br#"{"sources": ["2001:db8::/48"]}"#, "block list"),
            (br#"{"sources": []}"#, "empty"),
            (br#"{"sources": ["here"]}"#, "not an address"),
            (br#"{"sources": ["192.0.2.7"], "for": "9000h"}"#, "1s to"),
            (br#"{"source": "192.0.2.7"}"#, "unknown field"),
            (b"", "not understood"),
        ] {
            let error = Ban::read(wrong).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn bans_end_by_source_or_all_together() {
        assert_eq!(Unban::read(br#"{"all": true}"#), Ok(Unban::All));
        assert_eq!(
            Unban::read(br#"{"sources": ["192.0.2.7"]}"#),
            Ok(Unban::Sources(vec!["192.0.2.7".parse().unwrap()]))
        );
        assert!(Unban::read(br#"{"all": true, "sources": ["192.0.2.7"]}"#).is_err());
        assert!(Unban::read(b"{}").unwrap_err().contains("empty"));
    }

    #[test]
    fn an_attack_is_on_off_or_told_by_limits() {
        assert_eq!(attack(br#"{"attack": "on"}"#), Ok(Attack::On));
        assert!(attack(br#"{"attack": "perhaps"}"#).unwrap_err().contains("auto, on"));
    }
}
