//! `[capture]`: samples of dropped packets, and the rules that their numbers refer to.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use expressway_settings::{ConfigError, Size, SourceFile};
use expressway_xbpf::{GuardRate, GuardReason, GuardSampling};
use serde::Deserialize;
use toml::Spanned;

/// Octets of the smallest file: a few of the longest packets.
const SMALLEST: u64 = 256 << 10;
/// Files at most.
const FILES: u32 = 1000;
/// Samples of a reason a second at most: what one thread writes beside others.
const RATE: u32 = 100_000;
/// Octets of a packet at least: the longest headers that are judged by, without extension headers.
const SNAPLEN: u32 = 64;

/// The section, as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    file: Spanned<PathBuf>,
    #[serde(default = "one_in")]
    one_in: Spanned<u32>,
    #[serde(default)]
    reasons: BTreeMap<String, Spanned<u32>>,
    #[serde(default = "rate")]
    rate: Spanned<u32>,
    #[serde(default = "snaplen")]
    snaplen: Spanned<u32>,
    #[serde(default = "size")]
    size: Spanned<Size>,
    #[serde(default = "files")]
    files: Spanned<u32>,
}

/// Not in the file: no place of it.
fn unplaced<T>(value: T) -> Spanned<T> {
    Spanned::new(0..0, value)
}

fn one_in() -> Spanned<u32> {
    unplaced(100)
}

fn rate() -> Spanned<u32> {
    unplaced(100)
}

fn snaplen() -> Spanned<u32> {
    unplaced(256)
}

fn size() -> Spanned<Size> {
    unplaced(Size(64 << 20))
}

fn files() -> Spanned<u32> {
    unplaced(8)
}

/// Where samples go, and which there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The files' name, to which a number is added if there are several.
    pub file: PathBuf,
    /// Octets of a file.
    pub size: u64,
    /// How many there are, in a ring.
    pub files: u32,
    /// Which packets, and what of them.
    pub sampling: GuardSampling,
}

impl Section {
    /// Checked, with paths relative to `folder`.
    pub(super) fn capture(&self, source: &SourceFile, folder: &Path) -> Result<Capture, ConfigError> {
        let within = |value: &Spanned<u32>, from: u32, to: u32| {
            let wrong = || source.at(value.span(), format!("is {}: {from} to {to}", value.get_ref()));
            (from..=to).contains(value.get_ref()).then_some(*value.get_ref()).ok_or_else(wrong)
        };
        if self.file.get_ref().file_name().is_none() {
            return Err(source.at(self.file.span(), "is not the name of a file"));
        }
        let size = self.size.get_ref().0;
        if size < SMALLEST {
            return Err(source.at(self.size.span(), format!("is {size} bytes: at least {SMALLEST}")));
        }
        let one_in = within(&self.one_in, 1, u32::MAX)?;
        let rate = within(&self.rate, 1, RATE)?;
        let every = |reason: &GuardReason| match self.reasons.get(reason.name()) {
            _ if !reason.drops() => 0,
            Some(every) => *every.get_ref(),
            None => one_in,
        };
        let known = |name: &String| GuardReason::ALL.iter().any(|one| one.drops() && one.name() == *name);
        if let Some((name, value)) = self.reasons.iter().find(|(name, _)| !known(name)) {
            let names = GuardReason::ALL.iter().filter(|one| one.drops()).map(|one| one.name());
            let names: Vec<&str> = names.collect();
            let problem = format!("`{name}` is not a drop reason; known: {}", names.join(", "));
            return Err(source.at(value.span(), problem));
        }
        Ok(Capture {
            file: folder.join(self.file.get_ref()),
            size,
            files: within(&self.files, 1, FILES)?,
            sampling: GuardSampling {
                every: GuardReason::ALL.iter().map(every).collect(),
                rate: GuardRate { rate: rate.into(), burst: u64::from(rate / 10).max(1) },
                snaplen: within(&self.snaplen, SNAPLEN, GuardSampling::SNAPLEN)?,
            },
        })
    }
}

/// The names of rules by number, of the last filters that succeeded each other: samples of them may still be in buffers.
#[derive(Clone, Debug, Default)]
pub struct RuleNames(Arc<Mutex<VecDeque<Generation>>>);

#[derive(Debug)]
struct Generation {
    number: u32,
    names: Vec<String>,
}

/// Filters that are remembered.
const GENERATIONS: usize = 4;

impl RuleNames {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Generation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of a filter.
    pub(super) fn insert(&self, number: u32, names: &[String]) {
        let mut all = self.lock();
        // A filter that was not taken gives its number to the next.
        all.retain(|one| one.number != number);
        if all.len() == GENERATIONS {
            all.pop_front();
        }
        all.push_back(Generation { number, names: names.to_vec() });
    }

    /// The name of a rule of the filter of that generation; `None` if it is too long ago.
    pub fn name(&self, rule: u32, generation: u32) -> Option<String> {
        let all = self.lock();
        all.iter().find(|one| one.number == generation)?.names.get(rule as usize).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_named_by_the_filter_that_they_are_of() {
        let names = RuleNames::default();
        for number in 0..6 {
            names.insert(number, &[format!("of {number}")]);
        }
        names.insert(5, &["again".to_owned()]);
        assert_eq!(names.name(0, 5).as_deref(), Some("again"));
        assert_eq!(names.name(0, 2).as_deref(), Some("of 2"));
        assert_eq!((names.name(1, 5), names.name(0, 1)), (None, None));
    }
}
