//! A request and its answer, until both are over: counted and logged.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use expressway_netio::trace::Hop;
use expressway_web::access_log::Record;
use expressway_web::memory::Charge;
use expressway_web::{RequestHead, Upstream};
use http::HeaderName;
use http::header::{RANGE, REFERER, USER_AGENT};

use crate::setup::Setup;
use crate::watch::Watch;

/// What a request takes in addition to its head, in octets: its exchange, its task, what hyper keeps of it.
const REQUEST: usize = 4 << 10;

/// What is known of a connection's TLS, for the access log; empty without.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tls {
    pub(crate) version: &'static str,
    pub(crate) cipher: &'static str,
    /// The subject of the client's certificate, if it has shown one.
    pub(crate) subject: Option<Arc<str>>,
}

/// A request under way. Dropped, it is over.
pub(crate) struct Transaction {
    pub(crate) watch: Arc<Watch>,
    pub(crate) id: u64,
    pub(crate) head: RequestHead,
    pub(crate) setup: Arc<Setup>,
    pub(crate) status: u16,
    pub(crate) sent: u64,
    pub(crate) is_complete: bool,
    /// Somebody traces it.
    pub(crate) is_traced: bool,
    /// What a cache did.
    pub(crate) cache: &'static str,
    /// The server that answered, if it was another one.
    pub(crate) upstream: Option<Upstream>,
    tls: Tls,
    time: SystemTime,
    start: Instant,
    _charge: Charge,
}

impl Transaction {
    pub(crate) fn new(
        watch: Arc<Watch>,
        id: u64,
        head: RequestHead,
        setup: Arc<Setup>,
        tls: Tls,
    ) -> Box<Self> {
        let charge = watch.account.charge_request(REQUEST + head.footprint());
        watch.worker.stats.count_request(head.protocol);
        let (follow, about) = watch.follow();
        let is_traced = follow.request(about, id, &head);
        Box::new(Self {
            watch,
            id,
            head,
            setup,
            status: 0,
            sent: 0,
            is_complete: false,
            is_traced,
            cache: "",
            upstream: None,
            tls,
            time: SystemTime::now(),
            start: Instant::now(),
            _charge: charge,
        })
    }

    /// All of the response was handed over.
    pub(crate) fn complete(&mut self) {
        self.is_complete = true;
        self.trace(Hop::Written { stream: self.id, bytes: self.sent, complete: true });
    }

    /// Tells whoever traces it how far it has come.
    pub(crate) fn trace(&self, hop: Hop) {
        if self.is_traced {
            let (follow, about) = self.watch.follow();
            follow.hop(about, hop);
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        let (stream, bytes) = (self.id, self.sent);
        self.trace(match self.is_complete {
            true => Hop::Ended { stream },
            false => Hop::Written { stream, bytes, complete: false },
        });
        self.watch.worker.stats.count_response(self.is_complete);
        if let Some(log) = &self.setup.access_log {
            let header = |name: HeaderName| {
                self.head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
            };
            log.log(&Record {
                time: self.time,
                duration: self.start.elapsed(),
                remote: self.head.remote,
                method: self.head.method.as_str(),
                scheme: self.head.scheme,
                host: &self.head.authority,
                target: &self.head.target,
                protocol: self.head.protocol,
                status: self.status,
                body_bytes: self.sent,
                complete: self.is_complete,
                range: header(RANGE),
                referer: header(REFERER),
                user_agent: header(USER_AGENT),
                tls_version: self.tls.version,
                tls_cipher: self.tls.cipher,
                client_subject: self.head.client_subject.as_deref().unwrap_or(""),
                io_mode: "tcp",
                cmcd: log.cmcd(&self.head.headers),
                worker: self.watch.worker.number,
                cache: self.cache,
                upstream: self.upstream.as_ref().map_or("", |upstream| &upstream.address),
                upstream_status: self.upstream.as_ref().map_or(0, |upstream| upstream.status),
                upstream_time: self.upstream.as_ref().map_or(Duration::ZERO, |upstream| upstream.time),
            });
        }
        self.watch.leave(self.id, self.is_complete);
    }
}
