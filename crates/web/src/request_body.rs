//! The body of a request, as a handler reads it.

use std::task::{Poll, Waker};

use bytes::Bytes;
use http::HeaderMap;

use crate::{BodyError, PipeReader};

/// A request's body. Who does not want it drops it: the transport then reads what comes and discards it.
#[derive(Debug, Default)]
pub struct RequestBody {
    reader: Option<PipeReader>,
    length: Option<u64>,
}

impl RequestBody {
    /// Of a request that ended with its head.
    pub fn empty() -> Self {
        Self { reader: None, length: Some(0) }
    }

    /// What comes out of `reader`; `length` is what `content-length` says.
    pub fn new(reader: PipeReader, length: Option<u64>) -> Self {
        Self { reader: Some(reader), length }
    }

    /// The request ended with its head.
    pub fn is_empty(&self) -> bool {
        self.reader.is_none()
    }

    /// Octets of all of it, if the client said how many.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// The next chunk; `None` after the last. An error is final: the client gave up or was cut off.
    pub fn poll_chunk(&mut self, max: usize, waker: &Waker) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.reader.as_mut().map_or(Poll::Ready(None), |reader| reader.poll_chunk(max, waker))
    }

    /// The client owes the next of it.
    pub fn is_waiting(&self) -> bool {
        self.reader.as_ref().is_some_and(PipeReader::is_waiting)
    }

    /// The trailers, once, after the last chunk.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.reader.as_mut()?.take_trailers()
    }
}
