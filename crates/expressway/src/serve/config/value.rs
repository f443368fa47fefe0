//! Value types of the configuration file, each with its own syntax and its own error text.

use expressway_settings::named;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// When a client must prove its address by a Retry packet (RFC 9000, section 8.1.2): `[quic] retry`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Retry {
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
    pub(crate) const NAMES: [(&'static str, Self); 3] =
        [("never", Self::Never), ("always", Self::Always), ("under-load", Self::UnderLoad)];
}

/// Congestion control: `[quic] congestion`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Congestion {
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
    pub(crate) const NAMES: [(&'static str, Self); 3] =
        [("cubic", Self::Cubic), ("bbr2", Self::Bbr2), ("reno", Self::Reno)];
}

/// Access-log line format: `[log] format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// The combined format of the web servers.
    Combined,
}

impl LogFormat {
    /// All formats by name.
    pub(crate) const NAMES: [(&'static str, Self); 2] = [("json", Self::Json), ("combined", Self::Combined)];
}

/// What becomes of system calls that a server does not need: `[server] seccomp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Seccomp {
    /// They kill the process.
    #[default]
    Enforce,
    /// They are made, and logged by the kernel.
    Log,
    /// They are made.
    Off,
}

impl Seccomp {
    /// All by name.
    pub(crate) const NAMES: [(&'static str, Self); 3] =
        [("enforce", Self::Enforce), ("log", Self::Log), ("off", Self::Off)];
}

named!(Retry);
named!(Congestion);
named!(LogFormat);
named!(Seccomp);

/// The number of workers: `[server] workers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Workers {
    /// One for each core that the process may run on.
    #[default]
    Auto,
    /// This many, 1 to 255.
    Count(u8),
}

impl Serialize for Workers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Count(count) => serializer.serialize_u8(*count),
        }
    }
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
