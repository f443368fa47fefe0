//! A rule: what it matches, and what it does.

use std::fmt;
use std::str::FromStr;

use expressway_settings::{Size, Span, named};
use expressway_xbpf::{GuardLimit, GuardPer, GuardPrefix, GuardRate, GuardRule};
use serde::{Deserialize, Deserializer};

use super::list;
use super::payload::{self, Pattern};

/// A value, or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Several {
    Number(u64),
    Text(String),
    List(Vec<Several>),
}

impl Several {
    fn texts(self) -> Vec<String> {
        match self {
            Self::Number(number) => vec![number.to_string()],
            Self::Text(text) => vec![text],
            Self::List(list) => list.into_iter().flat_map(Self::texts).collect(),
        }
    }
}

fn several<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, D::Error> {
    let texts = Several::deserialize(deserializer)?.texts();
    texts.iter().map(|text| read(text.trim()).map_err(serde::de::Error::custom)).collect()
}

fn prefixes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GuardPrefix>, D::Error> {
    several(deserializer, list::prefix)
}

fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err = String>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    several(deserializer, str::parse)
}

/// From the one to the other, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range(pub u16, pub u16);

impl FromStr for Range {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a number up to 65535 or a range, such as \"1000-2000\"");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        if first > last { Err(wrong()) } else { Ok(Self(first, last)) }
    }
}

/// A protocol by its name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol(pub u8);

impl FromStr for Protocol {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const NAMES: [(&str, u8); 8] = [
            ("icmp", 1),
            ("igmp", 2),
            ("tcp", 6),
            ("udp", 17),
            ("gre", 47),
            ("esp", 50),
            ("icmpv6", 58),
            ("sctp", 132),
        ];
        expressway_settings::by_name(text, &NAMES)
            .or_else(|known| text.parse().map_err(|_| known + " or a number"))
            .map(Self)
    }
}

/// TCP flags that have to be set, and that must not be: `syn,!ack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Bits of these.
    pub mask: u8,
    /// Their values.
    pub value: u8,
}

impl FromStr for Flags {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const NAMES: [(&str, u8); 8] = [
            ("fin", 1),
            ("syn", 2),
            ("rst", 4),
            ("psh", 8),
            ("ack", 16),
            ("urg", 32),
            ("ece", 64),
            ("cwr", 128),
        ];
        let mut flags = Self { mask: 0, value: 0 };
        for word in text.split(',').map(str::trim) {
            let (name, set) = word.strip_prefix('!').map_or((word, true), |name| (name, false));
            let bit: u8 = expressway_settings::by_name(name, &NAMES)?;
            if flags.mask & bit != 0 {
                return Err(format!("`{text}` contains {name} twice"));
            }
            flags.mask |= bit;
            flags.value |= if set { bit } else { 0 };
        }
        Ok(flags)
    }
}

impl<'de> Deserialize<'de> for Flags {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// So many a second: `"10k/s"`; with a unit of size it counts bytes: `"10MiB/s"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// A second, at least 1.
    pub number: u64,
    /// Bytes rather than packets.
    pub bytes: bool,
}

impl FromStr for Rate {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a rate, such as \"10k/s\" (packets) or \"10MiB/s\"");
        let amount = text.strip_suffix("/s").ok_or_else(wrong)?.trim();
        let bytes = amount.ends_with('B');
        let number = if bytes {
            amount.parse::<Size>().map_err(|_| wrong())?.0
        } else {
            let digits = amount.trim_end_matches(|c: char| !c.is_ascii_digit());
            let unit: u64 = match &amount[digits.len()..] {
                "" => 1,
                "k" => 1000,
                "M" => 1_000_000,
                _ => return Err(wrong()),
            };
            digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(wrong)?
        };
        match number {
            0 => Err(format!("`{text}` passes nothing: use action = \"drop\"")),
            1..=1_000_000_000_000 => Ok(Self { number, bytes }),
            _ => Err(format!("`{text}` is more than 10^12 a second")),
        }
    }
}

/// What a rule does with what it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Passes it.
    Pass,
    /// Drops it.
    Drop,
}

impl Action {
    const NAMES: [(&'static str, Self); 2] = [("pass", Self::Pass), ("drop", Self::Drop)];
}

named!(Action);

/// What a limit counts apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Per {
    /// All packets of the rule together.
    #[default]
    Rule,
    /// Each source.
    Source,
    /// Each destination.
    Destination,
    /// Each destination port.
    Port,
}

impl Per {
    const NAMES: [(&'static str, Self); 4] = [
        ("rule", Self::Rule),
        ("source", Self::Source),
        ("destination", Self::Destination),
        ("port", Self::Port),
    ];
}

named!(Per);

/// A rule of the file. A field that is not given matches everything.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// By which statistics name it.
    pub name: String,
    /// Prefixes, one of which has the source.
    #[serde(default, deserialize_with = "prefixes")]
    pub source: Vec<GuardPrefix>,
    /// Likewise the destination.
    #[serde(default, deserialize_with = "prefixes")]
    pub destination: Vec<GuardPrefix>,
    /// TCP, UDP and the like.
    #[serde(default, deserialize_with = "parsed")]
    pub protocol: Vec<Protocol>,
    /// Packets without ports, such as later fragments, match no port.
    #[serde(default, deserialize_with = "parsed")]
    pub source_port: Vec<Range>,
    /// Likewise.
    #[serde(default, deserialize_with = "parsed")]
    pub destination_port: Vec<Range>,
    /// Bytes of the IP packet.
    #[serde(default, deserialize_with = "parsed")]
    pub length: Vec<Range>,
    /// TCP alone.
    pub tcp_flags: Option<Flags>,
    /// Patterns, one of which is in the payload. Later fragments have none.
    #[serde(default, deserialize_with = "payload::patterns")]
    pub payload: Vec<Pattern>,
    /// Without a limit.
    pub action: Option<Action>,
    /// Rates, of packets, bytes or both; what is over one is dropped.
    #[serde(default, deserialize_with = "parsed")]
    pub limit: Vec<Rate>,
    /// At once: packets. A tenth of a second's if not given.
    pub burst: Option<u64>,
    /// At once: bytes, likewise, and at least the longest packet.
    pub burst_bytes: Option<Size>,
    /// What is counted apart.
    #[serde(default)]
    pub per: Per,
    /// Bits of an IPv4 address that count, 8 to 32.
    pub prefix4: Option<u8>,
    /// Bits of an IPv6 address that count, 16 to 128.
    pub prefix6: Option<u8>,
    /// How long a source is banned that is over the limit.
    pub ban: Option<Span>,
}

/// Bytes of the longest IP packet.
const LONGEST: u64 = 65_535;

impl Rule {
    /// What it does, as the program has it.
    ///
    /// # Errors
    /// A key, and what is wrong with it.
    pub fn effect(&self) -> Result<GuardRule, (&'static str, String)> {
        let given = |key: &'static str, given: bool| {
            if given { Err((key, "requires `limit`".to_owned())) } else { Ok(()) }
        };
        match (self.action, self.limit.is_empty()) {
            (None, true) => return Err(("name", "has neither `action` nor `limit`".into())),
            (Some(_), false) => {
                return Err((
                    "action",
                    "cannot be combined with `limit`, which both passes and drops".into(),
                ));
            }
            (None, false) => {}
            (Some(action), true) => {
                given("burst", self.burst.is_some())?;
                given("burst_bytes", self.burst_bytes.is_some())?;
                given("per", self.per != Per::Rule)?;
                given("ban", self.ban.is_some())?;
                return Ok(if action == Action::Pass { GuardRule::Pass } else { GuardRule::Drop });
            }
        }
        let rate = |bytes| {
            let mut rates = self.limit.iter().filter(|rate| rate.bytes == bytes).map(|rate| rate.number);
            let first = rates.next();
            if rates.next().is_some() {
                Err(("limit", "two rates of the same kind".to_owned()))
            } else {
                Ok(first)
            }
        };
        let (packets, bytes) = (rate(false)?, rate(true)?);
        if self.burst == Some(0) || self.burst.is_some() && packets.is_none() {
            return Err(("burst", "must be at least 1, and needs a rate of packets".into()));
        }
        if self.burst_bytes.is_some_and(|burst| burst.0 < LONGEST || bytes.is_none()) {
            return Err(("burst_bytes", format!("must be at least {LONGEST}, and needs a rate of bytes")));
        }
        let (prefix4, prefix6) = (self.prefix4.unwrap_or(32), self.prefix6.unwrap_or(64));
        if !(8..=32).contains(&prefix4) || !(16..=128).contains(&prefix6) {
            return Err((
                "prefix4",
                "must be 8 to 32 bits for IPv4, and `prefix6` 16 to 128 for IPv6".into(),
            ));
        }
        if self.ban.is_some() && self.per != Per::Source {
            return Err((
                "ban",
                "requires per = \"source\": otherwise it would ban unrelated sources".into(),
            ));
        }
        Ok(GuardRule::Limit(GuardLimit {
            packets: packets.map(|rate| GuardRate { rate, burst: self.burst.unwrap_or((rate / 10).max(1)) }),
            bytes: bytes.map(|rate| GuardRate {
                rate,
                burst: self.burst_bytes.map_or((rate / 10).max(LONGEST), |burst| burst.0),
            }),
            per: match self.per {
                Per::Rule => GuardPer::Rule,
                Per::Source => GuardPer::Source { prefix4, prefix6 },
                Per::Destination => GuardPer::Destination { prefix4, prefix6 },
                Per::Port => GuardPer::Port,
            },
            ban: self.ban.map_or(0, |ban| u64::try_from(ban.0.as_nanos()).unwrap_or(u64::MAX)).min(1 << 62),
        }))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_packets_or_bytes() {
        assert_eq!("10k/s".parse(), Ok(Rate { number: 10_000, bytes: false }));
        assert_eq!("3MiB/s".parse(), Ok(Rate { number: 3 << 20, bytes: true }));
        for wrong in ["10k", "10x/s", "0/s", "-1/s", "", "/s", "99999999999999999999/s", "2M5/s"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn flags_are_set_or_not() {
        assert_eq!("syn,!ack".parse(), Ok(Flags { mask: 18, value: 2 }));
        assert!("syn,!syn".parse::<Flags>().is_err());
        assert!("shine".parse::<Flags>().unwrap_err().contains("fin, syn"));
    }

    #[test]
    fn ranges_and_protocols() {
        assert_eq!("53".parse(), Ok(Range(53, 53)));
        assert_eq!("1-1023".parse(), Ok(Range(1, 1023)));
        assert!("9-1".parse::<Range>().is_err() && "65536".parse::<Range>().is_err());
        assert_eq!("udp".parse(), Ok(Protocol(17)));
        assert_eq!("89".parse(), Ok(Protocol(89)));
        assert!("ospf".parse::<Protocol>().unwrap_err().contains("or a number"));
    }
}
