//! The configured lists: from files and from servers, `[lists]`, and all of them combined.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use expressway_settings::{ConfigError, Size, SourceFile, Span};
use expressway_xbpf::GuardPrefix;
use serde::Deserialize;
use toml::Spanned;

use super::lists::{Connector, Kind, ListSource, Location, Settings, Url};
use super::{Config, list};

/// URLs of a list at most: each is a connection now and then.
const URLS: usize = 64;

/// A URL or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Urls {
    One(String),
    Several(Vec<String>),
}

/// The lists of URLs, of which nothing is known yet.
pub(super) fn urls(
    kind: Kind,
    source: &SourceFile,
    urls: Option<&Spanned<Urls>>,
) -> Result<Vec<ListSource>, ConfigError> {
    let Some(given) = urls else { return Ok(Vec::new()) };
    let urls = match given.get_ref() {
        Urls::One(url) => std::slice::from_ref(url),
        Urls::Several(urls) => urls,
    };
    let at = |problem: String| source.at(given.span(), problem);
    if urls.len() > URLS {
        return Err(at(format!("more than {URLS} URLs")));
    }
    let mut found: Vec<ListSource> = Vec::new();
    for text in urls {
        let location = Location::Url(text.parse::<Url>().map_err(at)?);
        if found.iter().any(|one| one.location == location) {
            return Err(at(format!("names {location} twice")));
        }
        found.push(ListSource { kind, location, entries: Arc::default(), stamp: None });
    }
    Ok(found)
}

/// The list of a file, if one is named.
pub(super) fn files(kind: Kind, folder: &Path, name: Option<&Path>) -> Result<Vec<ListSource>, ConfigError> {
    let Some(path) = name.map(|name| folder.join(name)) else { return Ok(Vec::new()) };
    let (mut entries, stamp) = list::read(&path)?;
    entries.sort_unstable();
    entries.dedup();
    Ok(vec![ListSource {
        kind,
        location: Location::File(path),
        entries: Arc::new(entries),
        stamp: Some(stamp),
    }])
}

/// `[lists]`, as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    interval: Option<Spanned<Span>>,
    timeout: Option<Spanned<Span>>,
    size: Option<Spanned<Size>>,
    files: Option<Span>,
    folder: Option<PathBuf>,
    ca: Option<Spanned<PathBuf>>,
}

impl Section {
    /// Checked, with the defaults of what is not there, and paths relative to `folder`.
    pub(super) fn settings(&self, source: &SourceFile, folder: &Path) -> Result<Settings, ConfigError> {
        let span = |given: &Option<Spanned<Span>>, default: Duration, most: Span| {
            let Some(given) = given else { return Ok(default) };
            if (Duration::from_secs(1)..=most.0).contains(&given.get_ref().0) {
                return Ok(given.get_ref().0);
            }
            Err(source.at(given.span(), format!("is {}: 1s to {most}", given.get_ref())))
        };
        let size = match &self.size {
            None => 64 << 20,
            Some(size) if size.get_ref().0 <= 1 << 30 => size.get_ref().0,
            Some(size) => return Err(source.at(size.span(), format!("is {}: at most 1GiB", size.get_ref()))),
        };
        let ca = self.ca.as_ref().map(|ca| (folder.join(ca.get_ref()), ca.span()));
        let connector = Connector::new(ca.as_ref().map(|(path, _)| path.as_path()));
        let location = ca.map_or(0..0, |(_, span)| span);
        Ok(Settings {
            interval: span(
                &self.interval,
                Duration::from_secs(3600),
                Span(Duration::from_secs(30 * 86_400)),
            )?,
            timeout: span(&self.timeout, Duration::from_secs(30), Span(Duration::from_secs(600)))?,
            size,
            files: self.files.map_or(Duration::from_secs(2), |files| files.0),
            folder: folder.join(self.folder.as_deref().unwrap_or(Path::new("/var/lib/expressway/guard"))),
            connector: connector.map_err(|problem| source.at(location, problem))?,
        })
    }
}

impl Config {
    /// Puts other entries into a list that it names.
    pub fn set(&mut self, kind: Kind, location: &Location, entries: &Arc<Vec<GuardPrefix>>) {
        if let Some(source) =
            self.sources.iter_mut().find(|one| one.kind == kind && one.location == *location)
        {
            source.entries = entries.clone();
        }
    }

    /// Joins the lists of all sources to those that the filter decides by.
    ///
    /// # Errors
    /// There are too many entries.
    pub fn join(&mut self) -> Result<(), String> {
        let joined = |kind: Kind, inline: &[GuardPrefix]| {
            let mut all = inline.to_vec();
            for source in self.sources.iter().filter(|source| source.kind == kind) {
                all.extend(source.entries.iter());
            }
            all.sort_unstable();
            all.dedup();
            match all.len() {
                0..=list::ENTRIES => Ok(all),
                more => {
                    let most = list::ENTRIES;
                    Err(format!("{more} entries to {}, in all lists together: at most {most}", kind.name()))
                }
            }
        };
        let [allow, block] = &self.inline;
        (self.options.allow, self.options.block) = (joined(Kind::Allow, allow)?, joined(Kind::Block, block)?);
        Ok(())
    }
}
