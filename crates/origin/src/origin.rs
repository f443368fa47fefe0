//! An origin: its servers, and the handler that passes requests on to them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use expressway_web::{Exchange, Handler, LogLimit, RequestBody, RequestHead, Wake, is_blocking_reload};
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, Version};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{interval, sleep, timeout};

use crate::balance::{Balancer, Candidate};
use crate::connect::{Connector, Sender};
use crate::exchange::Sink;
use crate::failure::{Failed, Reason};
use crate::health::FULL_SHARE;
use crate::proxy::Job;
use crate::server::Server;
use crate::stats::count;
use crate::upload::{Upload, UploadBody};
use crate::{HealthCheck, OriginOptions, OriginReport};

/// How often idle connections are looked through.
const SWEEP: Duration = Duration::from_secs(1);

/// A group of servers that hold the same; passes requests on to them. Clones are the same origin.
#[derive(Clone)]
pub struct Origin(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) options: OriginOptions,
    pub(crate) servers: Vec<Arc<Server>>,
    pub(crate) connector: Connector,
    balancer: Balancer,
    requests: Arc<Semaphore>,
    refused: AtomicU64,
    log_limit: LogLimit,
    is_watched: AtomicBool,
    control: Handle,
}

impl Origin {
    /// Reads certificates; requests will run on `control`.
    pub fn new(options: OriginOptions, control: &Handle) -> Result<Self, String> {
        options.validate()?;
        let inner = Arc::new(Inner {
            servers: options.servers.iter().map(|server| Server::new(server, &options)).collect(),
            connector: Connector::new(&options)?,
            balancer: Balancer::new(options.balance, options.servers.len()),
            requests: Arc::new(Semaphore::new(options.limits.requests)),
            refused: AtomicU64::new(0),
            log_limit: LogLimit::new(),
            is_watched: AtomicBool::new(false),
            control: control.clone(),
            options,
        });
        Ok(Self(inner))
    }

    /// Begins to look names up again, to check health and to close idle connections, until all clones are dropped.
    pub fn watch(&self) {
        let Inner { control, options, servers, is_watched, .. } = &*self.0;
        if is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        control.spawn(sweep(Arc::downgrade(&self.0)));
        for server in servers {
            if server.endpoint.is_named() {
                control.spawn(resolve(Arc::downgrade(server), options.resolve));
            }
            if options.health.is_some() {
                control.spawn(check(Arc::downgrade(&self.0), Arc::downgrade(server)));
            }
        }
    }

    /// What it was made of.
    pub fn options(&self) -> &OriginOptions {
        &self.0.options
    }

    /// Its counters.
    pub fn report(&self) -> OriginReport {
        let now = Instant::now();
        let report = |server: &Arc<Server>| {
            let idle = server.pool().idle();
            server.stats.report(server.name.clone(), idle, server.health.is_available(now))
        };
        OriginReport {
            name: self.0.options.name.clone(),
            refused: self.0.refused.load(Ordering::Relaxed),
            servers: self.0.servers.iter().map(report).collect(),
        }
    }
}

/// An origin that may hold blocking reloads of low-latency HLS playlists, up to this time, beyond its response timeout.
pub struct HlsOrigin(pub Origin, pub Duration);

impl Handler for HlsOrigin {
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        let usual = self.0.options().timeouts.response;
        let timeout = if is_blocking_reload(&request.target) { usual.max(self.1) } else { usual };
        self.0.begin(request, body, wake, timeout)
    }
}

impl Handler for Origin {
    fn start(&self, request: &RequestHead, body: RequestBody, wake: Wake) -> Exchange {
        self.begin(request, body, wake, self.options().timeouts.response)
    }
}

impl Origin {
    /// Starts answering; the head of the response may take `response_timeout`.
    fn begin(
        &self,
        request: &RequestHead,
        body: RequestBody,
        wake: Wake,
        response_timeout: Duration,
    ) -> Exchange {
        let start = Instant::now();
        let Ok(slot) = Arc::clone(&self.0.requests).try_acquire_owned() else {
            count(&self.0.refused);
            return Exchange::error(&request.method, StatusCode::SERVICE_UNAVAILABLE, HeaderMap::new());
        };
        let sink = Sink::new(wake);
        let reader = sink.reader();
        let origin = Arc::clone(&self.0);
        let upload = Upload::without(body, origin.options.client_subject.clone());
        let head = request.clone();
        let job = Job { origin, head, upload, sink, start, response_timeout, server: None, _slot: slot };
        let task = self.0.control.spawn(job.run()).abort_handle();
        Sink::exchange(reader, request.method.clone(), task)
    }
}

impl Inner {
    /// The place of the server for a request with `key`, none of those in `tried`.
    pub(crate) fn choose(&self, tried: u64, key: u64) -> Option<usize> {
        let now = Instant::now();
        let is_tried = |index: usize| tried & (1 << index) != 0;
        let available: Vec<_> = self.servers.iter().map(|server| server.health.is_available(now)).collect();
        let well = available.iter().filter(|available| **available).count();
        let panics = well == 0 || well * 100 < self.options.ejection.panic as usize * self.servers.len();
        let candidates = |all: bool| -> Vec<Candidate> {
            let servers = self.servers.iter().enumerate();
            let servers = servers.filter(|(index, _)| !is_tried(*index) && (all || available[*index]));
            let candidate = |(index, server): (usize, &Arc<Server>)| Candidate {
                index,
                weight: u64::from(server.weight)
                    * server.health.share(now, self.options.slow_start).clamp(1, FULL_SHARE),
                active: server.stats.active.load(Ordering::Relaxed) as usize,
                seed: server.seed,
            };
            servers.map(candidate).collect()
        };
        // Those that are out of service are better than nothing when the others have failed too.
        self.balancer
            .choose(&candidates(panics), key)
            .or_else(|| self.balancer.choose(&candidates(true), key))
    }

    /// A server failed: says so, and leaves it alone for a while if it does so again and again.
    pub(crate) fn fail(&self, server: &Server, failed: &Failed) {
        let origin = self.options.name.as_str();
        if failed.reason == Reason::Client {
            tracing::debug!(origin, server = server.name, "{failed}");
            return;
        }
        if let Some(unsaid) = self.log_limit.is_due() {
            tracing::warn!(origin, server = server.name, unsaid, "{failed}");
        }
        if failed.reason.is_servers()
            && let Some(time) = server.health.fail(Instant::now(), &self.options.ejection)
        {
            tracing::warn!(origin, server = server.name, "failed repeatedly: out of service for {time:?}");
        }
    }

    /// One check; the error says what is wrong.
    async fn ask(&self, server: &Arc<Server>, check: &HealthCheck) -> Result<(), String> {
        let (sender, _) =
            self.connector.open(server, &self.options).await.map_err(|failed| failed.to_string())?;
        let body = Upload::new(RequestBody::empty()).begin();
        let host = self.options.host.clone().unwrap_or_else(|| server.endpoint.authority());
        let request =
            health_request(check, &host, matches!(sender, Sender::H2(_)), server.endpoint.tls, body)?;
        let response = match sender {
            Sender::Http1(mut sender) => sender.send_request(request).await,
            Sender::H2(mut sender) => sender.send_request(request).await,
        };
        let status = response.map_err(|error| crate::failure::chain(&error))?.status().as_u16();
        let is_well = check.status.iter().any(|(first, last)| (*first..=*last).contains(&status));
        if is_well { Ok(()) } else { Err(format!("status {status}")) }
    }
}

fn health_request(
    check: &HealthCheck,
    host: &str,
    is_h2: bool,
    is_tls: bool,
    body: UploadBody,
) -> Result<Request<UploadBody>, String> {
    let mut request = Request::new(body);
    let uri = if is_h2 {
        *request.version_mut() = Version::HTTP_2;
        format!("{}://{host}{}", if is_tls { "https" } else { "http" }, check.path)
    } else {
        request.headers_mut().insert(HOST, HeaderValue::from_str(host).map_err(|error| error.to_string())?);
        check.path.clone()
    };
    *request.uri_mut() = uri.parse::<Uri>().map_err(|error| error.to_string())?;
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static("expressway-health-check"));
    Ok(request)
}

/// Closes what has been idle for too long, for as long as there is the origin.
async fn sweep(origin: Weak<Inner>) {
    let mut ticks = interval(SWEEP);
    loop {
        ticks.tick().await;
        let Some(origin) = origin.upgrade() else { return };
        origin.servers.iter().for_each(|server| server.pool().sweep(origin.options.limits.idle_timeout));
    }
}

/// Looks a server's name up at start and again and again.
async fn resolve(server: Weak<Server>, every: Duration) {
    loop {
        {
            let Some(server) = server.upgrade() else { return };
            if !server.refresh(every).await {
                return;
            }
        }
        sleep(every).await;
    }
}

/// Checks a server's health again and again.
async fn check(origin: Weak<Inner>, server: Weak<Server>) {
    loop {
        let (origin, server) = (origin.upgrade(), server.upgrade());
        let (Some(origin), Some(server)) = (origin, server) else { return };
        let Some(options) = &origin.options.health else { return };
        let result = timeout(options.timeout, origin.ask(&server, options)).await;
        let result = result.unwrap_or_else(|_| Err(format!("no answer within {:?}", options.timeout)));
        let name = origin.options.name.as_str();
        match (server.health.check(result.is_ok(), Instant::now(), options), result) {
            (Some(false), Err(problem)) => {
                tracing::warn!(
                    origin = name,
                    server = server.name,
                    "health check: {problem}: out of service"
                );
            }
            (Some(true), _) => {
                tracing::info!(origin = name, server = server.name, "health check: in service")
            }
            (_, Err(problem)) => {
                tracing::debug!(origin = name, server = server.name, "health check: {problem}")
            }
            (_, Ok(())) => {}
        }
        let every = options.interval;
        drop((origin, server));
        sleep(every).await;
    }
}
