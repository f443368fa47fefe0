//! A bounded pipe for a body between two threads: what a transport received for an origin, or what an origin
//! sent for a transport.
//!
//! Each end is polled with the [`Waker`] of its user, which may be a worker ([`Wake::waker`]) or a task of an async
//! runtime. The amount written but not yet read is bounded, so the faster end waits for the slower one, and so does its
//! peer.
//!
//! [`Wake::waker`]: crate::Wake::waker

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;

use crate::BodyError;

/// What a chunk counts in addition to its octets, so that a body in chunks of one octet is bounded too.
const CHUNK: usize = 64;

/// A pipe that holds at most `limit` octets (a chunk may exceed it by itself, and counts 64 more).
pub fn pipe(limit: usize) -> (PipeWriter, PipeReader) {
    let shared = Arc::new(Shared { limit: limit.max(1), state: Mutex::default() });
    (PipeWriter { shared: Arc::clone(&shared), is_ended: false }, PipeReader { shared })
}

#[derive(Debug)]
struct Shared {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    chunks: VecDeque<Bytes>,
    held: usize,
    end: Option<Result<(), BodyError>>,
    trailers: Option<HeaderMap>,
    is_reader_gone: bool,
    /// The reader has asked for what was not there.
    is_asked: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Shared {
    /// Nothing in it unwinds, so a poisoned state is still consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self, state: &State) -> usize {
        self.limit.saturating_sub(state.held)
    }

    fn is_half_free(&self, state: &State) -> bool {
        self.room(state) * 2 >= self.limit
    }
}

/// Wakes who waits, outside of the lock.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The end that a body goes into. Dropped before [`Self::finish`], it has the reader see
/// [`BodyError::Stopped`].
#[derive(Debug)]
pub struct PipeWriter {
    shared: Arc<Shared>,
    is_ended: bool,
}

impl PipeWriter {
    /// Octets that may be written now, above 0; `None` when the reader is gone, and nothing of the body is wanted
    /// any more. Pending until there is room, which wakes `waker`.
    pub fn poll_room(&mut self, waker: &Waker) -> Poll<Option<usize>> {
        let mut state = self.shared.lock();
        if state.is_reader_gone {
            return Poll::Ready(None);
        }
        match self.shared.room(&state) {
            0 => {
                state.writer = Some(waker.clone());
                Poll::Pending
            }
            room => Poll::Ready(Some(room)),
        }
    }

    /// Whether the body is wanted: true once its reader has asked for more than there was, false when that is gone.
    /// Pending until then, which wakes `waker`.
    pub fn poll_asked(&mut self, waker: &Waker) -> Poll<bool> {
        let mut state = self.shared.lock();
        if state.is_reader_gone {
            Poll::Ready(false)
        } else if state.is_asked {
            Poll::Ready(true)
        } else {
            state.writer = Some(waker.clone());
            Poll::Pending
        }
    }

    /// Octets that are written and not read yet.
    pub fn held(&self) -> usize {
        self.shared.lock().held
    }

    /// Wakes `waker` when something has been read and half of the pipe is free, or the reader is gone: for a writer that
    /// waits for more than room in here, and would ask again and again if room alone woke it. At once if all is read.
    pub fn wake_when_read(&mut self, waker: &Waker) {
        let mut state = self.shared.lock();
        if state.is_reader_gone || state.chunks.is_empty() {
            drop(state);
            waker.wake_by_ref();
        } else {
            state.writer = Some(waker.clone());
        }
    }

    /// The reader is gone: nothing that is written will be read.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().is_reader_gone
    }

    /// Writes a chunk. Who writes keeps to [`Self::poll_room`]; nothing is dropped if not.
    pub fn write(&mut self, chunk: Bytes) {
        if chunk.is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        if state.is_reader_gone || state.end.is_some() {
            return;
        }
        state.held += chunk.len() + CHUNK;
        state.chunks.push_back(chunk);
        let reader = state.reader.take();
        drop(state);
        wake(reader);
    }

    /// The body is complete.
    pub fn finish(mut self, trailers: Option<HeaderMap>) {
        self.end(Ok(()), trailers);
    }

    /// The body is incomplete, and stays so.
    pub fn fail(mut self, error: BodyError) {
        self.end(Err(error), None);
    }

    fn end(&mut self, end: Result<(), BodyError>, trailers: Option<HeaderMap>) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        let mut state = self.shared.lock();
        state.end = Some(end);
        state.trailers = trailers;
        let reader = state.reader.take();
        drop(state);
        wake(reader);
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.end(Err(BodyError::Stopped), None);
    }
}

/// The end that a body comes out of. Dropped, it has the writer stop.
#[derive(Debug)]
pub struct PipeReader {
    shared: Arc<Shared>,
}

impl PipeReader {
    /// The next chunk, of 1 to `max` octets; `None` after the last. An error is final, and comes after all that was
    /// written before it. Pending until there is something, which wakes `waker`.
    pub fn poll_chunk(&mut self, max: usize, waker: &Waker) -> Poll<Option<Result<Bytes, BodyError>>> {
        debug_assert!(max > 0, "a chunk of no octets cannot be told from no progress");
        let mut state = self.shared.lock();
        let Some(front) = state.chunks.front_mut() else {
            return match &state.end {
                Some(Ok(())) => Poll::Ready(None),
                Some(Err(error)) => Poll::Ready(Some(Err(error.clone()))),
                None => {
                    state.reader = Some(waker.clone());
                    let writer = if state.is_asked { None } else { state.writer.take() };
                    state.is_asked = true;
                    drop(state);
                    wake(writer);
                    Poll::Pending
                }
            };
        };
        let chunk = if front.len() > max {
            let chunk = front.split_to(max);
            state.held -= max;
            chunk
        } else {
            let chunk = state.chunks.pop_front().unwrap_or_default();
            state.held -= chunk.len() + CHUNK;
            chunk
        };
        // A writer woken for every few octets would give its peer as many small credits.
        let writer = if self.shared.is_half_free(&state) { state.writer.take() } else { None };
        drop(state);
        wake(writer);
        Poll::Ready(Some(Ok(chunk)))
    }

    /// There is nothing to read, and no end: the writer owes the next.
    pub fn is_waiting(&self) -> bool {
        let state = self.shared.lock();
        state.chunks.is_empty() && state.end.is_none()
    }

    /// Everything was written and read, and the body is complete.
    pub fn is_finished(&self) -> bool {
        let state = self.shared.lock();
        state.chunks.is_empty() && state.end == Some(Ok(()))
    }

    /// The trailers, once, after the last chunk.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.shared.lock().trailers.take()
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_reader_gone = true;
        let chunks = std::mem::take(&mut state.chunks);
        state.held = 0;
        let writer = state.writer.take();
        drop(state);
        drop(chunks);
        wake(writer);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use http::HeaderValue;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn waker() -> (Arc<Woken>, Waker) {
        let woken = Arc::new(Woken::default());
        (Arc::clone(&woken), Waker::from(woken))
    }

    fn chunk(poll: Poll<Option<Result<Bytes, BodyError>>>) -> Vec<u8> {
        match poll {
            Poll::Ready(Some(Ok(chunk))) => chunk.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_written_is_read_in_order_with_its_trailers() {
        let ((woken, waker), (mut writer, mut reader)) = (waker(), pipe(1000));
        assert!(reader.poll_chunk(9, &waker).is_pending() && reader.is_waiting());
        writer.write(Bytes::from_static(b"ab"));
        assert!(!reader.is_waiting());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        writer.write(Bytes::from_static(b"cde"));
        let trailers = HeaderMap::from_iter([("x".parse().unwrap(), HeaderValue::from_static("y"))]);
        writer.finish(Some(trailers));
        assert_eq!(chunk(reader.poll_chunk(9, &waker)), b"ab");
        assert_eq!(chunk(reader.poll_chunk(2, &waker)), b"cd");
        assert!(!reader.is_finished());
        assert_eq!(chunk(reader.poll_chunk(2, &waker)), b"e");
        assert!(reader.is_finished());
        assert_eq!(reader.poll_chunk(2, &waker), Poll::Ready(None));
        assert_eq!(reader.take_trailers().unwrap()["x"], "y");
    }

    #[test]
    fn a_full_pipe_holds_up_its_writer_until_half_of_it_is_free() {
        let ((woken, waker), (mut writer, mut reader)) = (waker(), pipe(256));
        assert_eq!(writer.poll_room(&waker), Poll::Ready(Some(256)));
        writer.write(vec![0; 256].into());
        assert!(writer.poll_room(&waker).is_pending());
        chunk(reader.poll_chunk(100, &waker));
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        chunk(reader.poll_chunk(100, &waker));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(writer.poll_room(&waker), Poll::Ready(Some(256 - 56 - CHUNK)));
    }

    #[test]
    fn a_writer_that_waits_for_its_reader_is_woken_by_a_read_and_not_by_room() {
        let ((woken, waker), (mut writer, mut reader)) = (waker(), pipe(1000));
        writer.write(vec![0; 20].into());
        writer.wake_when_read(&waker);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        chunk(reader.poll_chunk(10, &waker));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        chunk(reader.poll_chunk(10, &waker));
        writer.wake_when_read(&waker);
        assert_eq!(woken.0.load(Ordering::Relaxed), 2, "all is read: no other read comes");
    }

    #[test]
    fn a_writer_knows_when_it_is_first_asked_for_something() {
        let ((woken, waker), (mut writer, mut reader)) = (waker(), pipe(1000));
        assert!(writer.poll_asked(&waker).is_pending());
        assert!(reader.poll_chunk(10, &waker).is_pending());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(writer.poll_asked(&waker), Poll::Ready(true));
        let (mut writer, reader) = pipe(1000);
        assert!(writer.poll_asked(&waker).is_pending());
        drop(reader);
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
        assert_eq!(writer.poll_asked(&waker), Poll::Ready(false));
    }

    #[test]
    fn chunks_of_one_octet_are_bounded_too() {
        let ((_, waker), (mut writer, _reader)) = (waker(), pipe(64 << 10));
        let mut written = 0;
        while writer.poll_room(&waker).is_ready() {
            writer.write(Bytes::from_static(b"x"));
            written += 1;
        }
        assert_eq!(written, (64usize << 10).div_ceil(CHUNK + 1));
    }

    #[test]
    fn a_writer_that_goes_away_is_no_end() {
        let ((_, waker), (mut writer, mut reader)) = (waker(), pipe(10));
        writer.write(Bytes::from_static(b"ab"));
        drop(writer);
        assert_eq!(chunk(reader.poll_chunk(9, &waker)), b"ab");
        assert_eq!(reader.poll_chunk(9, &waker), Poll::Ready(Some(Err(BodyError::Stopped))));
        assert!(!reader.is_finished());
    }

    #[test]
    fn a_reader_that_goes_away_wakes_the_writer_and_frees_what_is_held() {
        let ((woken, waker), (mut writer, reader)) = (waker(), pipe(1));
        let body = Bytes::from(vec![0; 100]);
        writer.write(body.clone());
        assert!(writer.poll_room(&waker).is_pending());
        drop(reader);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(writer.poll_room(&waker), Poll::Ready(None));
        writer.write(body.clone());
        assert!(writer.is_closed() && body.is_unique());
    }
}
