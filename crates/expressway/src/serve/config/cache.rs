//! `[cache]`, and what a site says of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use expressway_cache::{CacheOptions, Query, SiteOptions};
use expressway_settings::{Size, Span};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::site::Problem;

/// `[cache]`: responses of origins that are kept.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Cache {
    /// Part of an object that is fetched at a time; 0 fetches objects whole.
    pub(crate) slice: Spanned<Size>,
    /// Folder of the disk store; absent: objects are kept in the memory of `[files] cache` only.
    pub(crate) disk: Option<Spanned<PathBuf>>,
    /// Size of the disk store.
    pub(crate) disk_size: Spanned<Size>,
    /// Memory for heads of objects.
    pub(crate) heads: Spanned<Size>,
    /// The longest object that is kept if its origin does not give parts of it.
    pub(crate) max_whole: Size,
    /// How long a fetch may make no progress.
    pub(crate) fill_timeout: Spanned<Span>,
    /// Fetches at once; requests beyond are passed on uncached.
    pub(crate) max_fills: Spanned<u32>,
    /// Requests that wait for one fetch; more are passed on.
    pub(crate) max_waiters: Spanned<u32>,
}

impl Default for Cache {
    fn default() -> Self {
        let options = CacheOptions::default();
        let size = |bytes: u64| Spanned::new(0..0, Size(bytes));
        Self {
            slice: size(options.slice),
            disk: None,
            disk_size: size(options.disk_size),
            heads: size(options.heads as u64),
            max_whole: Size(options.max_whole),
            fill_timeout: Spanned::new(0..0, Span(options.fill_timeout)),
            max_fills: Spanned::new(0..0, options.max_fills as u32),
            max_waiters: Spanned::new(0..0, options.max_waiters as u32),
        }
    }
}

impl Cache {
    /// What is wrong, and where.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        for (span, value, low, high) in [
            (self.slice.span(), self.slice.get_ref().0, 0, 1 << 30),
            (self.disk_size.span(), self.disk_size.get_ref().0, 16 << 20, 1 << 48),
            (self.heads.span(), self.heads.get_ref().0, 1 << 20, 1 << 40),
            (self.max_fills.span(), u64::from(*self.max_fills.get_ref()), 1, 1 << 20),
            (self.max_waiters.span(), u64::from(*self.max_waiters.get_ref()), 1, 1 << 20),
        ] {
            if !(low..=high).contains(&value) {
                return Err((span, format!("{value} is not between {low} and {high}")));
            }
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&self.fill_timeout.get_ref().0)
        {
            return Err((self.fill_timeout.span(), "give a time between \"100ms\" and \"1h\"".to_owned()));
        }
        Ok(())
    }

    /// The same for the cache.
    pub(crate) fn options(&self) -> CacheOptions {
        CacheOptions {
            slice: self.slice.get_ref().0,
            disk: self.disk.as_ref().map(|disk| disk.get_ref().clone()),
            disk_size: self.disk_size.get_ref().0,
            heads: usize::try_from(self.heads.get_ref().0).unwrap_or(usize::MAX),
            max_whole: self.max_whole.0,
            fill_timeout: self.fill_timeout.get_ref().0,
            max_fills: *self.max_fills.get_ref() as usize,
            max_waiters: *self.max_waiters.get_ref() as usize,
            ..CacheOptions::default()
        }
    }
}

/// `cache` of a site: whether responses are kept, or how.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(
    untagged,
    expecting = "true, false, or a table with default_ttl, negative, stale_while_revalidate, stale_if_error, \
                 ignore_client, include_host, strip_query, keep_query"
)]
pub(crate) enum SiteCache {
    Is(bool),
    With(Box<Overrides>),
}

/// What a site does differently.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Overrides {
    /// Freshness of responses that say nothing of it.
    default_ttl: Option<Span>,
    /// Freshness of errors that say nothing of it, by status.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    negative: BTreeMap<String, Span>,
    /// How long a stale response is used while it is revalidated.
    stale_while_revalidate: Option<Span>,
    /// How long a stale response is used if the origin fails.
    stale_if_error: Option<Span>,
    /// Ignore `cache-control` of requests.
    ignore_client: bool,
    /// Hosts of the site have objects of their own; absent: they have.
    include_host: Option<bool>,
    /// Query parameters that do not matter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    strip_query: Vec<String>,
    /// Query parameters that matter; all others do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_query: Option<Vec<String>>,
}

impl SiteCache {
    /// How responses are kept; `None` if they are not. (What is wrong has no place of its own: untagged values lose theirs.)
    pub(crate) fn options(&self) -> Result<Option<SiteOptions>, String> {
        match self {
            Self::Is(false) => Ok(None),
            Self::Is(true) => Ok(Some(SiteOptions::default())),
            Self::With(overrides) => overrides.options().map(Some),
        }
    }
}

impl Overrides {
    fn options(&self) -> Result<SiteOptions, String> {
        let negative = self.negative.iter().map(|(status, ttl)| {
            let code = status.parse().ok().and_then(|code: u16| StatusCode::from_u16(code).ok());
            let code = code.filter(|code| code.is_client_error() || code.is_server_error());
            let code = code.ok_or_else(|| format!("negative: `{status}` is not a status from 400 to 599"))?;
            Ok((code, ttl.0))
        });
        let time = |span: &Option<Span>| span.map_or(Duration::ZERO, |span| span.0);
        let query = match (&self.keep_query, self.strip_query.is_empty()) {
            (None, true) => Query::Whole,
            (None, false) => Query::Strip(self.strip_query.clone()),
            (Some(keep), true) => Query::Keep(keep.clone()),
            (Some(_), false) => {
                return Err("give keep_query or strip_query, not both".to_owned());
            }
        };
        Ok(SiteOptions {
            default_ttl: self.default_ttl.map(|ttl| ttl.0),
            negative: negative.collect::<Result<_, String>>()?,
            stale_while_revalidate: time(&self.stale_while_revalidate),
            stale_if_error: time(&self.stale_if_error),
            ignore_client: self.ignore_client,
            include_host: self.include_host.unwrap_or(true),
            query,
            ..SiteOptions::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(text: &str) -> Result<Option<SiteOptions>, String> {
        #[derive(Deserialize)]
        struct Site {
            cache: SiteCache,
        }
        let site: Site = toml::from_str(text).map_err(|error| error.to_string())?;
        site.cache.options()
    }

    #[test]
    fn a_site_keeps_responses_or_not_or_in_its_own_way() {
        assert_eq!(site("cache = false"), Ok(None));
        assert_eq!(site("cache = true"), Ok(Some(SiteOptions::default())));
        let options = site(
            "cache = { default_ttl = \"1m\", negative = { 404 = \"10s\" }, stale_if_error = \"1h\", include_host = false, \
             strip_query = [\"utm_source\"] }",
        );
        let expected = SiteOptions {
            default_ttl: Some(Duration::from_secs(60)),
            negative: [(StatusCode::NOT_FOUND, Duration::from_secs(10))].into(),
            stale_if_error: Duration::from_secs(3600),
            include_host: false,
            query: Query::Strip(vec!["utm_source".to_owned()]),
            ..SiteOptions::default()
        };
        assert_eq!(options, Ok(Some(expected)));
        for (text, problem) in [
            ("cache = { negative = { 200 = \"1s\" } }", "400 to 599"),
            ("cache = { keep_query = [], strip_query = [\"a\"] }", "not both"),
            ("cache = { ttl = \"1s\" }", "default_ttl"),
        ] {
            assert!(site(text).unwrap_err().contains(problem), "{text}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_cache() {
        assert_eq!(Cache::default().options(), CacheOptions::default());
        let text = "slice = \"64KiB\"\ndisk_size = \"1KiB\"";
        let cache: Cache = toml::from_str(text).unwrap();
        assert!(cache.check().unwrap_err().1.contains("1024 is not between"));
    }
}
