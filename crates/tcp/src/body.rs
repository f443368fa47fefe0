//! A response's body: from an exchange to hyper, a chunk at a time and without a copy.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use expressway_netio::trace::Hop;
use expressway_web::{BodyError, Exchange, Protocol};
use http_body::{Body, Frame, SizeHint};

use crate::alarm::Alarm;
use crate::transaction::Transaction;
use crate::turn::poll_slice;
use crate::watch::Watch;

/// Octets of a chunk over HTTP/1.
const CHUNK: usize = 64 << 10;

/// Over HTTP/2: a frame. hyper asks for it before it knows whether the client takes it, so that each stream that the
/// client leaves alone holds one.
const FRAME: usize = 16 << 10;

/// What a response may have of the connection's window when others hold all of it, with nothing of its own under way.
const LEAST: usize = 2 << 10;

/// A response's body.
pub(crate) struct ResponseBody {
    exchange: Exchange,
    alarm: Arc<Alarm>,
    transaction: Box<Transaction>,
    length: Option<u64>,
    chunk: usize,
    /// It is in line for room.
    starves: bool,
    is_over: bool,
    /// What was handed over and is still there.
    under_way: Arc<()>,
}

/// A chunk on its way. Dropped, it makes room for others.
struct Chunk {
    octets: Bytes,
    watch: Arc<Watch>,
    _under_way: Arc<()>,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.octets
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // It counts until its octets are gone.
        self.octets = Bytes::new();
        self.watch.feed();
    }
}

impl ResponseBody {
    /// Of an exchange whose head was taken; `length` is what the body will have, if that is known.
    pub(crate) fn new(
        exchange: Exchange,
        alarm: Arc<Alarm>,
        mut transaction: Box<Transaction>,
        length: Option<u64>,
    ) -> Self {
        let chunk = if transaction.head.protocol == Protocol::H2 { FRAME } else { CHUNK };
        let is_over = length == Some(0);
        if is_over {
            transaction.complete();
        }
        Self { exchange, alarm, transaction, length, chunk, starves: false, is_over, under_way: Arc::new(()) }
    }

    /// Octets that may be fetched now; none until the client has taken some.
    fn room(&self) -> usize {
        let least = if Arc::strong_count(&self.under_way) == 1 { LEAST } else { 0 };
        self.transaction.watch.account.room().max(least).min(self.chunk)
    }

    fn poll_chunk(&mut self, context: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let room = self.room();
        if room == 0 {
            self.exchange.rest();
            self.transaction.watch.turns(self.transaction.id, false);
            self.starves = true;
            self.transaction.watch.starve(context.waker());
            return Poll::Pending;
        }
        self.alarm.set(context.waker());
        match self.exchange.poll_body(room) {
            Poll::Pending => {
                self.transaction.watch.turns(self.transaction.id, true);
                Poll::Pending
            }
            Poll::Ready(Some(Ok(octets))) => Poll::Ready(self.pass_on(octets).map(Ok)),
            Poll::Ready(Some(Err(error))) => self.fail(error),
            Poll::Ready(None) => {
                if self.length.is_some_and(|length| length != self.transaction.sent) {
                    return self.fail(BodyError::Changed);
                }
                self.finish();
                Poll::Ready(self.exchange.take_trailers().map(|trailers| Ok(Frame::trailers(trailers))))
            }
        }
    }

    fn pass_on(&mut self, octets: Bytes) -> Option<Frame<Bytes>> {
        let watch = Arc::clone(&self.transaction.watch);
        watch.gave(self.transaction.id, octets.len());
        if self.transaction.sent == 0 {
            self.transaction.trace(Hop::Body { stream: self.transaction.id });
        }
        self.transaction.sent += octets.len() as u64;
        if self.length.is_some_and(|length| length <= self.transaction.sent)
            || self.length.is_none() && self.exchange.remaining() == Some(0)
        {
            self.finish();
        }
        let chunk = Chunk { octets, watch, _under_way: Arc::clone(&self.under_way) };
        Some(Frame::data(Bytes::from_owner(chunk)))
    }

    fn finish(&mut self) {
        self.is_over = true;
        self.transaction.complete();
    }

    fn fail(&mut self, error: BodyError) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.is_over = true;
        tracing::debug!(%error, "a response body failed");
        Poll::Ready(Some(Err(error)))
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        self.transaction.cache = self.exchange.cache();
        self.transaction.upstream = self.exchange.upstream();
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        ready!(poll_slice(context));
        let starved = std::mem::take(&mut self.starves);
        let poll = self.poll_chunk(context);
        if starved && !self.starves {
            // The next in line may have what is left.
            self.transaction.watch.feed();
        }
        poll
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }

    fn size_hint(&self) -> SizeHint {
        match self.length {
            Some(length) => SizeHint::with_exact(length - self.transaction.sent.min(length)),
            None => SizeHint::default(),
        }
    }
}
