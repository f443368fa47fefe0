//! Value types of the configuration file, each with its own syntax and its own error text.

use std::fmt;
use std::str::FromStr;

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

/// How the XDP program is attached: `[io] attach`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attach {
    /// In the driver, or in the stack for mode `generic`.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the stack: any driver.
    Generic,
    /// In the device, where a driver has that.
    Offload,
}

impl Attach {
    /// All ways by name.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("auto", Self::Auto),
        ("native", Self::Native),
        ("generic", Self::Generic),
        ("offload", Self::Offload),
    ];
}

/// How the kernel path sends: `[io] udp_send`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UdpSend {
    /// UDP generic segmentation offload, several messages a sendmmsg call.
    #[default]
    Gso,
    /// One datagram per message, several messages per call.
    Sendmmsg,
    /// One datagram a call.
    Sendmsg,
}

impl UdpSend {
    /// All ways by name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("gso", Self::Gso), ("sendmmsg", Self::Sendmmsg), ("sendmsg", Self::Sendmsg)];
}

/// Whether the XDP program shares its interface by a libxdp dispatcher: `[io] dispatcher`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// When there is one already; else the program is attached by itself.
    #[default]
    Auto,
    /// Always: created if there is none, so that others can join.
    Always,
    /// Never: a dispatcher is a foreign program.
    Never,
}

impl Sharing {
    /// All by name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("always", Self::Always), ("never", Self::Never)];
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
    /// One JSON object per line.
    #[default]
    Json,
    /// The combined format of the web servers.
    Combined,
}

impl LogFormat {
    /// All formats by name.
    pub const NAMES: [(&'static str, Self); 2] = [("json", Self::Json), ("combined", Self::Combined)];
}

/// What becomes of system calls that a server does not need: `[server] seccomp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
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
    pub const NAMES: [(&'static str, Self); 3] =
        [("enforce", Self::Enforce), ("log", Self::Log), ("off", Self::Off)];
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
named!(Sharing);
named!(Attach);
named!(Retry);
named!(Congestion);
named!(LogFormat);
named!(Seccomp);

fn by_name<T: Copy>(text: &str, names: &[(&'static str, T)]) -> Result<T, String> {
    names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let all: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        format!("`{text}` is not one of {}", all.join(", "))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_print_as_they_parse() {
        for (name, mode) in IoMode::NAMES {
            assert_eq!(name.parse(), Ok(mode));
            assert_eq!(mode.to_string(), name);
        }
        assert!("zero-copy".parse::<IoMode>().unwrap_err().contains("zerocopy"));
    }
}
