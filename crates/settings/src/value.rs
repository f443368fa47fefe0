//! Value types that configuration files share, each with its own syntax and its own error text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

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
            other => return Err(format!("`{other}` is not a unit of size: use B, KiB, MiB or GiB")),
        };
        let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a size, such as \"64KiB\""))?;
        number.checked_mul(unit).map(Size).ok_or_else(|| format!("`{text}` does not fit in 64 bits"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let unit = units.iter().find(|(bits, _)| self.0 > 0 && self.0.trailing_zeros() >= *bits);
        let (bits, name) = unit.unwrap_or(&(0, ""));
        write!(f, "{}{name}", self.0 >> bits)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
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
        let number: u64 =
            digits.parse().map_err(|_| format!("`{text}` is not a duration, such as \"30s\""))?;
        let milliseconds: u64 = match text[digits.len()..].trim() {
            "ms" => 1,
            "s" | "" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            other => return Err(format!("`{other}` is not a unit of time: use ms, s, m or h")),
        };
        let total = number.checked_mul(milliseconds).ok_or_else(|| format!("`{text}` is too long"))?;
        Ok(Span(Duration::from_millis(total)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = self.0.as_millis();
        let units = [(3_600_000, "h"), (60_000, "m"), (1000, "s")];
        let unit = units.iter().find(|(unit, _)| milliseconds > 0 && milliseconds.is_multiple_of(*unit));
        let (unit, name) = unit.unwrap_or(&(1, "ms"));
        write!(f, "{}{name}", milliseconds / unit)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
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

/// A short time: `"50us"`, `"2ms"`, `"1s"`. A unit is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Duration);

impl FromStr for Moment {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a time, such as \"50us\""))?;
        let microseconds: u64 = match text[digits.len()..].trim() {
            "us" => 1,
            "ms" => 1000,
            "s" => 1_000_000,
            other => return Err(format!("`{other}` is not a unit of time: use us, ms or s")),
        };
        let total = number.checked_mul(microseconds).ok_or_else(|| format!("`{text}` is too long"))?;
        Ok(Self(Duration::from_micros(total)))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let microseconds = self.0.as_micros();
        let units = [(1_000_000, "s"), (1000, "ms")];
        let unit = units.iter().find(|(unit, _)| microseconds > 0 && microseconds.is_multiple_of(*unit));
        let (unit, name) = unit.unwrap_or(&(1, "us"));
        write!(f, "{}{name}", microseconds / unit)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_they_are_read() {
        for text in ["0", "1000", "64KiB", "3MiB", "2GiB"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
        for text in ["0ms", "1500ms", "30s", "5m", "2h"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        for text in ["0us", "1500us", "50us", "3ms", "2s"] {
            assert_eq!(text.parse::<Moment>().unwrap().to_string(), text);
        }
    }

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
}
