//! One request's response, polled by the transport.

use std::fmt;
use std::task::{Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderValue};
use http::{HeaderMap, Method, StatusCode};

use crate::compress::{Compression, MAX_WHOLE, Stream, Whole, recode};
use crate::files::FileExchange;
use crate::memory::Account;
use crate::pace::Pace;
use crate::sites::ResponsePolicy;
use crate::{BodyError, ResponseHead, Upstream, date_header};

/// A source of responses other than files: caches and origins.
///
/// The contract is that of the methods of the same names on [`Exchange`].
pub trait ResponseSource: Send {
    /// See [`Exchange::poll_head`].
    fn poll_head(&mut self) -> Poll<ResponseHead>;
    /// See [`Exchange::poll_body`].
    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>>;
    /// See [`Exchange::poll_copy`]. For sources that spare something if they need not lend what they have.
    fn poll_copy(&mut self, max: usize, out: &mut Vec<u8>) -> Poll<Option<Result<(), BodyError>>> {
        self.poll_body(max).map_ok(|chunk| out.extend_from_slice(&chunk))
    }
    /// See [`Exchange::remaining`].
    fn remaining(&self) -> Option<u64>;
    /// See [`Exchange::release`].
    fn release(&mut self) {}
    /// See [`Exchange::take_trailers`].
    fn take_trailers(&mut self) -> Option<HeaderMap> {
        None
    }
    /// See [`Exchange::upstream`].
    fn upstream(&self) -> Option<Upstream> {
        None
    }
    /// See [`Exchange::cache`].
    fn cache(&self) -> &'static str {
        ""
    }
    /// See [`Exchange::charge_to`]. True if the source itself counts what it hands out; otherwise that is done for it.
    fn charge_to(&mut self, _account: &Account) -> bool {
        false
    }
    /// See [`Exchange::rest`].
    fn rest(&mut self) {}
}

/// One request's response in the making. Dropping it abandons whatever it waits for.
pub struct Exchange {
    inner: Inner,
    /// Of the connection that it answers, where chunks of other sources than files count.
    account: Option<Account>,
    /// What its site does to the head.
    policy: Option<Box<ResponsePolicy>>,
    /// What holds its body up.
    pace: Option<Box<Pace>>,
    urgency: Option<u8>,
}

enum Inner {
    Fixed(Fixed),
    File(Box<FileExchange>),
    Other(Box<dyn ResponseSource>),
    /// Compressed as it is read.
    Stream(Box<Stream>),
    /// A file that is compressed whole.
    Whole(Box<Whole>),
}

/// A response that is complete from the start.
struct Fixed {
    head: Option<ResponseHead>,
    body: Bytes,
}

impl Exchange {
    /// An exchange whose response comes from `source`.
    pub fn new(source: Box<dyn ResponseSource>) -> Self {
        Self::of(Inner::Other(source))
    }

    /// A response that is complete: `headers` plus `content-length` and `date`. `method` decides whether
    /// the body is sent.
    pub fn fixed(method: &Method, status: StatusCode, headers: HeaderMap, body: Bytes) -> Self {
        let (head, body) = fixed_response(method, status, headers, body);
        Self::of(Inner::Fixed(Fixed { head: Some(head), body }))
    }

    /// A response that has no body by its status, such as 204, and so no `content-length` (RFC 9110, section 8.6).
    pub fn bodyless(status: StatusCode, mut headers: HeaderMap) -> Self {
        headers.insert(DATE, date_header());
        let head = ResponseHead { status, headers, body_length: Some(0) };
        Self::of(Inner::Fixed(Fixed { head: Some(head), body: Bytes::new() }))
    }

    /// An error (or redirection) whose body is its status line as plain text.
    pub fn error(method: &Method, status: StatusCode, headers: HeaderMap) -> Self {
        let (head, body) = error_response(method, status, headers);
        Self::of(Inner::Fixed(Fixed { head: Some(head), body }))
    }

    pub(crate) fn file(exchange: FileExchange) -> Self {
        Self::of(Inner::File(Box::new(exchange)))
    }

    fn of(inner: Inner) -> Self {
        Self { inner, account: None, policy: None, pace: None, urgency: None }
    }

    /// Has the head changed before it leaves. Must be called before the first poll.
    pub(crate) fn set_policy(&mut self, policy: ResponsePolicy) {
        self.policy = Some(Box::new(policy));
    }

    /// Has the body take its time. Must be called before the first poll.
    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.pace = Some(Box::new(pace));
    }

    /// Says how urgent it is, 0 to 7, to a transport whose client does not.
    pub fn set_urgency(&mut self, urgency: u8) {
        self.urgency = Some(urgency);
    }

    /// The urgency of the response, 0 to 7, if its client names none and it matters (RFC 9218, section 4.1).
    pub fn urgency(&self) -> Option<u8> {
        self.urgency
    }

    /// From now on, counts everything it holds on `account`: what it keeps, and the chunks it hands out
    /// until they are dropped. Must be called before the first poll.
    pub fn charge_to(&mut self, account: &Account) {
        if let Some(policy) = &mut self.policy {
            policy.charge_to(account);
        }
        match &mut self.inner {
            Inner::File(file) => file.charge_to(account),
            Inner::Fixed(_) => self.account = Some(account.clone()),
            // They are made once the head is polled.
            Inner::Stream(_) | Inner::Whole(_) => {}
            Inner::Other(source) => self.account = (!source.charge_to(account)).then(|| account.clone()),
        }
    }

    /// Counts a chunk, if it has not been.
    fn count(&self, octets: Bytes) -> Bytes {
        match &self.account {
            None => octets,
            Some(account) => account.own(octets),
        }
    }

    /// The response head, once. After it was returned this stays `Pending`.
    pub fn poll_head(&mut self) -> Poll<ResponseHead> {
        loop {
            let mut head = ready!(match &mut self.inner {
                Inner::Fixed(fixed) => fixed.head.take().map_or(Poll::Pending, Poll::Ready),
                Inner::File(file) => file.poll_head(),
                Inner::Other(source) => source.poll_head(),
                Inner::Stream(_) => Poll::Pending,
                Inner::Whole(whole) => match ready!(whole.poll_head()) {
                    Ok(head) => Poll::Ready(head),
                    Err(plain) => {
                        let (exchange, head) = *plain;
                        self.inner = exchange.inner;
                        Poll::Ready(head)
                    }
                },
            });
            let Some(mut policy) = self.policy.take() else { return Poll::Ready(head) };
            let Some(other) = policy.replace(&head) else {
                match policy.finish(&mut head) {
                    None => return Poll::Ready(head),
                    Some(compression) => match self.compress(&compression, head) {
                        None => continue,
                        Some(head) => return Poll::Ready(head),
                    },
                }
            };
            // An error whose page is fetched, or a page that is not there: that is twice at most.
            (self.inner, self.account) = (other.inner, other.account);
            self.policy = Some(policy);
        }
    }

    /// Has the body compressed, if the head that came suits that. `None`: the head is to be polled again.
    fn compress(&mut self, compression: &Compression, mut head: ResponseHead) -> Option<ResponseHead> {
        let Some(coding) = compression.choose(&mut head) else { return Some(head) };
        let empty = Inner::Fixed(Fixed { head: None, body: Bytes::new() });
        let plain = Self::of(std::mem::replace(&mut self.inner, empty));
        let whole = match &plain.inner {
            Inner::File(file) => file.whole().filter(|file| file.identity.size <= MAX_WHOLE).cloned(),
            _ => None,
        };
        let workshop = compression.workshop();
        if let Some(file) = whole {
            self.inner = Inner::Whole(Box::new(Whole::new((plain, head), file, coding, workshop)));
            return None;
        }
        self.inner = match Stream::new(Box::new(plain), coding, workshop) {
            Err(plain) => plain.inner,
            Ok(stream) => {
                recode(&mut head.headers, coding.0);
                head.body_length = None;
                Inner::Stream(Box::new(stream))
            }
        };
        Some(head)
    }

    /// Its body is a file, as it is.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.inner, Inner::File(_))
    }

    /// The next chunk of the body, of 1 to `max` octets; `None` at its end. To be called after the head was
    /// returned, with `max` above 0.
    ///
    /// An error is final: the transport resets the stream.
    pub fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        debug_assert!(max > 0, "a chunk of no octets cannot be told from no progress");
        let Some(max) = self.paced(max) else { return Poll::Pending };
        let polled = self.poll_unpaced(max);
        if let (Some(pace), Poll::Ready(Some(Ok(chunk)))) = (&mut self.pace, &polled) {
            pace.spend(chunk.len());
        }
        polled
    }

    /// Octets of `max` that may go now.
    fn paced(&mut self, max: usize) -> Option<usize> {
        // Its end is not held up.
        if self.pace.is_none() || self.remaining() == Some(0) {
            return Some(max);
        }
        self.pace.as_mut().map_or(Some(max), |pace| pace.room(max))
    }

    fn poll_unpaced(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        let chunk = match &mut self.inner {
            Inner::Fixed(fixed) if fixed.body.is_empty() => return Poll::Ready(None),
            Inner::Fixed(fixed) => {
                let length = fixed.body.len().min(max);
                fixed.body.split_to(length)
            }
            Inner::File(file) => return file.poll_body(max),
            Inner::Stream(stream) => return stream.poll_body(max),
            Inner::Whole(whole) => return whole.poll_body(max),
            Inner::Other(source) => match ready!(source.poll_body(max)) {
                Some(Ok(chunk)) => chunk,
                end => return Poll::Ready(end),
            },
        };
        Poll::Ready(Some(Ok(self.count(chunk))))
    }

    /// As [`poll_body`](Self::poll_body), but copies the chunk to the end of `out`: for small ones that go out together
    /// with other octets.
    pub fn poll_copy(&mut self, max: usize, out: &mut Vec<u8>) -> Poll<Option<Result<(), BodyError>>> {
        debug_assert!(max > 0, "a chunk of no octets cannot be told from no progress");
        let Some(max) = self.paced(max) else { return Poll::Pending };
        let before = out.len();
        let polled = self.copy_unpaced(max, out);
        if let Some(pace) = &mut self.pace {
            pace.spend(out.len() - before);
        }
        polled
    }

    fn copy_unpaced(&mut self, max: usize, out: &mut Vec<u8>) -> Poll<Option<Result<(), BodyError>>> {
        match &mut self.inner {
            Inner::Fixed(fixed) if fixed.body.is_empty() => return Poll::Ready(None),
            Inner::Fixed(fixed) => {
                let length = fixed.body.len().min(max);
                out.extend_from_slice(&fixed.body.split_to(length));
            }
            Inner::File(file) => return file.poll_copy(max, out),
            Inner::Other(source) => return source.poll_copy(max, out),
            Inner::Stream(_) | Inner::Whole(_) => {
                return self.poll_unpaced(max).map_ok(|chunk| out.extend_from_slice(&chunk));
            }
        }
        Poll::Ready(Some(Ok(())))
    }

    /// Octets of the body not yet returned by [`poll_body`](Self::poll_body); `None` if not known (always so
    /// before the head is ready). 0 tells a transport that the chunk it just got was the last one.
    pub fn remaining(&self) -> Option<u64> {
        match &self.inner {
            Inner::Fixed(fixed) => Some(fixed.body.len() as u64),
            Inner::File(file) => file.remaining(),
            Inner::Other(source) => source.remaining(),
            Inner::Stream(stream) => stream.remaining(),
            Inner::Whole(whole) => whole.remaining(),
        }
    }

    /// Trailers, once, after the body's end. A body with trailers has no known length
    /// ([`remaining`](Self::remaining)).
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        match &mut self.inner {
            Inner::Fixed(_) | Inner::File(_) | Inner::Whole(_) => None,
            Inner::Other(source) => source.take_trailers(),
            Inner::Stream(stream) => stream.take_trailers(),
        }
    }

    /// What a cache did for it, in a word such as `hit`: for the access log, once the response has a head. Empty if there is
    /// no cache.
    pub fn cache(&self) -> &'static str {
        match &self.inner {
            Inner::Fixed(_) | Inner::File(_) | Inner::Whole(_) => "",
            Inner::Other(source) => source.cache(),
            Inner::Stream(stream) => stream.cache(),
        }
    }

    /// The server that answered, if it was another one: for the access log, once the response is over.
    pub fn upstream(&self) -> Option<Upstream> {
        match &self.inner {
            Inner::Fixed(_) | Inner::File(_) | Inner::Whole(_) => None,
            Inner::Other(source) => source.upstream(),
            Inner::Stream(stream) => stream.upstream(),
        }
    }

    /// The transport currently accepts nothing: releases what is kept only to make the next chunk cheap, if
    /// the account has no room for it.
    pub fn rest(&mut self) {
        match &mut self.inner {
            Inner::Fixed(_) => {}
            Inner::Whole(whole) => whole.rest(),
            Inner::File(file) => file.rest(),
            Inner::Other(source) => source.rest(),
            Inner::Stream(stream) => stream.rest(),
        }
    }

    /// Releases what is kept only to make the next chunk cheap, such as the block of a file it comes from.
    /// For a transport whose client has stopped reading: until the next poll the exchange then holds a few
    /// hundred bytes and a file descriptor.
    pub fn release(&mut self) {
        match &mut self.inner {
            Inner::Fixed(_) => {}
            Inner::File(file) => file.release(),
            Inner::Other(source) => source.release(),
            Inner::Stream(stream) => stream.release(),
            Inner::Whole(whole) => whole.release(),
        }
    }
}

/// Exchanges move to the thread that polls them.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Exchange>();
};

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("remaining", &self.remaining()).finish_non_exhaustive()
    }
}

fn fixed_response(
    method: &Method,
    status: StatusCode,
    mut headers: HeaderMap,
    body: Bytes,
) -> (ResponseHead, Bytes) {
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    headers.insert(DATE, date_header());
    let body = if *method == Method::HEAD { Bytes::new() } else { body };
    (ResponseHead { status, headers, body_length: Some(body.len() as u64) }, body)
}

/// The head and body of an error (or redirection).
pub(crate) fn error_response(
    method: &Method,
    status: StatusCode,
    mut headers: HeaderMap,
) -> (ResponseHead, Bytes) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    let body = format!("{} {}\n", status.as_str(), status.canonical_reason().unwrap_or("Error"));
    fixed_response(method, status, headers, Bytes::from(body))
}
