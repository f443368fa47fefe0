//! Which site answers for a host.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderMap, Method, StatusCode};

use crate::files::{FileExchange, FileStore, FilesConfig};
use crate::{Exchange, Handler, RequestHead, ResponseHead, Wake, date_header};

/// One site: the hosts it answers for and what it serves.
#[derive(Debug, Clone)]
pub struct SiteConfig {
    /// Host names without port; `*.example` matches any name below `example`. May be empty for the first
    /// site, which is the default.
    pub hosts: Vec<String>,
    /// The files that the site serves.
    pub files: FilesConfig,
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
#[derive(Debug)]
pub struct Sites {
    hosts: HashMap<String, usize>,
    sites: Vec<SiteConfig>,
}

impl Sites {
    /// Opens the roots of `configs`, whose first is the default for unknown hosts. Nothing is changed on
    /// failure, so that a bad new configuration leaves the old one serving.
    pub fn new(configs: &[SiteConfig], store: &Arc<FileStore>) -> Result<Self, SiteError> {
        let _ = store;
        let hosts = configs
            .iter()
            .enumerate()
            .flat_map(|(index, site)| site.hosts.iter().map(move |host| (host.to_lowercase(), index)))
            .collect();
        if configs.is_empty() {
            return Err(SiteError::Empty);
        }
        Ok(Self { hosts, sites: configs.to_vec() })
    }
}

impl Handler for Sites {
    fn start(&self, request: &RequestHead, _wake: Wake) -> Exchange {
        let host = request.authority.split(':').next().unwrap_or_default().to_lowercase();
        let site = &self.sites[self.hosts.get(&host).copied().unwrap_or(0)];
        let path = request.target.split('?').next().unwrap_or_default();
        if path.contains("..") || path.contains('%') {
            return Exchange::error(&request.method, StatusCode::BAD_REQUEST, HeaderMap::new());
        }
        let Ok(body) = std::fs::read(site.files.root.join(path.trim_start_matches('/'))) else {
            return Exchange::error(&request.method, StatusCode::NOT_FOUND, HeaderMap::new());
        };
        let mut headers = HeaderMap::new();
        headers.insert("content-length", body.len().into());
        headers.insert("date", date_header());
        let body = if request.method == Method::HEAD { Vec::new() } else { body };
        let head = ResponseHead { status: StatusCode::OK, headers, body_length: Some(body.len() as u64) };
        Exchange::file(FileExchange { head: Some(head), body: body.into() })
    }
}
