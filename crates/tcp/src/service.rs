//! What hyper asks for each request.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use expressway_netio::trace::Hop;
use expressway_web::{Exchange, Handler, PipeWriter, RequestBody, ResponseHead, Scheme};
use http::header::{ALT_SVC, CONNECTION};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;

use crate::alarm::Alarm;
use crate::body::ResponseBody;
use crate::connections::Told;
use crate::request::{self, Reading};
use crate::stats::{Refusal, add, sub};
use crate::transaction::{Tls, Transaction};
use crate::turn::poll_slice;
use crate::upload;
use crate::watch::Watch;

/// Answers the requests of a connection.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) watch: Arc<Watch>,
    pub(crate) scheme: Scheme,
    pub(crate) tls: Tls,
    /// Instead of the one that is in force.
    pub(crate) handler: Option<Arc<dyn Handler>>,
    pub(crate) alt_svc: Option<HeaderValue>,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        // Now, so that its task can be told from others'.
        let id = self.watch.arrive(!request.body().is_end_stream());
        let guard = RequestGuard { watch: Arc::clone(&self.watch), id, is_taken: false };
        Box::pin(answer(self.clone(), request, guard))
    }
}

/// A request's number until its transaction has it.
struct RequestGuard {
    watch: Arc<Watch>,
    id: u64,
    is_taken: bool,
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if !self.is_taken {
            self.watch.leave(self.id, false);
        }
    }
}

/// A request that waits in line.
struct Waiting<'a>(&'a Watch);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        sub(&self.0.worker.stats.requests_waiting, 1);
    }
}

async fn answer(
    service: Service,
    request: Request<Incoming>,
    mut guard: RequestGuard,
) -> Result<Response<ResponseBody>, Infallible> {
    let (watch, id) = (Arc::clone(&service.watch), guard.id);
    let (parts, body) = request.into_parts();
    let Reading { mut head, refusal, expects, content_length } =
        request::read(parts, watch.remote, service.scheme, watch.limits.max_header);
    head.client_subject.clone_from(&service.tls.subject);
    let setup = watch.worker.setup.load_full();
    guard.is_taken = true;
    let mut transaction = Transaction::new(Arc::clone(&watch), id, head, Arc::clone(&setup), service.tls);
    {
        add(&watch.worker.stats.requests_waiting, 1);
        let _waiting = Waiting(&watch);
        poll_fn(|context| watch.poll_begin(id, context)).await;
        // hyper begins up to 16 requests that came together in one poll.
        poll_fn(|context| poll_slice(context)).await;
    }
    let alarm = Arc::<Alarm>::default();
    // A body that the client keeps back until it is told to go on, which hyper does not do over HTTP/2: there it comes after
    // the client's own pause.
    let mut awaited = None;
    let mut exchange = match refusal {
        Some(status) => {
            if status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE {
                watch.worker.stats.refuse(Refusal::HeaderSize);
            }
            turn_down(&watch, body, expects);
            Exchange::error(&transaction.head.method, status, HeaderMap::new())
        }
        None => {
            let handler = service.handler.as_ref().unwrap_or(&setup.handler);
            if body.is_end_stream() {
                handler.start(&transaction.head, RequestBody::empty(), alarm.wake())
            } else {
                let (writer, reader) = upload::new(content_length);
                let exchange = handler.start(&transaction.head, reader, alarm.wake());
                if writer.is_closed() {
                    turn_down(&watch, body, expects);
                } else if expects && !watch.is_h2 {
                    awaited = Some((body, writer));
                } else {
                    upload::start(&watch, upload::pass_on(body, writer, Arc::clone(&watch), id));
                }
                exchange
            }
        }
    };
    if refusal.is_none() {
        transaction.trace(Hop::Started { stream: id });
    }
    exchange.charge_to(&watch.account);
    let head = head_of(&mut exchange, &alarm, awaited, (&watch, id)).await;
    transaction.status = head.status.as_u16();
    if transaction.is_traced {
        let (follow, about) = watch.follow();
        follow.answered(about, (id, transaction.status), &exchange);
    }
    watch.turns(id, false);
    let length = if head.is_bodyless() { Some(0) } else { exchange.remaining().or(head.body_length) };
    let mut response = response(head, service.alt_svc.as_ref(), service.scheme);
    if !watch.is_h2 && watch.permit().signal.told() == Told::Retire {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response.map(|()| ResponseBody::new(exchange, alarm, transaction, length)))
}

/// Waits for the head of the response, and has a body that is `awaited` come as soon as somebody asks for it.
async fn head_of(
    exchange: &mut Exchange,
    alarm: &Arc<Alarm>,
    mut awaited: Option<(Incoming, PipeWriter)>,
    (watch, id): (&Arc<Watch>, u64),
) -> ResponseHead {
    loop {
        let (head, is_wanted) = poll_fn(|context| {
            alarm.set(context.waker());
            if let Some((_, writer)) = &mut awaited
                && let Poll::Ready(is_asked) = writer.poll_asked(context.waker())
            {
                return Poll::Ready((None, is_asked));
            }
            // Who answers well without having read the body is going to.
            let head = ready!(exchange.poll_head());
            let is_wanted = head.status.is_success();
            Poll::Ready((Some(head), is_wanted))
        })
        .await;
        match awaited.take() {
            Some((body, writer)) if is_wanted && !writer.is_closed() => {
                upload::start(watch, upload::pass_on(body, writer, Arc::clone(watch), id));
                // hyper tells the client to go on when the body is first polled, and not behind an answer.
                tokio::task::yield_now().await;
            }
            Some((body, _)) => {
                // Who does not wait any more sends it: the connection lingers, or that would take back the answer.
                watch.begin_upload();
                watch.end_upload(false);
                turn_down(watch, body, true);
            }
            None => {}
        }
        if let Some(head) = head {
            return head;
        }
    }
}

/// Nobody wants the body. A client that waits for word is answered instead; what others send already is read.
fn turn_down(watch: &Arc<Watch>, body: Incoming, expects: bool) {
    if !body.is_end_stream() && (!expects || watch.is_h2) {
        upload::start(watch, upload::refuse(body, Arc::clone(watch)));
    }
}

fn response(head: ResponseHead, alt_svc: Option<&HeaderValue>, scheme: Scheme) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = head.status;
    *response.headers_mut() = head.headers;
    if let Some(alt_svc) = alt_svc
        && scheme == Scheme::Https
    {
        response.headers_mut().insert(ALT_SVC, alt_svc.clone());
    }
    response
}
