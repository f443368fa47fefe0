//! Tracing: the requests of connections that a recording selects.
//!
//! A connection notices a recording with the next bytes that arrive, or with its next request. While nobody records,
//! this costs one load.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use expressway_netio::trace::{Arrival, Channel, Hop, Tracer, escaped};
use expressway_web::{Exchange, RequestHead, Scheme};

/// What a recording knows of a connection.
#[derive(Debug, Default)]
pub(crate) struct Follow {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The recording that was looked at last; 0: none.
    epoch: u32,
    followed: Option<Followed>,
}

#[derive(Debug)]
struct Followed {
    number: u64,
    /// The octets that came last.
    arrival: Arrival,
    /// The head of a response is ready, and nothing was written since.
    is_unsent: bool,
}

/// A connection, as it tells of itself.
#[derive(Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) tracer: &'a Tracer,
    pub(crate) remote: SocketAddr,
    pub(crate) is_h2: bool,
}

impl Follow {
    fn with<R>(&self, about: About<'_>, act: impl FnOnce(&Tracer, &mut Followed) -> R) -> Option<R> {
        let epoch = about.tracer.epoch();
        if epoch == 0 {
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.epoch != epoch {
            state.epoch = epoch;
            state.followed = meet(about);
        }
        state.followed.as_mut().map(|followed| act(about.tracer, followed))
    }

    /// Octets were read, from `began` until now.
    pub(crate) fn read(&self, about: About<'_>, began: u64) {
        self.with(about, |tracer, followed| {
            let (opened, way) = (tracer.now(), Some(Channel::Tcp));
            followed.arrival = Arrival { arrived: None, taken: began, opened, way };
        });
    }

    /// Octets were written, from `began` until now.
    pub(crate) fn written(&self, about: About<'_>, began: u64) {
        self.with(about, |tracer, followed| {
            if std::mem::take(&mut followed.is_unsent) {
                tracer.record(followed.number, Hop::Sent { began });
            }
        });
    }

    /// A request has come. True if it is followed.
    pub(crate) fn request(&self, about: About<'_>, stream: u64, head: &RequestHead) -> bool {
        let begun = self.with(about, |tracer, followed| {
            if !tracer.samples() {
                return false;
            }
            let RequestHead { method, scheme, authority, target, .. } = head;
            let scheme = if *scheme == Scheme::Https { "https" } else { "http" };
            let request = escaped(&format!("{method} {scheme}://{authority}{target}"));
            tracer.record(followed.number, Hop::Request { stream, request, datagram: followed.arrival });
            true
        });
        begun.unwrap_or(false)
    }

    /// The head of its response is ready.
    pub(crate) fn answered(&self, about: About<'_>, (stream, status): (u64, u16), exchange: &Exchange) {
        self.with(about, |tracer, followed| {
            let source: Box<str> = match (exchange.upstream(), exchange.cache()) {
                (Some(upstream), _) => upstream.address.as_str().into(),
                (None, "") => "here".into(),
                (None, word) => format!("cache {word}").into(),
            };
            tracer.record(followed.number, Hop::Answered { stream, status, source });
            followed.is_unsent = true;
        });
    }

    /// A request that is followed has come so far.
    pub(crate) fn hop(&self, about: About<'_>, hop: Hop) {
        self.with(about, |tracer, followed| tracer.record(followed.number, hop));
    }

    /// The connection is over.
    pub(crate) fn close(&self, about: About<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = about.tracer.epoch();
        if state.epoch == epoch
            && epoch != 0
            && let Some(followed) = state.followed.take()
        {
            about.tracer.record(followed.number, Hop::Closed);
        }
    }
}

fn meet(About { tracer, remote, is_h2 }: About<'_>) -> Option<Followed> {
    if !tracer.selects(remote, std::iter::empty()) {
        return None;
    }
    let number = tracer.number();
    let id = if is_h2 { "HTTP/2" } else { "HTTP/1" };
    tracer.record(number, Hop::Connection { remote, id: id.into() });
    Some(Followed { number, arrival: Arrival::default(), is_unsent: false })
}
