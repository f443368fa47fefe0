//! A request's body on its way to an origin.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use expressway_web::RequestBody;
use http::{HeaderMap, HeaderName};
use http_body::{Body, Frame, SizeHint};

use crate::fields;
use crate::forwarded::remove_all_spellings;

/// Octets that are taken at a time.
const CHUNK: usize = 64 << 10;

/// Why a request's body cannot be sent to its end.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum UploadError {
    /// The client gave up, or was cut off.
    #[error("the client did not send its whole request")]
    Client,
    /// The client sent more or less than it announced.
    #[error("the request's body is not as long as announced")]
    Length,
    /// It is not wanted any more, or belongs to another attempt now.
    #[error("the request was abandoned")]
    Stopped,
}

/// The body, of which attempts to send the request get [`UploadBody`]s. The latest attempt has it.
#[derive(Debug, Clone)]
pub(crate) struct Upload(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    body: Option<RequestBody>,
    /// Taken from the client, and not given to an attempt.
    front: Option<Bytes>,
    length: Option<u64>,
    given: u64,
    /// Some of it was given to an attempt, so that no other can have it.
    is_touched: bool,
    /// All of it was given.
    is_ended: bool,
    has_failed: bool,
    attempt: u64,
    /// A field that its trailers may not have.
    ours: Option<HeaderName>,
    /// When it last moved, or was last seen to wait for the client.
    moved: Instant,
    /// It was seen to wait, and has not moved since.
    has_waited: bool,
}

impl State {
    /// The next chunk from the client; `None` after the last.
    fn poll_next(&mut self, context: &Context<'_>) -> Poll<Option<Result<Bytes, UploadError>>> {
        if let Some(front) = self.front.take() {
            return Poll::Ready(Some(Ok(front)));
        }
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        match body.poll_chunk(CHUNK, context.waker()) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(chunk))) => Poll::Ready(Some(Ok(chunk))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Err(_))) => {
                self.has_failed = true;
                Poll::Ready(Some(Err(UploadError::Client)))
            }
        }
    }
}

impl Upload {
    pub(crate) fn new(body: RequestBody) -> Self {
        Self::without(body, None)
    }

    /// A body in whose trailers no field of that name is passed on, however it is spelled: only we may say that.
    pub(crate) fn without(body: RequestBody, ours: Option<HeaderName>) -> Self {
        let (length, is_empty) = (body.length(), body.is_empty());
        Self(Arc::new(Mutex::new(State {
            body: (!is_empty).then_some(body),
            front: None,
            length,
            given: 0,
            is_touched: false,
            is_ended: is_empty,
            has_failed: false,
            attempt: 0,
            moved: Instant::now(),
            has_waited: false,
            ours,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the first of it is there, or its end: a request whose end came behind its head is one without a
    /// body.
    pub(crate) async fn look(&self) {
        poll_fn(|context| {
            let mut state = self.lock();
            if state.front.is_some() || state.is_ended || state.has_failed {
                return Poll::Ready(());
            }
            match state.poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(chunk))) => state.front = Some(chunk),
                Poll::Ready(Some(Err(_))) => {}
                Poll::Ready(None) if state.length.unwrap_or(0) > 0 => state.has_failed = true,
                // Trailers of nothing are dropped with it.
                Poll::Ready(None) => (state.is_ended, state.body) = (true, None),
            }
            Poll::Ready(())
        })
        .await;
    }

    /// There is none, or nothing is left of it.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.lock();
        state.is_ended && state.given == 0
    }

    /// Octets of all of it, if the client said how many.
    pub(crate) fn length(&self) -> Option<u64> {
        self.lock().length
    }

    /// All of it can be sent again.
    pub(crate) fn is_untouched(&self) -> bool {
        !self.lock().is_touched
    }

    /// All of it was given away. Of a body of known length the end behind it may never be asked for.
    pub(crate) fn is_ended(&self) -> bool {
        let state = self.lock();
        state.is_ended || state.length == Some(state.given)
    }

    /// The client broke it off.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().has_failed
    }

    /// Since when the origin has been holding it up, or has had all of it; now if that is the client.
    pub(crate) fn quiet_since(&self) -> Instant {
        let mut state = self.lock();
        let waits = state.front.is_none() && state.body.as_ref().is_some_and(RequestBody::is_waiting);
        // What has come since it was seen to wait may have come just now.
        if waits || state.has_waited {
            (state.moved, state.has_waited) = (Instant::now(), waits);
        }
        state.moved
    }

    /// For a new attempt; the last one's ends with an error.
    pub(crate) fn begin(&self) -> UploadBody {
        let mut state = self.lock();
        state.attempt += 1;
        state.moved = Instant::now();
        let (attempt, is_empty) = (state.attempt, state.is_ended && state.given == 0);
        UploadBody { upload: self.clone(), attempt, is_empty, length: state.length }
    }

    /// Nobody wants the rest: an attempt's body ends with an error, and the client is told so.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.attempt += 1;
        let body = state.body.take();
        drop(state);
        drop(body);
    }
}

/// What an attempt sends.
#[derive(Debug)]
pub(crate) struct UploadBody {
    upload: Upload,
    attempt: u64,
    is_empty: bool,
    length: Option<u64>,
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let mut state = self.upload.lock();
        if self.is_empty || state.is_ended && state.attempt == self.attempt {
            return Poll::Ready(None);
        }
        if state.attempt != self.attempt {
            return Poll::Ready(Some(Err(UploadError::Stopped)));
        }
        let next = match state.poll_next(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(next) => next,
        };
        (state.moved, state.has_waited) = (Instant::now(), false);
        state.is_touched = true;
        match next {
            Some(Ok(chunk)) => {
                state.given += chunk.len() as u64;
                if state.length.is_some_and(|length| state.given > length) {
                    state.has_failed = true;
                    return Poll::Ready(Some(Err(UploadError::Length)));
                }
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None if state.length.is_some_and(|length| state.given < length) => {
                state.has_failed = true;
                Poll::Ready(Some(Err(UploadError::Length)))
            }
            None => {
                state.is_ended = true;
                let mut trailers: Option<HeaderMap> =
                    state.body.as_mut().and_then(RequestBody::take_trailers);
                if let (Some(trailers), Some(ours)) = (&mut trailers, &state.ours) {
                    remove_all_spellings(trailers, ours);
                }
                match trailers.and_then(fields::strip_trailers) {
                    Some(trailers) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                    None => Poll::Ready(None),
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty
    }

    fn size_hint(&self) -> SizeHint {
        match (self.is_empty, self.length) {
            (true, _) => SizeHint::with_exact(0),
            (false, Some(length)) => SizeHint::with_exact(length),
            (false, None) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use expressway_web::{BodyError, pipe};

    use super::*;

    fn poll(body: &mut UploadBody) -> Poll<Option<Result<Bytes, String>>> {
        let polled = Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()));
        polled.map(|frame| {
            frame.map(|frame| frame.map(|f| f.into_data().unwrap_or_default()).map_err(|e| e.to_string()))
        })
    }

    #[test]
    fn an_attempt_that_took_nothing_leaves_all_to_the_next() {
        let (mut writer, reader) = pipe(1000);
        let upload = Upload::new(RequestBody::new(reader, None));
        let mut first = upload.begin();
        assert!(poll(&mut first).is_pending());
        assert!(upload.is_untouched());
        writer.write(Bytes::from_static(b"ab"));
        let mut second = upload.begin();
        assert!(matches!(poll(&mut first), Poll::Ready(Some(Err(_)))), "the old one gets nothing any more");
        assert_eq!(poll(&mut second), Poll::Ready(Some(Ok(Bytes::from_static(b"ab")))));
        assert!(!upload.is_untouched());
        writer.finish(None);
        assert_eq!(poll(&mut second), Poll::Ready(None));
        assert!(upload.is_ended());
    }

    #[test]
    fn a_length_that_is_wrong_is_an_error() {
        for (length, sent) in [(3, &b"ab"[..]), (1, b"ab")] {
            let (mut writer, reader) = pipe(1000);
            let upload = Upload::new(RequestBody::new(reader, Some(length)));
            writer.write(Bytes::copy_from_slice(sent));
            writer.finish(None);
            let mut body = upload.begin();
            let results: Vec<_> = (0..2).map(|_| poll(&mut body)).collect();
            assert!(
                results.iter().any(|r| matches!(r, Poll::Ready(Some(Err(e))) if e.contains("announced")))
            );
            assert!(upload.has_failed());
        }
    }

    #[test]
    fn a_client_that_breaks_off_is_no_end() {
        let (writer, reader) = pipe(1000);
        let upload = Upload::new(RequestBody::new(reader, None));
        writer.fail(BodyError::Stopped);
        let mut body = upload.begin();
        assert!(matches!(poll(&mut body), Poll::Ready(Some(Err(_)))));
        assert!(upload.has_failed() && !upload.is_ended());
    }

    #[test]
    fn stopping_tells_the_client() {
        let (writer, reader) = pipe(1000);
        let upload = Upload::new(RequestBody::new(reader, None));
        let mut body = upload.begin();
        upload.stop();
        assert!(writer.is_closed());
        assert_eq!(poll(&mut body), Poll::Ready(Some(Err(UploadError::Stopped.to_string()))));
    }
}
