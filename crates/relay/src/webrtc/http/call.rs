//! A request from its body to its answer: the body is read, the request is carried out or passed to the room's
//! worker, and the result is sent.

use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use expressway_web::{BodyError, RequestBody, ResponseHead, ResponseSource, Wake};
use http::StatusCode;

use super::counters::Reason;
use super::offer::Offer;
use super::refusal::{Refusal, head, headers};
use super::restart::Restarting;
use super::{Shared, layer};
use crate::webrtc::table::ReplyReceiver;

/// What is asked.
pub(super) enum Work {
    /// A session.
    Offer(Offer),
    /// ICE of one begins anew, or has more candidates.
    Restart(Restarting),
    /// The layer that one sees: its room and number.
    Layer(usize, u64),
}

/// What waits for a worker.
pub(super) enum Asked {
    /// See [`Work::Offer`]: its answer, and the rest of its URL.
    Offer(super::offer::Asked),
    /// See [`Work::Restart`].
    Restart(super::restart::Asked),
    /// Nothing does.
    Done,
}

/// See above.
pub(super) struct Call {
    shared: Arc<Shared>,
    work: Work,
    /// Octets of its body at most.
    longest: usize,
    waker: Waker,
    wake: Wake,
    state: State,
    answer: Bytes,
}

enum State {
    /// The body comes.
    Reading(RequestBody, Vec<u8>),
    /// The room's worker has yet to answer.
    Asking(ReplyReceiver, Asked),
    /// The answer goes.
    Answered,
}

impl Call {
    pub(super) fn new(
        shared: Arc<Shared>,
        work: Work,
        (body, longest): (RequestBody, usize),
        wake: Wake,
    ) -> Self {
        let state = State::Reading(body, Vec::new());
        Self { shared, work, longest, waker: wake.waker(), wake, state, answer: Bytes::new() }
    }

    /// The body, once all of it is there.
    fn poll_text(&mut self) -> Poll<Result<String, Refusal>> {
        let State::Reading(body, text) = &mut self.state else { return Poll::Pending };
        let refused = |status, what| Poll::Ready(Err(Refusal::new(Reason::Offer, status, what)));
        loop {
            match body.poll_chunk(self.longest + 1, &self.waker) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(chunk))) if text.len() + chunk.len() <= self.longest => {
                    text.extend_from_slice(&chunk);
                }
                Poll::Ready(Some(Ok(_))) => {
                    return refused(StatusCode::PAYLOAD_TOO_LARGE, "the offer is too long");
                }
                Poll::Ready(Some(Err(_))) => {
                    return refused(StatusCode::BAD_REQUEST, "the offer is incomplete");
                }
                Poll::Ready(None) => {
                    return match String::from_utf8(std::mem::take(text)) {
                        Ok(text) => Poll::Ready(Ok(text)),
                        Err(_) => refused(StatusCode::BAD_REQUEST, "the offer is not valid SDP"),
                    };
                }
            }
        }
    }

    /// Does what is asked, as far as this thread can: the rest is for a worker, if there is any.
    fn ask(&self, text: &str) -> Result<Option<(ReplyReceiver, Asked)>, Refusal> {
        Ok(match &self.work {
            Work::Offer(offer) => {
                let (receiver, asked) = offer.ask(&self.shared, text, &self.wake)?;
                Some((receiver, Asked::Offer(asked)))
            }
            Work::Restart(restart) => {
                let asked = restart.ask(&self.shared, text, &self.wake)?;
                asked.map(|(receiver, asked)| (receiver, Asked::Restart(asked)))
            }
            Work::Layer(room, session) => {
                layer::set(&self.shared, (*room, *session), text)?;
                None
            }
        })
    }

    fn finish(&mut self, result: Result<(ResponseHead, Bytes), Refusal>) -> ResponseHead {
        let (head, body) = result.unwrap_or_else(|refusal| {
            self.shared.counters.refuse(refusal.reason);
            refusal.head()
        });
        (self.state, self.answer) = (State::Answered, body);
        head
    }
}

impl ResponseSource for Call {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        if let State::Reading(..) = self.state {
            let text = match self.poll_text() {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(refusal)) => return Poll::Ready(self.finish(Err(refusal))),
                Poll::Ready(Ok(text)) => text,
            };
            match self.ask(&text) {
                Ok(Some((receiver, asked))) => self.state = State::Asking(receiver, asked),
                Ok(None) => {
                    let done = head(StatusCode::NO_CONTENT, headers(), Bytes::new());
                    return Poll::Ready(self.finish(Ok(done)));
                }
                Err(refusal) => return Poll::Ready(self.finish(Err(refusal))),
            }
        }
        let State::Asking(receiver, asked) = &mut self.state else { return Poll::Pending };
        let Some(heard) = receiver.try_recv() else { return Poll::Pending };
        let result = match std::mem::replace(asked, Asked::Done) {
            Asked::Offer(asked) => asked.answer(&self.shared, heard),
            Asked::Restart(asked) => asked.answer(&self.shared, heard),
            Asked::Done => return Poll::Pending,
        };
        Poll::Ready(self.finish(result))
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.answer.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.answer.len().min(max);
        Poll::Ready(Some(Ok(self.answer.split_to(length))))
    }

    fn remaining(&self) -> Option<u64> {
        matches!(self.state, State::Answered).then_some(self.answer.len() as u64)
    }
}
