//! One server of an origin: its address, its connections, its health and its counters.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::address::Addresses;
use crate::balance;
use crate::connect::{Connector, Sender};
use crate::failure::{Failed, Reason, chain};
use crate::health::Health;
use crate::pool::{Http1, Pool, Stream};
use crate::stats::ServerStats;
use crate::upload::UploadBody;
use crate::{Endpoint, OriginOptions, Protocol, ServerOptions, Site};

/// How long a connection may take to be ready again after the end of a response.
const SETTLE: Duration = Duration::from_secs(1);

/// How often a request that waits for its answer looks whether its connection is closed.
const LOOK: Duration = Duration::from_secs(1);

/// A server.
pub(crate) struct Server {
    /// As logs and metrics name it.
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    pub(crate) weight: u32,
    /// What hashes know it by.
    pub(crate) seed: u64,
    /// `None` for a Unix socket.
    pub(crate) addresses: Option<Addresses>,
    pub(crate) health: Health,
    pub(crate) stats: ServerStats,
    slots: Arc<Semaphore>,
    pool: Mutex<Pool>,
    /// Held while a connection is made that others may share.
    connecting: tokio::sync::Mutex<()>,
    /// It speaks HTTP/2, or may.
    may_share: AtomicBool,
}

/// A connection as long as a request has it.
pub(crate) struct Lease {
    /// `None` once the connection is closed for further requests.
    link: Option<Link>,
    /// It had been used before.
    pub(crate) is_reused: bool,
    server: Arc<Server>,
    _slot: OwnedSemaphorePermit,
}

enum Link {
    Http1(Http1),
    H2(Stream),
}

impl Server {
    pub(crate) fn new(options: &ServerOptions, origin: &OriginOptions) -> Arc<Self> {
        let addresses = match &options.endpoint.site {
            Site::Tcp { host, port } => Some(Addresses::new(host, *port)),
            Site::Unix(_) => None,
        };
        let name = options.endpoint.to_string();
        let may_share = match origin.protocol {
            Protocol::Auto => options.endpoint.tls,
            Protocol::Http1 => false,
            Protocol::H2 => true,
        };
        Arc::new(Self {
            seed: balance::hash([name.as_bytes()]),
            name,
            endpoint: options.endpoint.clone(),
            weight: options.weight,
            addresses,
            health: Health::default(),
            stats: ServerStats::default(),
            slots: Arc::new(Semaphore::new(origin.limits.connections)),
            pool: Mutex::default(),
            connecting: tokio::sync::Mutex::new(()),
            may_share: AtomicBool::new(may_share),
        })
    }

    pub(crate) fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for a request, waiting for one to become free or to be made. `fresh`: none that was used before.
    pub(crate) async fn lease(
        self: &Arc<Self>,
        connector: &Connector,
        options: &OriginOptions,
        fresh: bool,
    ) -> Result<Lease, Failed> {
        let slot = timeout(options.timeouts.connect, Arc::clone(&self.slots).acquire_owned()).await;
        let Ok(Ok(slot)) = slot else {
            return Err(Failed::unsent(Reason::Busy, "too many requests in progress"));
        };
        let lease =
            |link, is_reused| Lease { link: Some(link), is_reused, server: Arc::clone(self), _slot: slot };
        if !fresh && let Some(link) = self.pooled(options) {
            return Ok(lease(link, true));
        }
        match timeout(options.timeouts.connect, self.connect(connector, options)).await {
            Ok(Ok((link, is_reused))) => Ok(lease(link, is_reused)),
            Ok(Err(failed)) => {
                self.doubt().await;
                Err(failed)
            }
            Err(_) => {
                self.doubt().await;
                let what = format!("no connection within {:?}", options.timeouts.connect);
                Err(Failed::unsent(Reason::ConnectTimeout, what))
            }
        }
    }

    /// Its addresses may have changed.
    async fn doubt(&self) {
        if let Some(addresses) = &self.addresses {
            addresses.doubt().await;
            self.follow(addresses);
        }
    }

    /// Looks its name up if that was `every` ago. False: it has none.
    pub(crate) async fn refresh(&self, every: Duration) -> bool {
        let Some(addresses) = &self.addresses else { return false };
        addresses.refresh(every).await;
        self.follow(addresses);
        true
    }

    /// Connections to where it was get no further requests.
    fn follow(&self, addresses: &Addresses) {
        self.pool().leave(|peer| addresses.has(peer));
    }

    /// A connection to `peer` is still one to it.
    fn leads_to(&self, peer: Option<SocketAddr>) -> bool {
        peer.zip(self.addresses.as_ref()).is_none_or(|(peer, addresses)| addresses.has(peer))
    }

    fn pooled(&self, options: &OriginOptions) -> Option<Link> {
        let mut pool = self.pool();
        let idle = pool.take(options.limits.idle_timeout).map(Link::Http1);
        idle.or_else(|| pool.stream().map(Link::H2))
    }

    /// A new connection, or a place on one that another request has just made.
    async fn connect(
        self: &Arc<Self>,
        connector: &Connector,
        options: &OriginOptions,
    ) -> Result<(Link, bool), Failed> {
        let only = match self.may_share.load(Ordering::Relaxed) {
            true => Some(self.connecting.lock().await),
            false => None,
        };
        if only.is_some()
            && let Some(stream) = self.pool().stream()
        {
            return Ok((Link::H2(stream), true));
        }
        let (sender, peer) = connector.open(self, options).await?;
        drop(only);
        Ok(match sender {
            Sender::Http1(sender) => {
                self.may_share.store(false, Ordering::Relaxed);
                (Link::Http1(Http1 { sender, peer }), false)
            }
            Sender::H2(sender) => {
                self.may_share.store(true, Ordering::Relaxed);
                (Link::H2(self.pool().share(sender, peer)), false)
            }
        })
    }
}

impl Lease {
    pub(crate) fn is_h2(&self) -> bool {
        matches!(self.link, Some(Link::H2(_)))
    }

    /// Sends a request, and waits for the head of the response. A connection that is closed meanwhile is given up: the lease has
    /// none then, and another request on it fails.
    pub(crate) async fn send(&mut self, request: Request<UploadBody>) -> Result<Response<Incoming>, Failed> {
        let sent = match self.link.take() {
            Some(Link::Http1(mut link)) => {
                let answer = link.sender.try_send_request(request);
                let (sent, link) = answered(answer, link, |link| link.sender.is_closed()).await;
                self.link = link.map(Link::Http1);
                sent
            }
            Some(Link::H2(mut stream)) => {
                let answer = stream.sender.try_send_request(request);
                let is_closed = |stream: &Stream| {
                    let is_closed = stream.sender.is_closed();
                    if is_closed {
                        self.server.pool().forget_closed();
                    }
                    is_closed
                };
                let (sent, stream) = answered(answer, stream, is_closed).await;
                self.link = stream.map(Link::H2);
                sent
            }
            None => return Err(Failed::unsent(Reason::Closed, "the connection is closed")),
        };
        sent.map_err(|mut error| {
            let was_sent = error.take_message().is_none();
            let error = error.into_error();
            let reason = match () {
                () if error.is_parse_too_large() => Reason::HeadTooLarge,
                () if error.is_parse() => Reason::InvalidResponse,
                () if error.is_user() => Reason::Client,
                () => Reason::Closed,
            };
            Failed { reason, detail: chain(&error), was_sent, was_pooled: self.is_reused }
        })
    }

    /// The response is over, and so is the request: the connection is for the next.
    pub(crate) async fn give_back(self, options: &OriginOptions) {
        if let Some(Link::Http1(mut link)) = self.link
            && let Ok(Ok(())) = timeout(SETTLE, link.sender.ready()).await
            && self.server.leads_to(link.peer)
        {
            self.server.pool().put(link, options.limits.idle);
        }
    }
}

/// The answer to a request, and what sent it unless its connection is closed by then.
///
/// hyper puts a request into a channel. If that happens at the moment at which the connection's task ends, neither that task
/// nor the channel's drop sees it (tokio drains a channel up to what has been written), and it stays there, answered by
/// nobody, until the last sender is dropped (<https://github.com/hyperium/hyper/issues/4122>). So the sender of a closed
/// connection is dropped; hyper then says that the request was not sent, or still answers one that was.
async fn answered<T, S>(
    answer: impl Future<Output = T>,
    sender: S,
    is_closed: impl Fn(&S) -> bool,
) -> (T, Option<S>) {
    let mut answer = pin!(answer);
    loop {
        match timeout(LOOK, &mut answer).await {
            Ok(answer) => return (answer, Some(sender)),
            Err(_) if is_closed(&sender) => break,
            Err(_) => {}
        }
    }
    drop(sender);
    (answer.await, None)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_request_that_its_closed_connection_forgot_is_answered_once_its_sender_is_dropped() {
        // The queue answers when nobody can put anything into it any more.
        let (sender, queue) = oneshot::channel::<()>();
        let looks = AtomicUsize::new(0);
        let is_closed = |_: &_| looks.fetch_add(1, Ordering::Relaxed) == 1;
        let (answer, sender) = answered(queue, sender, is_closed).await;
        assert!(answer.is_err() && sender.is_none());
        assert_eq!(looks.into_inner(), 2, "it waits for as long as the connection is open");
    }

    #[tokio::test]
    async fn what_is_answered_keeps_its_sender() {
        let (answer, sender) = answered(async { 1 }, "sender", |_| true).await;
        assert_eq!((answer, sender), (1, Some("sender")));
    }
}
