//! What hyper asks for each request.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use expressway_web::{Exchange, Handler, RequestBody, ResponseHead, Scheme};
use http::header::ALT_SVC;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;

use crate::alarm::Alarm;
use crate::body::ResponseBody;
use crate::request::{self, Reading};
use crate::stats::{Refusal, add, sub};
use crate::transaction::{Tls, Transaction};
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
        let place = Place { watch: Arc::clone(&self.watch), id, is_taken: false };
        Box::pin(answer(self.clone(), request, place))
    }
}

/// A request's number until its transaction has it.
struct Place {
    watch: Arc<Watch>,
    id: u64,
    is_taken: bool,
}

impl Drop for Place {
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
    mut place: Place,
) -> Result<Response<ResponseBody>, Infallible> {
    let (watch, id) = (Arc::clone(&service.watch), place.id);
    let (parts, body) = request.into_parts();
    let Reading { mut head, refusal, expects, content_length } =
        request::read(parts, watch.remote, service.scheme, watch.limits.max_header);
    head.client_subject.clone_from(&service.tls.subject);
    let setup = watch.worker.setup.load_full();
    place.is_taken = true;
    let mut transaction = Transaction::new(Arc::clone(&watch), id, head, Arc::clone(&setup), service.tls);
    {
        add(&watch.worker.stats.requests_waiting, 1);
        let _waiting = Waiting(&watch);
        poll_fn(|context| watch.poll_begin(id, context)).await;
    }
    let alarm = Arc::<Alarm>::default();
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
                } else {
                    tokio::spawn(upload::pass_on(body, writer, Arc::clone(&watch), id));
                    if expects {
                        // The client is told to go on before the answer that it then does without.
                        tokio::task::yield_now().await;
                    }
                }
                exchange
            }
        }
    };
    exchange.charge_to(&watch.account);
    let head = poll_fn(|context| {
        alarm.set(context.waker());
        exchange.poll_head()
    })
    .await;
    transaction.status = head.status.as_u16();
    watch.moved(id, false);
    let length = if head.is_bodyless() { Some(0) } else { exchange.remaining().or(head.body_length) };
    let response = response(head, service.alt_svc.as_ref(), service.scheme);
    Ok(response.map(|()| ResponseBody::new(exchange, alarm, transaction, length)))
}

/// Nobody wants the body. A client that waits for word is answered instead; what others send already is read.
fn turn_down(watch: &Arc<Watch>, body: Incoming, expects: bool) {
    if !body.is_end_stream() && (!expects || watch.is_h2) {
        tokio::spawn(upload::refuse(body, Arc::clone(watch)));
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
