//! One request's way through an origin: attempts, the response's head, and its body.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_web::{BodyError, RequestHead, Upstream, pipe};
use http::{HeaderMap, Method, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep_until, timeout};

use crate::balance;
use crate::exchange::Sink;
use crate::failure::{Failed, Reason, chain};
use crate::fields;
use crate::origin::Inner;
use crate::request::Template;
use crate::response;
use crate::server::{Lease, Server};
use crate::stats::count;
use crate::upload::Upload;

/// A request that was accepted.
pub(crate) struct Job {
    pub(crate) origin: Arc<Inner>,
    pub(crate) head: RequestHead,
    pub(crate) upload: Upload,
    pub(crate) sink: Sink,
    pub(crate) start: Instant,
    /// How long the head of the response may take.
    pub(crate) response_timeout: Duration,
    /// The server that was asked last.
    pub(crate) server: Option<Arc<Server>>,
    pub(crate) _slot: OwnedSemaphorePermit,
}

/// The client's body is let go with the task, however that ends.
struct Stop(Upload);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A request under way at a server.
struct Active(Arc<Server>);

impl Active {
    fn new(server: &Arc<Server>) -> Self {
        count(&server.stats.active);
        Self(Arc::clone(server))
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.stats.active.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// What is left to try.
struct Attempts {
    /// Places of servers that have failed.
    tried: u64,
    /// Further ones that may be asked.
    left: u32,
    /// The one to ask again over a new connection, since its old one was dead.
    again: Option<usize>,
}

impl Job {
    /// Answers it.
    pub(crate) async fn run(mut self) {
        let _stop = Stop(self.upload.clone());
        let Some(total) = self.origin.options.timeouts.total else { return self.serve().await };
        if timeout(total, self.serve()).await.is_err() {
            if let Some(server) = &self.server {
                server.stats.fail(Reason::TotalTimeout);
            }
            tracing::debug!(origin = self.origin.options.name, "a request took longer than total_timeout");
            self.sink.refuse(Reason::TotalTimeout.status());
        }
    }

    async fn serve(&mut self) {
        let key = balance::hash([self.head.authority.as_bytes(), self.head.target.as_bytes()]);
        let template = match Template::new(self.head.clone(), &self.origin.options) {
            Ok(template) => template,
            Err(status) => return self.sink.refuse(status),
        };
        if needs_look(&template.method) && self.upload.length().is_none() {
            self.upload.look().await;
        }
        let mut attempts = Attempts { tried: 0, left: self.origin.options.retries, again: None };
        let mut last = None;
        loop {
            let again = attempts.again.take();
            let Some(index) = again.or_else(|| self.origin.choose(attempts.tried, key)) else { break };
            let server = Arc::clone(&self.origin.servers[index]);
            self.server = Some(Arc::clone(&server));
            count(&server.stats.requests);
            if last.is_some() {
                count(&server.stats.retries);
            }
            let _active = Active::new(&server);
            let begun = Instant::now();
            match self.attempt(&template, &server, again.is_some()).await {
                Ok((lease, response)) => {
                    server.stats.answer(begun.elapsed());
                    return self.deliver(&template.method, &server, lease, response).await;
                }
                Err(failed) => {
                    let goes_on = self.fail(&template, index, &failed, again.is_some(), &mut attempts);
                    last = Some(failed);
                    if !goes_on {
                        break;
                    }
                }
            }
        }
        let status = last.map_or(http::StatusCode::BAD_GATEWAY, |failed| failed.reason.status());
        self.sink.refuse(status);
    }

    /// Accounts for a failed attempt. True: there may be another.
    fn fail(
        &self,
        template: &Template,
        index: usize,
        failed: &Failed,
        was_fresh: bool,
        attempts: &mut Attempts,
    ) -> bool {
        let server = &self.origin.servers[index];
        let is_stale = failed.was_pooled && failed.reason == Reason::Closed && !was_fresh;
        server.stats.fail(failed.reason);
        self.sink.asked(Upstream { address: server.name.clone(), status: 0, time: self.start.elapsed() });
        if !is_stale {
            self.origin.fail(server, failed);
        }
        let may_repeat = match failed.reason {
            _ if self.upload.has_failed() || !self.upload.is_untouched() => false,
            _ if !failed.was_sent => true,
            Reason::Closed | Reason::ResponseTimeout => template.is_idempotent(),
            _ => false,
        };
        if !may_repeat {
            return false;
        }
        if is_stale {
            attempts.again = Some(index);
            return true;
        }
        attempts.tried |= 1 << index;
        let goes_on = attempts.left > 0;
        attempts.left = attempts.left.saturating_sub(1);
        goes_on
    }

    async fn attempt(
        &self,
        template: &Template,
        server: &Arc<Server>,
        fresh: bool,
    ) -> Result<(Lease, Response<Incoming>), Failed> {
        let options = &self.origin.options;
        let mut lease = server.lease(&self.origin.connector, options, fresh).await?;
        let request = template.request(&self.upload, lease.is_h2(), server.endpoint.tls);
        let time = self.response_timeout;
        let late = || Failed::sent(Reason::ResponseTimeout, format!("none within {time:?}"));
        let sent = self.unless_quiet(lease.send(request), time).await;
        let response = sent.ok_or_else(late)??;
        Ok((lease, response))
    }

    /// The result of `future`; `None` if nothing has moved for `time`. While the request's body moves, or its client
    /// owes some of it, the origin is not late.
    async fn unless_quiet<T>(&self, future: impl Future<Output = T>, time: Duration) -> Option<T> {
        let mut future = pin!(future);
        let start = Instant::now();
        loop {
            let quiet = self.upload.quiet_since().max(start);
            tokio::select! {
                biased;
                output = &mut future => return Some(output),
                () = sleep_until((quiet + time).into()) => {
                    if self.upload.quiet_since().max(start).elapsed() >= time {
                        return None;
                    }
                }
            }
        }
    }

    /// Passes a response on.
    async fn deliver(
        &mut self,
        method: &Method,
        server: &Arc<Server>,
        lease: Lease,
        response: Response<Incoming>,
    ) {
        let limits = &self.origin.options.limits;
        let time = self.start.elapsed();
        let status = response.status().as_u16();
        self.sink.asked(Upstream { address: server.name.clone(), status, time });
        let head = match response::head(method, &response, limits.head) {
            Ok(head) => head,
            Err(failed) => {
                server.stats.fail(failed.reason);
                self.origin.fail(server, &failed);
                return self.sink.refuse(failed.reason.status());
            }
        };
        let length = head.body_length;
        let (mut writer, reader) = pipe(limits.buffer);
        self.sink.respond(head, reader);
        match self.body(&mut writer, response.into_body(), length).await {
            Ok(Some(trailers)) => {
                writer.finish(Some(trailers).filter(|trailers| !trailers.is_empty()));
                server.health.succeed(Instant::now());
                if self.upload.is_ended() {
                    lease.give_back(&self.origin.options).await;
                }
            }
            Ok(None) => {}
            Err(failed) => {
                server.stats.fail(failed.reason);
                self.origin.fail(server, &failed);
                writer.fail(BodyError::Origin(failed.reason.as_str()));
            }
        }
    }

    /// Passes a body on as far as there is room. `None`: nobody wants the rest.
    async fn body(
        &self,
        writer: &mut expressway_web::PipeWriter,
        mut body: Incoming,
        length: Option<u64>,
    ) -> Result<Option<HeaderMap>, Failed> {
        let mut given = 0;
        let mut trailers = HeaderMap::new();
        loop {
            // Of a body that was given whole its reader may be gone; the connection's place behind it is still sought.
            if length != Some(given) && poll_fn(|context| writer.poll_room(context.waker())).await.is_none() {
                return Ok(None);
            }
            let time = self.origin.options.timeouts.read;
            let Some(frame) = self.unless_quiet(body.frame(), time).await else {
                return Err(Failed::sent(Reason::ReadTimeout, format!("no data of a body for {time:?}")));
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(_)) if self.upload.has_failed() => {
                    return Err(Failed::sent(Reason::Client, "the client did not send its whole request"));
                }
                Some(Err(error)) => return Err(Failed::sent(Reason::Incomplete, chain(&error))),
                None if length.is_some_and(|length| length != given) => {
                    return Err(Failed::sent(Reason::Incomplete, format!("{given} octets of {length:?}")));
                }
                None => return Ok(Some(trailers)),
            };
            match frame.into_data() {
                Ok(data) => {
                    given += data.len() as u64;
                    if length.is_some_and(|length| length < given) {
                        return Err(Failed::sent(Reason::Incomplete, "more body than content-length"));
                    }
                    writer.write(data);
                }
                Err(frame) => {
                    trailers =
                        frame.into_trailers().ok().and_then(fields::strip_trailers).unwrap_or_default();
                }
            }
        }
    }
}

/// Requests of such methods have no body as a rule, and what looks like one is an end that comes late.
fn needs_look(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::DELETE)
}
