//! Answers that are sent piece by piece, for as long as the client reads.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, header};
use http_body_util::Either;
use hyper::body::Frame;
use tokio::time::Sleep;

use super::service::Body;

/// How often a feed that had nothing is asked again.
const PAUSE: Duration = Duration::from_millis(20);

/// Where the pieces of an answer come from. It is dropped when the client goes, or takes nothing for the time in
/// [`Limits::write_timeout`](super::Limits::write_timeout). Nothing is asked for while the client does not read.
pub trait Feed: Send + 'static {
    /// What the pieces are together.
    fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    /// The next piece. Must not block.
    fn poll(&mut self) -> Piece;
}

/// What a feed has.
#[derive(Debug)]
pub enum Piece {
    /// This.
    Data(Vec<u8>),
    /// Nothing at the moment.
    Nothing,
    /// Nothing any more.
    End,
}

/// The body of an answer.
pub(super) struct Feeding {
    feed: Box<dyn Feed>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Feeding {
    pub(super) fn new(feed: Box<dyn Feed>) -> Self {
        Self { feed, pause: None }
    }

    /// The answer.
    pub(super) fn into_response(self) -> Response<Body> {
        let content_type = self.feed.content_type();
        let mut response = Response::new(Either::Right(self));
        let value = header::HeaderValue::from_static;
        response.headers_mut().insert(header::CONTENT_TYPE, value(content_type));
        response.headers_mut().insert(header::CACHE_CONTROL, value("no-store"));
        response
    }
}

impl hyper::body::Body for Feeding {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                if pause.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                self.pause = None;
            }
            match self.feed.poll() {
                Piece::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data.into())))),
                Piece::End => return Poll::Ready(None),
                Piece::Nothing => self.pause = Some(Box::pin(tokio::time::sleep(PAUSE))),
            }
        }
    }
}
