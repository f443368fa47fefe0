//! `[[site]]`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use expressway_cache::SiteOptions;
use expressway_web::{CompressOptions, PathRule, TokenKeys};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::cache::SiteCache;
use super::compress::SiteCompress;
use super::rule::{Rule, Token};
use super::sections::yes;
use super::video::{Video, VideoSetting};

/// Where in the file something is wrong, and what.
pub(crate) type Problem = (Range<usize>, String);

/// `[[site]]`: what some hosts serve.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Site {
    /// Host names without ports, lower case; `*.example` matches any name below `example`.
    pub(crate) hosts: Spanned<Vec<String>>,
    /// Folder that files come from.
    pub(crate) root: Option<Spanned<PathBuf>>,
    /// The name of an `[[origin]]`, or the URL of a server, to pass requests on to.
    pub(crate) origin: Option<Spanned<String>>,
    /// Whether responses of the origin are kept, or how; absent: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<Spanned<SiteCache>>,
    /// Whether responses are compressed, or how; absent: they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) compress: Option<Spanned<SiteCompress>>,
    /// Files that answer for a folder, in order.
    #[serde(default = "index_html")]
    pub(crate) index: Vec<String>,
    /// Follow symbolic links as long as they stay under the root.
    #[serde(default)]
    pub(crate) symlinks: bool,
    /// Serve names that begin with a dot; without it only those under `/.well-known/` are.
    #[serde(default)]
    pub(crate) hidden: bool,
    /// Answer with `.br` and `.gz` siblings where the client takes them.
    #[serde(default = "yes")]
    pub(crate) precompressed: bool,
    /// What players of video need.
    #[serde(default = "no_video")]
    pub(crate) video: Spanned<VideoSetting>,
    /// Paths whose content is sent with an error, by status.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) error_pages: BTreeMap<Spanned<String>, String>,
    /// What holds for some of its paths, in order.
    #[serde(default)]
    pub(crate) rule: Vec<Rule>,
}

impl Site {
    /// It answers without files: all that it has are rules.
    pub(crate) fn is_only_rules(&self) -> bool {
        let answers = |rule: &Rule| rule.respond.is_some() || rule.redirect.is_some();
        self.root.is_none() && self.rule.iter().any(answers)
    }

    /// How it serves video.
    pub(crate) fn video(&self) -> Video {
        self.video.get_ref().video()
    }

    /// How responses of its origin are kept; `None` if they are not.
    pub(crate) fn cache_options(&self) -> Result<Option<SiteOptions>, Problem> {
        let Some(cache) = &self.cache else { return Ok(None) };
        let options = cache.get_ref().options().map_err(|problem| (cache.span(), problem))?;
        let hls_hold = self.video().hls_hold.map(|hold| hold.0);
        Ok(options.map(|options| SiteOptions { hls_hold, ..options }))
    }

    /// Its rules, as far as they can be read without other files.
    pub(crate) fn check_rules(&self) -> Result<(), Problem> {
        let problem = |problem: &str| (self.video.span(), problem.to_owned());
        self.video().check(self.root.is_some()).map_err(problem)?;
        self.rule.iter().try_for_each(|rule| rule.rule().map(|_| ()))
    }

    /// Whether the keys of its tokens come from one place each; `shared` says whether there is `[keys]`.
    pub(super) fn check_tokens(&self, shared: bool) -> Result<(), Problem> {
        self.rule.iter().filter_map(|rule| rule.token.as_ref()).try_for_each(|token| {
            token.get_ref().check(shared).map_err(|problem| (token.span(), problem.to_owned()))
        })
    }

    /// Its rules; `shared` are the keys of `[keys]`.
    pub(crate) fn rules(&self, shared: Option<&TokenKeys>) -> Result<Vec<PathRule>, Problem> {
        let rule = |rule: &Rule| {
            let token = rule.token.as_ref().map(|token| Token::rule(token, shared)).transpose()?;
            Ok(PathRule { token, ..rule.rule()? })
        };
        let video = self.video().rules().map_err(|error| (self.video.span(), error.to_string()))?;
        video.into_iter().map(Ok).chain(self.rule.iter().map(rule)).collect()
    }

    /// How its responses are compressed; `None`: they are not.
    pub(crate) fn compress_options(&self) -> Result<Option<CompressOptions>, Problem> {
        let Some(compress) = &self.compress else { return Ok(None) };
        compress.get_ref().options().map_err(|problem| (compress.span(), problem))
    }

    /// Files with keys of tokens.
    pub(crate) fn token_keys(&self) -> impl Iterator<Item = &Spanned<PathBuf>> {
        self.rule.iter().filter_map(|rule| rule.token.as_ref()?.get_ref().keys.as_ref())
    }

    /// Makes relative paths relative to `base`.
    pub(crate) fn resolve_paths(&mut self, base: &Path) {
        let keys = self.rule.iter_mut().filter_map(|rule| rule.token.as_mut()?.get_mut().keys.as_mut());
        for path in self.root.iter_mut().chain(keys) {
            *path.get_mut() = base.join(path.get_ref());
        }
    }

    /// Its error pages.
    pub(crate) fn error_pages(&self) -> Result<Vec<(StatusCode, String)>, Problem> {
        let page = |(status, page): (&Spanned<String>, &String)| {
            let code = status.get_ref().parse::<u16>().ok().filter(|code| (400..600).contains(code));
            let code = code.and_then(|code| StatusCode::from_u16(code).ok());
            let code = code.ok_or_else(|| (status.span(), "give a status from 400 to 599".to_owned()))?;
            match page.starts_with('/') {
                true => Ok((code, page.clone())),
                false => Err((status.span(), format!("`{page}` is not a path; begin it with /"))),
            }
        };
        self.error_pages.iter().map(page).collect()
    }
}

fn no_video() -> Spanned<VideoSetting> {
    Spanned::new(0..0, VideoSetting::default())
}

fn index_html() -> Vec<String> {
    vec!["index.html".into()]
}
