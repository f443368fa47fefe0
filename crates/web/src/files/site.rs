//! A site that is a directory tree: the start of each request.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use http::header::HeaderValue;
use http::{HeaderMap, Method, StatusCode};

use super::exchange::FileExchange;
use super::hls::{Entered, HeldExchange, HlsOptions, Wanted};
use super::lookup::{Found, LookupError, Tree};
use super::respond::{Question, error, not_allowed, respond};
use super::root::Root;
use super::{FileStore, FilesConfig};
use crate::target::Target;
use crate::{Exchange, RequestHead, Wake};
use expressway_metrics::count;

/// A root directory with its options, on the store that all sites share.
#[derive(Debug)]
pub(crate) struct FileSite(Files);

/// The same for those who answer later.
#[derive(Debug, Clone)]
pub(super) struct Files {
    tree: Arc<Tree>,
    store: Arc<FileStore>,
}

/// Why a file site cannot be served.
#[derive(Debug)]
pub(crate) enum FileSiteError {
    /// The root cannot be opened.
    Root(std::io::Error),
    /// An option makes no sense.
    Invalid(String),
}

impl FileSite {
    /// Opens the root of `config`.
    pub(crate) fn new(config: &FilesConfig, store: &Arc<FileStore>) -> Result<Self, FileSiteError> {
        config.validate().map_err(FileSiteError::Invalid)?;
        let default_type = HeaderValue::try_from(&config.default_type).map_err(|_| {
            FileSiteError::Invalid(format!(
                "default_type {:?} is not a valid header value",
                config.default_type
            ))
        })?;
        let root = Root::open(&config.root, config.symlinks).map_err(FileSiteError::Root)?;
        let memory = Arc::clone(store.memory());
        let tree =
            Arc::new(Tree { root, config: config.clone(), default_type, memory, held: AtomicUsize::new(0) });
        Ok(Self(Files { tree, store: Arc::clone(store) }))
    }

    /// Starts answering, at once or when there is what the request asks for.
    pub(crate) fn start(&self, request: &RequestHead, wake: Wake) -> Exchange {
        let held = self.0.tree.config.hls.and_then(|options| self.0.hold(request, options, &wake));
        held.unwrap_or_else(|| self.0.start(request, wake))
    }
}

impl Files {
    /// Holds a request for what is still to come.
    fn hold(&self, request: &RequestHead, options: HlsOptions, wake: &Wake) -> Option<Exchange> {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return None;
        }
        let Target { path, query } = Target::parse(&request.target).ok()?;
        let refuse = |status| {
            let answer = error(&request.method, status, HeaderMap::new());
            Some(self.fixed(answer, wake.clone()))
        };
        let entered = match Wanted::of(&path, query) {
            Err(()) => return refuse(StatusCode::BAD_REQUEST),
            Ok(Some(wanted)) => {
                self.store.holds.wait(&self.store, (&self.tree, options), &path, wanted, wake)
            }
            Ok(None) if options.preload_hints => self.store.holds.wait_hinted(self.tree.root.id, &path, wake),
            Ok(None) => return None,
        };
        match entered {
            Entered::AtOnce => None,
            Entered::Held(registration) => {
                Some(HeldExchange::start(registration, self, request, wake.clone()))
            }
            Entered::Full => refuse(StatusCode::SERVICE_UNAVAILABLE),
        }
    }

    /// Starts answering.
    pub(super) fn start(&self, request: &RequestHead, wake: Wake) -> Exchange {
        let method = &request.method;
        if !matches!(*method, Method::GET | Method::HEAD | Method::POST) {
            return self.fixed(not_allowed(method), wake);
        }
        let Ok(target) = Target::parse(&request.target) else {
            return self.fixed(error(method, StatusCode::BAD_REQUEST, HeaderMap::new()), wake);
        };
        let question = Question { method, headers: &request.headers, query: target.query };
        let root = self.tree.root.id;
        if let Some(found) = self.store.open_files.find(root, &target.path) {
            let mut exchange = self.answered(question, &found, wake.clone());
            if exchange.is_current() {
                count(&self.store.counters.open_file_cache_hits);
                return Exchange::file(exchange);
            }
        }
        count(&self.store.counters.open_file_cache_misses);
        let looked_up = match self.store.try_on_worker {
            true => self.tree.look_up(&target.path, true),
            false => Err(LookupError::WouldBlock),
        };
        match looked_up {
            Ok(found) => {
                let found = Arc::new(found);
                self.store.open_files.keep(root, &target.path, &found);
                Exchange::file(self.answered(question, &found, wake))
            }
            Err(LookupError::Status(status)) => self.fixed(error(method, status, HeaderMap::new()), wake),
            Err(LookupError::WouldBlock | LookupError::Exhausted) => Exchange::file(FileExchange::looking(
                Arc::clone(&self.store),
                Arc::clone(&self.tree),
                wake,
                question,
                &target.path,
            )),
        }
    }

    fn answered(&self, question: Question<'_>, found: &Found, wake: Wake) -> FileExchange {
        FileExchange::new(Arc::clone(&self.store), wake, respond(&self.tree.config, question, found))
    }

    fn fixed(&self, answer: super::respond::Answer, wake: Wake) -> Exchange {
        Exchange::file(FileExchange::new(Arc::clone(&self.store), wake, answer))
    }
}

impl Drop for FileSite {
    fn drop(&mut self) {
        self.0.store.open_files.forget(self.0.tree.root.id);
    }
}
