//! Which site answers for a host.

mod host;
mod policy;
mod rules;
mod site;
mod urgency;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use crate::files::{FileStore, FilesConfig};
use crate::scan::looked_at;
use crate::{CompressOptions, Exchange, Handler, RequestBody, RequestHead, Wake};
use host::Host;
pub use host::MAX_AUTHORITY;
pub(crate) use policy::ResponsePolicy;
pub use rules::{
    Cors, LimitRate, PathPattern, PathRule, PatternError, RateLimit, Template, TokenKey, TokenKeyError,
    TokenKeys, TokenRule,
};
use site::Site;

/// Octets of path and query that are accepted; more is 414. nginx's `large_client_header_buffers` lets as
/// much through.
const MAX_TARGET: usize = 8192;

/// One site: the hosts it answers for and what it serves.
#[derive(Debug, Clone)]
pub struct SiteConfig {
    /// Host names without port; `*.example` matches any name below `example`. May be empty for the first
    /// site, which is the default.
    pub hosts: Vec<String>,
    /// What answers for them.
    pub content: SiteContent,
    /// What holds for some of its paths, in the order in which it applies.
    pub rules: Vec<PathRule>,
    /// Paths of the site whose content is sent with an error of that status.
    pub error_pages: Vec<(StatusCode, String)>,
    /// What of its responses is compressed; `None`: nothing.
    pub compress: Option<CompressOptions>,
    /// Playlists come before audio and audio before video, for clients that name no priority (RFC 9218).
    pub media_urgency: bool,
}

impl SiteConfig {
    /// A site without rules.
    pub fn new(hosts: Vec<String>, content: impl Into<SiteContent>) -> Self {
        Self {
            hosts,
            content: content.into(),
            rules: Vec::new(),
            error_pages: Vec::new(),
            compress: None,
            media_urgency: false,
        }
    }
}

/// What a site serves.
#[derive(Clone)]
pub enum SiteContent {
    /// A directory tree.
    Files(FilesConfig),
    /// Anything else, such as an origin behind a cache.
    Other(Arc<dyn Handler>),
    /// Nothing: what its rules do not answer is not found.
    Nothing,
}

impl From<FilesConfig> for SiteContent {
    fn from(files: FilesConfig) -> Self {
        Self::Files(files)
    }
}

impl fmt::Debug for SiteContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Files(files) => f.debug_tuple("Files").field(files).finish(),
            Self::Other(_) => f.write_str("Other(..)"),
            Self::Nothing => f.write_str("Nothing"),
        }
    }
}

/// Why a set of sites cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum SiteError {
    /// There is no site.
    #[error("no site is configured")]
    Empty,
    /// A host name is not one.
    #[error("site {site}: {host:?} is not a host name")]
    InvalidHost {
        /// Index of the site, from 0.
        site: usize,
        /// The text that is not a host name.
        host: String,
    },
    /// Two sites claim one host.
    #[error("sites {first} and {second} both answer for {host:?}")]
    DuplicateHost {
        /// Index of the site that claims the host first, from 0.
        first: usize,
        /// Index of the site that claims it again.
        second: usize,
        /// The host.
        host: String,
    },
    /// A site other than the first has no hosts and so could never be reached.
    #[error("site {site} has no hosts; only the first site, the default, may have none")]
    NoHosts {
        /// Index of the site, from 0.
        site: usize,
    },
    /// The root cannot be opened or is not a directory.
    #[error("site {site}: root {}: {source}", root.display())]
    Root {
        /// Index of the site, from 0.
        site: usize,
        /// The directory as configured.
        root: PathBuf,
        /// Why it cannot be opened.
        source: io::Error,
    },
    /// An option of the site makes no sense.
    #[error("site {site}: {problem}")]
    Invalid {
        /// Index of the site, from 0.
        site: usize,
        /// What is wrong and what to do.
        problem: String,
    },
}

/// All sites of a process: immutable, shared by the workers, swapped whole on reload. Exchanges in progress
/// keep what they need of the old set.
pub struct Sites {
    exact: HashMap<String, usize>,
    /// Keyed by what follows `*.`.
    wildcard: HashMap<String, usize>,
    /// Length of the longest key: longer ones are not looked up.
    longest_wildcard: usize,
    sites: Vec<Arc<Site>>,
}

impl Sites {
    /// Opens the roots of `configs`, whose first is the default for unknown hosts. Nothing is changed on
    /// failure, so that a bad new configuration leaves the old one serving.
    pub fn new(configs: &[SiteConfig], store: &Arc<FileStore>) -> Result<Self, SiteError> {
        let mut sites =
            Self { exact: HashMap::new(), wildcard: HashMap::new(), longest_wildcard: 0, sites: Vec::new() };
        if configs.is_empty() {
            return Err(SiteError::Empty);
        }
        for (site, config) in configs.iter().enumerate() {
            if site > 0 && config.hosts.is_empty() {
                return Err(SiteError::NoHosts { site });
            }
            for host in &config.hosts {
                sites.claim(host, site)?;
            }
            sites.sites.push(Arc::new(Site::open(site, config, store)?));
        }
        Ok(sites)
    }

    fn claim(&mut self, host: &str, site: usize) -> Result<(), SiteError> {
        let (map, name) = match host.strip_prefix("*.") {
            Some(suffix) => {
                self.longest_wildcard = self.longest_wildcard.max(suffix.len());
                (&mut self.wildcard, suffix)
            }
            None => (&mut self.exact, host),
        };
        let parsed = match Host::parse(name) {
            Some(parsed) if parsed.len() == name.len() && !parsed.is_empty() => parsed.into_owned(),
            _ => return Err(SiteError::InvalidHost { site, host: host.to_owned() }),
        };
        match map.insert(parsed, site) {
            Some(first) if first != site => {
                Err(SiteError::DuplicateHost { first, second: site, host: host.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// The site of `host`, in lower case: exact names first, then the longest wildcard, then the first.
    fn site(&self, host: &str) -> &Arc<Site> {
        let index = self.exact.get(host).or_else(|| {
            let shortest = host.len().saturating_sub(self.longest_wildcard + 1);
            let dots = host.bytes().enumerate().skip(shortest).filter(|(_, byte)| *byte == b'.');
            dots.map(|(dot, _)| &host[dot + 1..]).find_map(|suffix| {
                looked_at(suffix.len());
                self.wildcard.get(suffix)
            })
        });
        &self.sites[index.copied().unwrap_or(0)]
    }
}

impl fmt::Debug for Sites {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sites").field("sites", &self.sites.len()).finish_non_exhaustive()
    }
}

impl Handler for Sites {
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        if request.target.len() > MAX_TARGET {
            return Exchange::error(&request.method, StatusCode::URI_TOO_LONG, HeaderMap::new());
        }
        match Host::parse(&request.authority) {
            Some(host) => self.site(&host).start(request, body, wake),
            None => Exchange::error(&request.method, StatusCode::BAD_REQUEST, HeaderMap::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FileOptions;
    use crate::scan::octets_looked_at;

    #[test]
    fn a_host_of_many_labels_is_looked_up_by_few() {
        let root = tempfile::tempdir().unwrap();
        let store = FileStore::new(FileOptions::default()).unwrap();
        let site = |host: &str| SiteConfig::new(vec![host.to_owned()], FilesConfig::new(root.path()));
        let sites = Sites::new(&[site("default"), site("*.edge.example")], &store).unwrap();
        let host = "a.".repeat(126) + "a";
        let looked_at = octets_looked_at(|| assert!(Arc::ptr_eq(sites.site(&host), &sites.sites[0])));
        assert!(looked_at <= host.len(), "{looked_at} octets of {}", host.len());
        let below = format!("{}.edge.example", "a.".repeat(100) + "a");
        assert!(Arc::ptr_eq(sites.site(&below), &sites.sites[1]));
        assert!(Arc::ptr_eq(sites.site("edge.example"), &sites.sites[0]), "not below itself");
    }
}
