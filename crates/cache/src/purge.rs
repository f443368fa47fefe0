//! Removing objects before they expire.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use expressway_web::ResponseHead;
use http::header::{CONTENT_LOCATION, LOCATION};

use crate::bans::{MAX_TEXT, What};
use crate::key::{Key, split_url};
use crate::options::SiteOptions;
use crate::site::{Cache, SiteShared};

/// What is to be purged.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The object of an absolute URL, in all its variants.
    Url(String),
    /// Those of all URLs that begin so, scheme and host included.
    Prefix(String),
    /// Those whose `surrogate-key` or `cache-tag` names it.
    Key(String),
}

/// A purge.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Purge {
    /// What is to be purged.
    #[serde(flatten)]
    pub target: Target,
    /// Whether objects become stale, so that they are revalidated, in place of going.
    #[serde(default)]
    pub soft: bool,
}

/// What a purge did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Purged {
    /// Objects in memory that it concerned.
    pub objects: usize,
    /// Whether objects on disk are concerned too: at once for a URL; for a prefix or key each is checked when it is next
    /// asked for.
    pub disk: bool,
}

/// Why a purge is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PurgeError {
    /// It is not an absolute URL with http or https.
    #[error("give an absolute URL, such as https://example.com/path")]
    Url,
    /// It is empty, or longer than 8 KiB.
    #[error("give 1 to {MAX_TEXT} bytes")]
    Text,
}

impl Cache {
    /// Purges. `options` says of a URL's host how its keys are made.
    ///
    /// # Errors
    /// If the target names nothing; nothing is purged then.
    pub fn purge(&self, purge: &Purge, options: impl Fn(&str) -> SiteOptions) -> Result<Purged, PurgeError> {
        let cache = &self.shared;
        let purged = match &purge.target {
            Target::Url(url) => {
                let (scheme, authority, target) = split_url(url).ok_or(PurgeError::Url)?;
                let key = Key::of(scheme, authority, target, &options(authority), cache.seed());
                cache.table.void(key.hash);
                match purge.soft {
                    // What is only on disk has no variants in memory to make stale: it goes.
                    true => match cache.heads.expire(&key) {
                        0 => Purged { objects: 0, disk: cache.heads.remove(key.hash).1 },
                        objects => Purged { objects, disk: cache.disk.is_some() },
                    },
                    false => {
                        let (objects, disk) = cache.heads.remove(key.hash);
                        Purged { objects, disk }
                    }
                }
            }
            Target::Prefix(text) | Target::Key(text) => {
                if text.is_empty() || text.len() > MAX_TEXT {
                    return Err(PurgeError::Text);
                }
                let what = match &purge.target {
                    Target::Prefix(_) => What::Prefix(text.clone()),
                    _ => What::Tag(text.clone()),
                };
                let ban = cache.heads.bans.add(what, purge.soft);
                Purged { objects: cache.heads.apply(&ban), disk: cache.disk.is_some() }
            }
        };
        cache.counters.cache_purged.fetch_add(purged.objects as u64, Ordering::Relaxed);
        Ok(purged)
    }
}

/// Forgets what an unsafe request that was answered without an error may have changed (RFC 9111, 4.4).
pub(crate) fn invalidate(site: &Arc<SiteShared>, key: &Key, head: &ResponseHead) {
    if !head.status.is_success() && !head.status.is_redirection() {
        return;
    }
    let cache = &site.cache;
    let forget = |key: &Key| {
        cache.table.void(key.hash);
        let (objects, _) = cache.heads.remove(key.hash);
        cache.counters.cache_purged.fetch_add(objects as u64, Ordering::Relaxed);
    };
    forget(key);
    let Some((scheme, authority, _)) = split_url(&key.text) else { return };
    for name in [LOCATION, CONTENT_LOCATION] {
        let Some(value) = head.headers.get(&name).and_then(|value| value.to_str().ok()) else { continue };
        let named = match split_url(value) {
            Some((_, other, target)) if other.eq_ignore_ascii_case(authority) => target,
            None if value.starts_with('/') && !value.starts_with("//") => value,
            _ => continue,
        };
        forget(&Key::of(scheme, authority, named, &site.options, cache.seed()));
    }
}
