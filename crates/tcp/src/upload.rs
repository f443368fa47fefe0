//! A request's body on its way to the exchange.
//!
//! What is read and not taken is bounded for each request and for the connection; the rest waits with TCP, or in HTTP/2's
//! window, and so with the client.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::ready;
use std::time::Duration;

use bytes::Bytes;
use expressway_web::{BodyError, PipeWriter, RequestBody, pipe};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::time::timeout;

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
const DISCARDED: usize = 256 << 10;

/// A body that is coming, and where it is read.
pub(crate) fn new(length: Option<u64>) -> (PipeWriter, RequestBody) {
    let (writer, reader) = pipe(WINDOW);
    (writer, RequestBody::new(reader, length))
}

/// Says that the body is not read any more, however that comes.
struct Reading {
    watch: Arc<Watch>,
    is_whole: bool,
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

/// Reads all of `body` into `writer`.
pub(crate) async fn pass_on(mut body: Incoming, mut writer: PipeWriter, watch: Arc<Watch>, id: u64) {
    watch.begin_upload();
    let mut reading = Reading { watch: Arc::clone(&watch), is_whole: false };
    let mut trailers = None;
    loop {
        let room = poll_fn(|context| writer.poll_room(context.waker())).await;
        if room.is_none() {
            reading.is_whole = discard(body, &watch).await;
            return;
        }
        while watch.account.requests() > watch.account.limit() / SHARE && writer.held() > 0 {
            tokio::time::sleep(WAIT).await;
        }
        match timeout(watch.limits.request_timeout, next(&mut body)).await {
            Err(_) => {
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
                    watch.carried(2 * data.len());
                    let data = if data.len() < SMALL { Bytes::copy_from_slice(&data) } else { data };
                    writer.write(watch.account.own_request(data));
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            },
        }
    }
}

/// Reads what comes of a body that nobody wants, within limits. True if it was all.
pub(crate) async fn discard(mut body: Incoming, watch: &Watch) -> bool {
    let mut discarded = 0;
    while discarded < DISCARDED {
        match timeout(watch.limits.request_timeout, next(&mut body)).await {
            Ok(None) => return true,
            Ok(Some(Ok(frame))) => {
                let octets = frame.data_ref().map_or(0, Bytes::len);
                watch.carried(2 * octets);
                discarded += octets;
            }
            Ok(Some(Err(_))) | Err(_) => return false,
        }
    }
    false
}

/// As [`discard`], for a body that nobody wanted from the beginning.
pub(crate) async fn refuse(body: Incoming, watch: Arc<Watch>) {
    watch.begin_upload();
    let mut reading = Reading { watch: Arc::clone(&watch), is_whole: false };
    reading.is_whole = discard(body, &watch).await;
}

async fn next(body: &mut Incoming) -> Option<Result<Frame<Bytes>, hyper::Error>> {
    poll_fn(|context| {
        ready!(poll_slice(context));
        Pin::new(&mut *body).poll_frame(context)
    })
    .await
}
