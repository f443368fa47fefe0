//! A request's body on its way to the exchange.
//!
//! What is read and not taken is bounded for each request and for the connection; the rest waits with TCP, or in HTTP/2's
//! window, and so with the client.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::ready;
use std::time::{Duration, Instant};

use bytes::Bytes;
use expressway_web::patience::Pace;
use expressway_web::{BodyError, PipeWriter, RequestBody, pipe};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::time::timeout_at;

use crate::setup::Limits;
use crate::stats::Refusal;
use crate::turn::{in_turns, poll_slice};
use crate::watch::Watch;

/// Octets of a body that wait to be taken.
const WINDOW: usize = 64 << 10;

/// Smaller pieces are copied: each would keep all that was read with it.
const SMALL: usize = 4 << 10;

/// Part of what a connection may hold that may be bodies of requests.
const SHARE: usize = 4;

/// How long a body waits that would be beyond that, before it is asked again.
const WAIT: Duration = Duration::from_millis(20);

/// Octets of a body that nobody wants that are read, so that the connection can be used on.
const DISCARDED: u64 = 256 << 10;

/// A body that is coming, and where it is read.
pub(crate) fn new(length: Option<u64>) -> (PipeWriter, RequestBody) {
    let (writer, reader) = pipe(WINDOW);
    (writer, RequestBody::new(reader, length))
}

/// A body that is read: counted from when it is handed over, before its task first runs, until that has ended in whatever way.
struct Reading {
    watch: Arc<Watch>,
    is_whole: bool,
}

impl Reading {
    fn new(watch: &Arc<Watch>) -> Self {
        watch.begin_upload();
        Self { watch: Arc::clone(watch), is_whole: false }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.watch.end_upload(self.is_whole);
    }
}

/// Reads a body beside what answers the request.
pub(crate) fn start(watch: &Watch, reading: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(in_turns(Arc::clone(&watch.worker.stats), reading));
}

/// A body of which too little has come for too long.
struct TooSlow;

/// A body on its way, and how fast it comes.
struct Coming {
    body: Incoming,
    watch: Arc<Watch>,
    pace: Pace,
    received: u64,
}

impl Coming {
    fn new(body: Incoming, watch: &Arc<Watch>) -> Self {
        Self { body, watch: Arc::clone(watch), pace: Pace::default(), received: 0 }
    }

    /// Something else than the client holds it up, which is not counted against the client.
    fn hold_up(&mut self) {
        self.pace.forget();
    }

    /// What comes next. While it comes, `has_unread` says whether what came before was not read yet: the client owes nothing then.
    async fn next(
        &mut self,
        has_unread: impl Fn() -> bool,
    ) -> Result<Option<Result<Frame<Bytes>, hyper::Error>>, TooSlow> {
        let Limits { request_timeout, request_rate, .. } = self.watch.limits;
        loop {
            let now = Instant::now();
            let owed = self.body.size_hint().upper().unwrap_or(u64::MAX);
            let since = self.pace.slow_since(now, self.received, owed, request_rate).unwrap_or(now);
            let deadline = since + request_timeout;
            if now < deadline
                && let Ok(next) = timeout_at(deadline.into(), next(&mut self.body)).await
            {
                if has_unread() {
                    self.hold_up();
                }
                if let Some(Ok(frame)) = &next {
                    let octets = frame.data_ref().map_or(0, Bytes::len);
                    self.watch.took(octets);
                    self.watch.carried(2 * octets);
                    self.received += octets as u64;
                }
                return Ok(next);
            }
            if !has_unread() {
                return Err(TooSlow);
            }
            self.hold_up();
        }
    }
}

/// Reads all of `body` into `writer`.
pub(crate) fn pass_on(
    body: Incoming,
    writer: PipeWriter,
    watch: Arc<Watch>,
    id: u64,
) -> impl Future<Output = ()> {
    let reading = Reading::new(&watch);
    read_into(body, writer, reading, watch, id)
}

async fn read_into(body: Incoming, mut writer: PipeWriter, mut reading: Reading, watch: Arc<Watch>, id: u64) {
    let mut coming = Coming::new(body, &watch);
    let mut trailers = None;
    loop {
        let room = poll_fn(|context| {
            let room = writer.poll_room(context.waker());
            if room.is_pending() {
                coming.hold_up();
            }
            room
        });
        if room.await.is_none() {
            reading.is_whole = discard(coming).await;
            return;
        }
        while watch.account.requests() > watch.account.limit() / SHARE && writer.held() > 0 {
            coming.hold_up();
            tokio::time::sleep(WAIT).await;
        }
        match coming.next(|| writer.held() > 0).await {
            Err(TooSlow) => {
                watch.end(id, Refusal::RequestTimeout);
                return writer.fail(BodyError::Stopped);
            }
            Ok(None) => {
                reading.is_whole = true;
                return writer.finish(trailers);
            }
            Ok(Some(Err(error))) => {
                tracing::debug!(%error, "a request body ended early");
                return writer.fail(BodyError::Stopped);
            }
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => {
                    let data = if data.len() < SMALL { Bytes::copy_from_slice(&data) } else { data };
                    writer.write(watch.account.own_request(data));
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
    }
}

/// Reads what comes of a body that nobody wants, within limits. True if it was all.
async fn discard(mut coming: Coming) -> bool {
    let most = coming.received + DISCARDED;
    while coming.received < most {
        match coming.next(|| false).await {
            Ok(None) => return true,
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(_))) | Err(TooSlow) => return false,
        }
    }
    false
}

/// As [`discard`], for a body that nobody wanted from the beginning.
pub(crate) fn refuse(body: Incoming, watch: Arc<Watch>) -> impl Future<Output = ()> {
    let reading = Reading::new(&watch);
    discard_all(body, reading, watch)
}

async fn discard_all(body: Incoming, mut reading: Reading, watch: Arc<Watch>) {
    reading.is_whole = discard(Coming::new(body, &watch)).await;
}

async fn next(body: &mut Incoming) -> Option<Result<Frame<Bytes>, hyper::Error>> {
    poll_fn(|context| {
        ready!(poll_slice(context));
        Pin::new(&mut *body).poll_frame(context)
    })
    .await
}
