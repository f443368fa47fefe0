//! One site: its rules, and its content.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::policy::{ErrorPages, ResponsePolicy};
use super::rules::{self, MAX_RULES, PathRule, Verdict};
use super::urgency::urgency;
use super::{SiteConfig, SiteContent, SiteError};
use crate::compress::{CompressOptions, Compression};
use crate::files::{FileSite, FileSiteError, FileStore};
use crate::pace::Pace;
use crate::target::Target;
use crate::timer::Alarms;
use crate::{Exchange, Handler, RequestBody, RequestHead, Wake};

/// A site that is open.
pub(super) struct Site {
    content: Content,
    rules: Vec<PathRule>,
    error_pages: Vec<(StatusCode, String)>,
    compress: Option<Arc<CompressOptions>>,
    store: Arc<FileStore>,
    media_urgency: bool,
    alarms: Alarms,
}

/// What answers.
enum Content {
    Files(FileSite),
    Other(Arc<dyn Handler>),
    Nothing,
}

impl Site {
    /// Opens the site of number `site`.
    pub(super) fn open(site: usize, config: &SiteConfig, store: &Arc<FileStore>) -> Result<Self, SiteError> {
        let invalid = |problem| SiteError::Invalid { site, problem };
        if config.rules.len() > MAX_RULES {
            return Err(invalid(format!("{} rules; {MAX_RULES} are possible", config.rules.len())));
        }
        for rule in &config.rules {
            rule.validate().map_err(invalid)?;
        }
        for (status, page) in &config.error_pages {
            if !(status.is_client_error() || status.is_server_error()) {
                return Err(invalid(format!("error page for {}: not an error status", status.as_u16())));
            }
            if Target::parse(page).is_err() {
                return Err(invalid(format!("error page {page:?} is not a path")));
            }
        }
        let content = match &config.content {
            SiteContent::Files(files) => match FileSite::new(files, store) {
                Ok(files) => Content::Files(files),
                Err(FileSiteError::Root(source)) => {
                    return Err(SiteError::Root { site, root: files.root.clone(), source });
                }
                Err(FileSiteError::Invalid(problem)) => return Err(invalid(problem)),
            },
            SiteContent::Other(handler) => Content::Other(Arc::clone(handler)),
            SiteContent::Nothing => Content::Nothing,
        };
        let compress = config.compress.clone().map(Arc::new);
        if let Some(options) = &compress {
            options.validate().map_err(|problem| invalid(format!("compress: {problem}")))?;
        }
        Ok(Self {
            content,
            rules: config.rules.clone(),
            error_pages: config.error_pages.clone(),
            compress,
            store: Arc::clone(store),
            media_urgency: config.media_urgency,
            alarms: store.alarms(),
        })
    }

    /// Starts answering.
    pub(super) fn start(self: &Arc<Self>, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        let mut exchange = self.start_by_rules(request, body, wake);
        let path = request.target.split('?').next().unwrap_or_default();
        if self.media_urgency
            && let Some(urgency) = urgency(path.as_bytes())
        {
            exchange.set_urgency(urgency);
        }
        exchange
    }

    fn start_by_rules(self: &Arc<Self>, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        if self.rules.is_empty() && self.error_pages.is_empty() {
            let compression = self.compression(request, &wake);
            let mut exchange = self.content.start(request, body, wake);
            if compression.is_some() {
                exchange.set_policy(ResponsePolicy::new(None, None, compression));
            }
            return exchange;
        }
        let Some(verdict) = rules::judge(&self.rules, request) else {
            return Exchange::error(&request.method, StatusCode::BAD_REQUEST, HeaderMap::new());
        };
        let pace = verdict.pace(request);
        let pace = pace.map(|(rate, after)| Pace::new(rate, after, self.alarms.clone(), wake.clone()));
        let Verdict { answer, target, changes, .. } = verdict;
        let pages = (!self.error_pages.is_empty()).then(|| ErrorPages::new(self, request, &wake));
        let compression = self.compression(request, &wake);
        let mut exchange = match (answer, target) {
            (Some(answer), _) => answer,
            (None, None) => self.content.start(request, body, wake),
            (None, Some(target)) => {
                let request = RequestHead { target, ..request.clone() };
                self.content.start(&request, body, wake)
            }
        };
        if changes.is_some() || pages.is_some() || compression.is_some() {
            exchange.set_policy(ResponsePolicy::new(changes, pages, compression));
        }
        if let Some(pace) = pace {
            exchange.set_pace(pace);
        }
        exchange
    }

    fn compression(&self, request: &RequestHead, wake: &Wake) -> Option<Box<Compression>> {
        let options = self.compress.as_ref()?;
        Some(Box::new(Compression::new(options, request, &self.store, wake)))
    }

    /// The page that is sent with an error of that status.
    pub(super) fn error_page(&self, status: StatusCode) -> Option<&str> {
        self.error_pages.iter().find(|(known, _)| *known == status).map(|(_, page)| page.as_str())
    }

    /// Starts answering without rules or pages.
    pub(super) fn start_plain(&self, request: &RequestHead, wake: Wake) -> Exchange {
        self.content.start(request, RequestBody::empty(), wake)
    }
}

impl Content {
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        match self {
            Self::Files(files) => files.start(request, wake),
            Self::Other(handler) => handler.start(request, body, wake),
            Self::Nothing => Exchange::error(&request.method, StatusCode::NOT_FOUND, HeaderMap::new()),
        }
    }
}
