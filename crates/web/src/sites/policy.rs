//! What a site changes in a response before it is sent: header fields, pages instead of bare errors, compression.

use std::sync::Arc;

use http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_RANGE, ETAG, HeaderName, LAST_MODIFIED, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{HeaderMap, Method, StatusCode};

use super::rules::HeaderChanges;
use super::site::Site;
use crate::compress::Compression;
use crate::memory::Account;
use crate::{Exchange, RequestHead, ResponseHead, Wake};

/// Fields of an error that its page does not replace.
const KEPT: [HeaderName; 4] = [ALLOW, CONTENT_RANGE, RETRY_AFTER, WWW_AUTHENTICATE];

/// What is done to one response.
pub(crate) struct ResponsePolicy {
    changes: Option<Box<HeaderChanges>>,
    pages: Option<ErrorPages>,
    /// The error whose page is being fetched.
    error: Option<Box<ResponseHead>>,
    compression: Option<Box<Compression>>,
    account: Option<Account>,
}

/// What is needed to fetch a site's error page for a request.
pub(super) struct ErrorPages {
    site: Arc<Site>,
    /// Without what would make the page's response a part, or none.
    request: RequestHead,
    wake: Wake,
}

impl ErrorPages {
    pub(super) fn new(site: &Arc<Site>, request: &RequestHead, wake: &Wake) -> Self {
        let method = if request.method == Method::HEAD { Method::HEAD } else { Method::GET };
        let request = RequestHead {
            method,
            scheme: request.scheme,
            authority: request.authority.clone(),
            target: String::new(),
            headers: HeaderMap::new(),
            protocol: request.protocol,
            remote: request.remote,
            client_subject: request.client_subject.clone(),
        };
        Self { site: Arc::clone(site), request, wake: wake.clone() }
    }

    fn start(mut self, status: StatusCode) -> Option<Exchange> {
        self.request.target = self.site.error_page(status)?.to_owned();
        Some(self.site.start_plain(&self.request, self.wake))
    }
}

impl ResponsePolicy {
    pub(super) fn new(
        changes: Option<Box<HeaderChanges>>,
        pages: Option<ErrorPages>,
        compression: Option<Box<Compression>>,
    ) -> Self {
        Self { changes, pages, error: None, compression, account: None }
    }

    /// Counts what it is the cause of on `account`.
    pub(crate) fn charge_to(&mut self, account: &Account) {
        self.account = Some(account.clone());
        if let Some(compression) = &mut self.compression {
            compression.charge_to(account);
        }
    }

    /// For a head that came: what takes the place of the whole exchange, which is to be polled again.
    pub(crate) fn replace(&mut self, head: &ResponseHead) -> Option<Exchange> {
        let replaced = match self.error.as_deref() {
            // The page is missing: the bare error.
            Some(error) if head.status != StatusCode::OK => {
                let (status, headers) = (error.status, kept(&error.headers));
                self.error = None;
                Some(Exchange::error(&Method::GET, status, headers))
            }
            Some(_) => None,
            None => {
                let page = self.pages.take()?.start(head.status)?;
                self.error = Some(Box::new(head.clone()));
                Some(page)
            }
        };
        let mut exchange = replaced?;
        if let Some(account) = &self.account {
            exchange.charge_to(account);
        }
        Some(exchange)
    }

    /// Makes the head what leaves, but for compression, which comes back.
    pub(crate) fn finish(self, head: &mut ResponseHead) -> Option<Box<Compression>> {
        if let Some(error) = self.error {
            head.status = error.status;
            for name in [ETAG, LAST_MODIFIED, ACCEPT_RANGES] {
                head.headers.remove(name);
            }
            head.headers.extend(kept(&error.headers));
        }
        if let Some(changes) = self.changes {
            changes.apply(&mut head.headers);
        }
        self.compression
    }
}

fn kept(headers: &HeaderMap) -> HeaderMap {
    KEPT.iter().filter_map(|name| Some((name.clone(), headers.get(name)?.clone()))).collect()
}
