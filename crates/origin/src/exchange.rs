//! A proxied response as transports poll it, and the end that its task writes to.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker, ready};

use bytes::Bytes;
use expressway_web::{BodyError, Exchange, PipeReader, ResponseHead, ResponseSource, Upstream, Wake};
use http::header::ALLOW;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::task::AbortHandle;

/// What the task has found out.
enum Answer {
    Response(ResponseHead, PipeReader),
    /// An answer of our own.
    Status(StatusCode),
}

#[derive(Default)]
struct State {
    answer: Option<Answer>,
    upstream: Option<Upstream>,
}

struct Shared {
    state: Mutex<State>,
    wake: Wake,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task's end. Dropped without an answer, as when the runtime stops, it answers 503.
pub(crate) struct Sink {
    shared: Arc<Shared>,
    pub(crate) is_answered: bool,
}

impl Sink {
    /// A request that waits for its answer; `wake` is called when that is there.
    pub(crate) fn new(wake: Wake) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::default(), wake }), is_answered: false }
    }

    /// The exchange to give to the transport; it aborts `task` when it is dropped early.
    pub(crate) fn exchange(shared: Reader, method: Method, task: AbortHandle) -> Exchange {
        let waker = shared.0.wake.waker();
        let phase = Phase::Waiting;
        Exchange::new(Box::new(OriginExchange { shared: shared.0, method, waker, phase, task }))
    }

    /// For [`Self::exchange`], before the sink goes to its task.
    pub(crate) fn reader(&self) -> Reader {
        Reader(Arc::clone(&self.shared))
    }

    /// Who was asked, for the access log.
    pub(crate) fn asked(&self, upstream: Upstream) {
        self.shared.lock().upstream = Some(upstream);
    }

    /// Answers with what a server said.
    pub(crate) fn respond(&mut self, head: ResponseHead, body: PipeReader) {
        self.answer(Answer::Response(head, body));
    }

    /// Answers with a status of our own.
    pub(crate) fn refuse(&mut self, status: StatusCode) {
        self.answer(Answer::Status(status));
    }

    fn answer(&mut self, answer: Answer) {
        if !std::mem::replace(&mut self.is_answered, true) {
            self.shared.lock().answer = Some(answer);
            self.shared.wake.wake();
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.refuse(StatusCode::SERVICE_UNAVAILABLE);
    }
}

/// The transport's side of a [`Sink`].
pub(crate) struct Reader(Arc<Shared>);

enum Phase {
    Waiting,
    /// A server's body, of which this many octets are to come if that is known.
    Body(PipeReader, Option<u64>),
    Fixed(Exchange),
}

struct OriginExchange {
    shared: Arc<Shared>,
    method: Method,
    waker: Waker,
    phase: Phase,
    task: AbortHandle,
}

impl ResponseSource for OriginExchange {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        let Some(answer) = self.shared.lock().answer.take() else { return Poll::Pending };
        match answer {
            Answer::Response(head, reader) => {
                self.phase = Phase::Body(reader, head.body_length);
                Poll::Ready(head)
            }
            Answer::Status(status) => {
                let mut headers = HeaderMap::new();
                if status == StatusCode::METHOD_NOT_ALLOWED {
                    // RFC 9110, section 15.5.6, wants it; what else is allowed the origin knows.
                    headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS"));
                }
                let mut exchange = Exchange::error(&self.method, status, headers);
                let head = exchange.poll_head();
                self.phase = Phase::Fixed(exchange);
                head
            }
        }
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        match &mut self.phase {
            Phase::Waiting => Poll::Pending,
            Phase::Fixed(exchange) => exchange.poll_body(max),
            Phase::Body(_, Some(0)) => Poll::Ready(None),
            Phase::Body(reader, left) => {
                let chunk = ready!(reader.poll_chunk(max, &self.waker));
                if let (Some(left), Some(Ok(chunk))) = (left, &chunk) {
                    // The task sees to it that no more comes.
                    *left = left.saturating_sub(chunk.len() as u64);
                }
                Poll::Ready(chunk)
            }
        }
    }

    fn remaining(&self) -> Option<u64> {
        match &self.phase {
            Phase::Waiting => None,
            Phase::Body(_, left) => *left,
            Phase::Fixed(exchange) => exchange.remaining(),
        }
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        match &mut self.phase {
            Phase::Body(reader, _) => reader.take_trailers(),
            Phase::Waiting | Phase::Fixed(_) => None,
        }
    }

    fn upstream(&self) -> Option<Upstream> {
        self.shared.lock().upstream.clone()
    }
}

impl Drop for OriginExchange {
    /// The client is gone; a task whose response was taken whole ends by itself, and keeps its connection.
    fn drop(&mut self) {
        let is_over = match &self.phase {
            Phase::Waiting => false,
            Phase::Body(reader, left) => *left == Some(0) || reader.is_finished(),
            Phase::Fixed(_) => true,
        };
        if !is_over {
            self.task.abort();
        }
    }
}
