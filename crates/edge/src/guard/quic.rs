//! `[quic]`: QUIC servers behind the filter.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use expressway_settings::{ConfigError, SourceFile, named, read_keys};
use expressway_xbpf::{GuardKey, GuardQuic, GuardRate, GuardRetry, GuardUnknown};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::rule::Rate;

/// What is done about connection IDs that no server issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownIds {
    /// They are not looked at.
    Pass,
    /// They are counted.
    Count,
    /// Their packets are dropped.
    Drop,
}

impl UnknownIds {
    const NAMES: [(&'static str, Self); 3] =
        [("pass", Self::Pass), ("count", Self::Count), ("drop", Self::Drop)];
}

named!(UnknownIds);

/// When clients have to show that they receive what is sent to their address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// The filter asks nobody.
    #[default]
    Never,
    /// Each has to.
    Always,
    /// Those beyond so many a second.
    Above(u64),
}

impl FromStr for Retry {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not \"never\", \"always\" or a rate of packets, such as \"1k/s\"");
        match text {
            "never" => Ok(Self::Never),
            "always" => Ok(Self::Always),
            rate => match rate.parse::<Rate>() {
                Ok(Rate { number, bytes: false }) => Ok(Self::Above(number)),
                _ => Err(wrong()),
            },
        }
    }
}

impl<'de> Deserialize<'de> for Retry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// `[quic]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QuicSection {
    /// The servers' ports.
    #[serde(default)]
    ports: Vec<u16>,
    /// File of keys that the servers have too: `[server] guard_keys` of `expressway serve`.
    keys: Option<Spanned<PathBuf>>,
    /// With keys; dropped if not given.
    unknown_ids: Option<Spanned<UnknownIds>>,
    /// With keys.
    retry: Option<Spanned<Retry>>,
}

impl QuicSection {
    /// As the program has it; files are relative to `folder`.
    pub(super) fn quic(&self, source: &SourceFile, folder: &Path) -> Result<GuardQuic, ConfigError> {
        if let (Some(unknown), None) = (&self.unknown_ids, &self.keys) {
            return Err(source.at(unknown.span(), "needs `keys`: servers issue their IDs with them"));
        }
        if let (Some(retry), None) = (&self.retry, &self.keys)
            && *retry.get_ref() != Retry::Never
        {
            return Err(source.at(retry.span(), "needs `keys`: servers verify the tokens with them"));
        }
        let keys = match &self.keys {
            Some(name) if self.ports.is_empty() => {
                return Err(source.at(name.span(), "needs `ports`: those of the servers that have the keys"));
            }
            Some(name) => {
                let path = folder.join(name.get_ref());
                read_keys(&path)
                    .map_err(|problem| source.at(name.span(), format!("{} {problem}", path.display())))?
            }
            None => Vec::new(),
        };
        let unknown = match self.unknown_ids.as_ref().map(|unknown| *unknown.get_ref()) {
            Some(UnknownIds::Pass) => GuardUnknown::Pass,
            Some(UnknownIds::Count) => GuardUnknown::Count,
            Some(UnknownIds::Drop) | None => GuardUnknown::Drop,
        };
        let retry = match self.retry.as_ref().map_or(Retry::Never, |retry| *retry.get_ref()) {
            Retry::Never => None,
            Retry::Always => Some(GuardRetry::Always),
            Retry::Above(rate) => Some(GuardRetry::Above(GuardRate { rate, burst: (rate / 10).max(1) })),
        };
        let keys = keys.into_iter().map(GuardKey).collect();
        Ok(GuardQuic { ports: self.ports.clone(), keys, unknown, retry })
    }
}
