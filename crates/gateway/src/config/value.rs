//! Value types of the configuration file, each with its own syntax and its own error text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// How packets move: `[io] mode` and `--io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// Whatever the host does best, chosen at start and reported; may step down.
    #[default]
    Auto,
    /// AF_XDP both ways, zero-copy or an error.
    ZeroCopy,
    /// AF_XDP both ways on a native XDP program, copy mode.
    Copy,
    /// AF_XDP receive, kernel GSO transmit.
    Hybrid,
    /// AF_XDP both ways on a generic XDP program (any driver, copy mode).
    Generic,
    /// Kernel UDP both ways.
    Udp,
}

impl IoMode {
    /// All modes by the name that the configuration and `--io` use.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("auto", Self::Auto),
        ("zerocopy", Self::ZeroCopy),
        ("copy", Self::Copy),
        ("hybrid", Self::Hybrid),
        ("generic", Self::Generic),
        ("udp", Self::Udp),
    ];
}

/// How the kernel path sends: `[io] udp_send`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UdpSend {
    /// UDP generic segmentation offload, several messages a sendmmsg call.
    #[default]
    Gso,
    /// One datagram a message, several messages a call.
    Sendmmsg,
    /// One datagram a call.
    Sendmsg,
}

impl UdpSend {
    /// All ways by name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("gso", Self::Gso), ("sendmmsg", Self::Sendmmsg), ("sendmsg", Self::Sendmsg)];
}

/// When a client must prove its address by a Retry packet (RFC 9000, section 8.1.2): `[quic] retry`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// Never.
    Never,
    /// Each new connection.
    Always,
    /// While more handshakes than `[quic] retry_threshold` are unfinished on a worker.
    #[default]
    UnderLoad,
}

impl Retry {
    /// All policies by name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("never", Self::Never), ("always", Self::Always), ("under-load", Self::UnderLoad)];
}

/// Congestion control: `[quic] congestion`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// BBR version 2.
    Bbr2,
    /// NewReno (RFC 9002, section 7).
    Reno,
}

impl Congestion {
    /// All algorithms by name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("cubic", Self::Cubic), ("bbr2", Self::Bbr2), ("reno", Self::Reno)];
}

/// Access-log line format: `[log] format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// The combined format of the web servers.
    Combined,
}

impl LogFormat {
    /// All formats by name.
    pub const NAMES: [(&'static str, Self); 2] = [("json", Self::Json), ("combined", Self::Combined)];
}

macro_rules! named {
    ($type:ty) => {
        impl FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                by_name(text, &Self::NAMES)
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let name = Self::NAMES.iter().find(|(_, value)| value == self).map_or("?", |(name, _)| name);
                f.write_str(name)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

named!(IoMode);
named!(UdpSend);
named!(Retry);
named!(Congestion);
named!(LogFormat);

fn by_name<T: Copy>(text: &str, names: &[(&'static str, T)]) -> Result<T, String> {
    names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        format!("`{text}` is none of {}", all.join(", "))
    })
}

/// The number of workers: `[server] workers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// One for each core that the process may run on.
    #[default]
    Auto,
    /// This many, 1 to 255.
    Count(u8),
}

impl<'de> Deserialize<'de> for Workers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Number(i64),
            Text(String),
        }
        match Raw::deserialize(deserializer) {
            Ok(Raw::Number(n @ 1..=255)) => Ok(Self::Count(n as u8)),
            Ok(Raw::Text(text)) if text == "auto" => Ok(Self::Auto),
            _ => Err(serde::de::Error::custom("give \"auto\" or a number from 1 to 255")),
        }
    }
}

/// A number of bytes: `65536`, `"64KiB"`, `"256MiB"`, `"1GiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit: u64 = match text[digits.len()..].trim() {
            "" | "B" => 1,
            "KiB" | "k" | "K" => 1 << 10,
            "MiB" | "m" | "M" => 1 << 20,
            "GiB" | "g" | "G" => 1 << 30,
            other => return Err(format!("`{other}` is no unit of size: B, KiB, MiB or GiB")),
        };
        let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no size, such as \"64KiB\""))?;
        number.checked_mul(unit).map(Size).ok_or_else(|| format!("`{text}` does not fit 64 bits"))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        number_or_text(deserializer, "a size, such as \"64KiB\" or a number of bytes", |n| Some(Size(n)))
    }
}

/// A span of time: `"30s"`, `"500ms"`, `"5m"`, `"1h"`; a bare number counts seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no duration, such as \"30s\""))?;
        let milliseconds: u64 = match text[digits.len()..].trim() {
            "ms" => 1,
            "s" | "" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            other => return Err(format!("`{other}` is no unit of time: ms, s, m or h")),
        };
        let total = number.checked_mul(milliseconds).ok_or_else(|| format!("`{text}` is too long"))?;
        Ok(Span(Duration::from_millis(total)))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        number_or_text(deserializer, "a duration, such as \"30s\" or a number of seconds", |n| {
            n.checked_mul(1000).map(|ms| Span(Duration::from_millis(ms)))
        })
    }
}

fn number_or_text<'de, D, T>(
    deserializer: D,
    expected: &str,
    number: impl Fn(u64) -> Option<T>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Raw {
        Number(u64),
        Text(String),
    }
    match Raw::deserialize(deserializer) {
        Ok(Raw::Number(n)) => {
            number(n).ok_or_else(|| serde::de::Error::custom(format!("expected {expected}")))
        }
        Ok(Raw::Text(text)) => text.parse().map_err(serde::de::Error::custom),
        Err(_) => Err(serde::de::Error::custom(format!("expected {expected}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!("64KiB".parse(), Ok(Size(65536)));
        assert_eq!("12".parse(), Ok(Size(12)));
        assert_eq!("1 GiB".parse(), Ok(Size(1 << 30)));
        assert!("12 parsecs".parse::<Size>().unwrap_err().contains("parsecs"));
        assert!("99999999999GiB".parse::<Size>().unwrap_err().contains("64 bits"));
        assert!("MiB".parse::<Size>().is_err());
    }

    #[test]
    fn spans_have_units_of_time() {
        assert_eq!("500ms".parse(), Ok(Span(Duration::from_millis(500))));
        assert_eq!("30".parse(), Ok(Span(Duration::from_secs(30))));
        assert_eq!("2h".parse(), Ok(Span(Duration::from_secs(7200))));
        assert!("2 fortnights".parse::<Span>().unwrap_err().contains("fortnights"));
        assert!("".parse::<Span>().is_err());
    }

    #[test]
    fn modes_print_as_they_parse() {
        for (name, mode) in IoMode::NAMES {
            assert_eq!(name.parse(), Ok(mode));
            assert_eq!(mode.to_string(), name);
        }
        assert!("zero-copy".parse::<IoMode>().unwrap_err().contains("zerocopy"));
    }
}
