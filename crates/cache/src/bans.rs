//! Purges of many objects at once, by prefix or surrogate key.
//!
//! Objects on disk are not searched: a purge is kept as a numbered rule, and an object that is read from disk is
//! checked against the rules that are newer than it. The number of rules is bounded. When the oldest is evicted,
//! everything older than it counts as purged: too much may be purged, but never too little.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use xxhash_rust::xxh3::xxh3_64;

use crate::object::Object;

/// Rules that are kept.
const MOST: usize = 1024;

/// Octets of a rule's text.
pub(crate) const MAX_TEXT: usize = 8 << 10;

/// What a purge applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// Keys that begin so.
    Prefix(String),
    /// Responses with that surrogate key.
    Tag(String),
}

/// A purge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ban {
    pub(crate) number: u64,
    pub(crate) what: What,
    /// Objects become stale, they do not go.
    pub(crate) is_soft: bool,
}

/// What a purge means for an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    Stays,
    Stale,
    Gone,
}

impl Ban {
    pub(crate) fn is_about(&self, key: &str, object: &Object) -> bool {
        match &self.what {
            What::Prefix(prefix) => key.starts_with(prefix),
            What::Tag(tag) => object.tags().any(|other| other == tag.as_bytes()),
        }
    }
}

#[derive(Debug, Default)]
struct Rules {
    bans: Vec<Ban>,
    /// What is older than this number is gone.
    floor: u64,
}

/// The rules.
#[derive(Debug)]
pub(crate) struct Bans {
    rules: RwLock<Rules>,
    /// The number of the last one.
    last: AtomicU64,
    /// Where they are kept.
    file: Option<PathBuf>,
}

impl Bans {
    /// Those of the store in `folder`, if there is one.
    pub(crate) fn open(folder: Option<&Path>) -> Self {
        let file = folder.map(|folder| folder.join("purges"));
        let rules = file.as_deref().map_or_else(Rules::default, |file| match File::open(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Rules::default(),
            opened => opened.ok().and_then(read).unwrap_or_else(|| {
                tracing::warn!(
                    "cache: the list of purges cannot be read; treating everything stored before as purged"
                );
                Rules { bans: Vec::new(), floor: crate::policy::now() }
            }),
        });
        let last = rules.bans.last().map_or(0, |ban| ban.number).max(rules.floor);
        Self { rules: RwLock::new(rules), last: AtomicU64::new(last), file }
    }

    /// The number of the last rule: what is stored now is not subject to it.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    /// Adds a rule. Numbers are milliseconds since the epoch, or one more than the last.
    pub(crate) fn add(&self, what: What, is_soft: bool) -> Ban {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let number = crate::policy::now().max(self.last() + 1);
        let ban = Ban { number, what, is_soft };
        if rules.bans.len() == MOST {
            rules.floor = rules.bans.remove(0).number;
        }
        rules.bans.push(ban.clone());
        self.last.store(number, Ordering::Release);
        if let Some(file) = &self.file
            && let Err(error) = write(file, &rules)
        {
            tracing::warn!(%error, "cache: a purge could not be recorded on disk: its objects may reappear after a restart");
        }
        ban
    }

    /// What the rules since it was stored mean for an object.
    pub(crate) fn effect(&self, key: &str, object: &Object) -> Effect {
        if object.purges_seen >= self.last() {
            return Effect::Stays;
        }
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        if object.purges_seen < rules.floor {
            return Effect::Gone;
        }
        let mut effect = Effect::Stays;
        for ban in rules.bans.iter().rev().take_while(|ban| ban.number > object.purges_seen) {
            if ban.is_about(key, object) {
                if !ban.is_soft {
                    return Effect::Gone;
                }
                effect = Effect::Stale;
            }
        }
        effect
    }
}

fn write(file: &Path, rules: &Rules) -> std::io::Result<()> {
    let mut octets = rules.floor.to_le_bytes().to_vec();
    for ban in &rules.bans {
        let (kind, text) = match &ban.what {
            What::Prefix(text) => (0_u8, text),
            What::Tag(text) => (1, text),
        };
        octets.extend_from_slice(&ban.number.to_le_bytes());
        octets.push(kind | u8::from(ban.is_soft) << 1);
        octets.extend_from_slice(&u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
        octets.extend_from_slice(text.as_bytes());
    }
    let sum = xxh3_64(&octets);
    octets.extend_from_slice(&sum.to_le_bytes());
    let new = file.with_extension("new");
    let mut opened = File::create(&new)?;
    opened.write_all(&octets)?;
    opened.sync_data()?;
    std::fs::rename(new, file)
}

fn read(file: File) -> Option<Rules> {
    let mut octets = Vec::new();
    file.take((MOST * (MAX_TEXT + 16) + 16) as u64).read_to_end(&mut octets).ok()?;
    let (content, sum) = octets.split_last_chunk::<8>()?;
    if xxh3_64(content) != u64::from_le_bytes(*sum) {
        return None;
    }
    let (floor, mut rest) = content.split_first_chunk::<8>()?;
    let mut rules = Rules { bans: Vec::new(), floor: u64::from_le_bytes(*floor) };
    while !rest.is_empty() {
        let (number, after) = rest.split_first_chunk::<8>()?;
        let (kind, after) = after.split_first()?;
        let (length, after) = after.split_first_chunk::<4>()?;
        let (text, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let text = std::str::from_utf8(text).ok()?.to_owned();
        let what = if kind & 1 == 0 { What::Prefix(text) } else { What::Tag(text) };
        rules.bans.push(Ban { number: u64::from_le_bytes(*number), what, is_soft: kind & 2 != 0 });
        rest = after;
    }
    Some(rules)
}
