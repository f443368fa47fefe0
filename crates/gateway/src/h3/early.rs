//! Requests that arrived as 0-RTT and are not safe to replay: held until the handshake is complete, which an attacker
//! who replays them cannot do (RFC 8470, section 3).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use bytes::Bytes;
use expressway_web::memory::{Account, Charge};
use expressway_web::{
    BodyError, Exchange, Handler, RequestBody, RequestHead, ResponseHead, ResponseSource, Wake,
};
use http::HeaderMap;

/// Requests that a connection may hold; more are answered 425.
const MOST: usize = 16;

/// Those of a connection.
#[derive(Default)]
pub(super) struct Early {
    is_over: Arc<AtomicBool>,
    streams: Vec<u64>,
}

impl Early {
    /// No other can be held.
    pub(super) fn is_full(&self) -> bool {
        self.streams.len() >= MOST
    }

    /// Holds a request; the exchange starts when the handshake is complete.
    pub(super) fn hold(
        &mut self,
        stream: u64,
        handler: &Arc<dyn Handler>,
        head: &RequestHead,
        body: RequestBody,
        (wake, account): (Wake, &Account),
    ) -> Exchange {
        self.streams.push(stream);
        let charge = account.charge_request(head.footprint());
        let request = Some((Arc::clone(handler), head.clone(), body, wake, charge));
        Exchange::new(Box::new(Held { is_over: Arc::clone(&self.is_over), request, exchange: None }))
    }

    /// The handshake is complete: the streams whose requests can start.
    pub(super) fn release(&mut self) -> Vec<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        std::mem::take(&mut self.streams)
    }
}

type Request = (Arc<dyn Handler>, RequestHead, RequestBody, Wake, Charge);

/// The answer to a request that is held.
struct Held {
    is_over: Arc<AtomicBool>,
    request: Option<Request>,
    exchange: Option<Exchange>,
}

impl ResponseSource for Held {
    fn poll_head(&mut self) -> Poll<ResponseHead> {
        if self.is_over.load(Ordering::Relaxed)
            && let Some((handler, head, body, wake, _charge)) = self.request.take()
        {
            self.exchange = Some(handler.start(&head, body, wake));
        }
        self.exchange.as_mut().map_or(Poll::Pending, Exchange::poll_head)
    }

    fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        self.exchange.as_mut().map_or(Poll::Pending, |exchange| exchange.poll_body(max))
    }

    fn remaining(&self) -> Option<u64> {
        self.exchange.as_ref().and_then(Exchange::remaining)
    }

    fn release(&mut self) {
        if let Some(exchange) = &mut self.exchange {
            exchange.release();
        }
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.exchange.as_mut()?.take_trailers()
    }
}
