//! The addresses of a server: looked up repeatedly; the last good ones are kept.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::{Failed, Reason};

/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 16;

/// A failed connection has names looked up again, but no more often than this.
const LEAST_AGE: Duration = Duration::from_secs(1);

/// The addresses of a host.
#[derive(Debug)]
pub(crate) struct Addresses {
    host: String,
    port: u16,
    is_literal: bool,
    state: Mutex<State>,
    /// Held by the one who looks it up.
    lookup: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    known: Arc<[SocketAddr]>,
    /// All of the last answer; `known` is the first of them.
    all: Vec<SocketAddr>,
    since: Option<Instant>,
}

impl Addresses {
    pub(crate) fn new(host: &str, port: u16) -> Self {
        let literal: Option<IpAddr> = host.parse().ok();
        let all: Vec<_> = literal.map(|ip| SocketAddr::new(ip, port)).into_iter().collect();
        let known = all.clone().into();
        Self {
            host: host.to_owned(),
            port,
            is_literal: literal.is_some(),
            state: Mutex::new(State { known, all, since: None }),
            lookup: tokio::sync::Mutex::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that are known, or else those that a lookup finds.
    pub(crate) async fn current(&self) -> Result<Arc<[SocketAddr]>, Failed> {
        let known = self.lock().known.clone();
        if !known.is_empty() {
            return Ok(known);
        }
        let _only = self.lookup.lock().await;
        let known = self.lock().known.clone();
        if !known.is_empty() {
            return Ok(known);
        }
        self.look_up()
            .await
            .map_err(|error| Failed::unsent(Reason::Resolve, format!("{}: {error}", self.host)))
    }

    /// The last answer has it.
    pub(crate) fn has(&self, address: SocketAddr) -> bool {
        self.lock().all.contains(&address)
    }

    /// Looks the name up if that was `interval` ago; the last good addresses stay if there is no answer.
    pub(crate) async fn refresh(&self, interval: Duration) {
        let Ok(_only) = self.lookup.try_lock() else { return };
        if self.is_literal || self.lock().since.is_some_and(|since| since.elapsed() < interval) {
            return;
        }
        if let Err(error) = self.look_up().await {
            tracing::warn!(host = self.host, %error, "cannot look up an origin's name: keeping its last addresses");
        }
    }

    /// As [`Self::refresh`], after a connection failed.
    pub(crate) async fn doubt(&self) {
        self.refresh(LEAST_AGE).await;
    }

    async fn look_up(&self) -> io::Result<Arc<[SocketAddr]>> {
        // The time of the question: one that is not answered is not repeated at once.
        self.lock().since = Some(Instant::now());
        let found: Vec<_> = tokio::net::lookup_host((self.host.as_str(), self.port)).await?.collect();
        let all = found;
        let found = interleave(&all);
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no address"));
        }
        let mut state = self.lock();
        state.all = all;
        if state.known[..] != found[..] {
            tracing::info!(host = self.host, addresses = ?found, "an origin's addresses");
            state.known = found.into();
        }
        Ok(state.known.clone())
    }
}

/// Families by turns, that of the first address first, each as the resolver sorted it (RFC 8305, section 4).
fn interleave(found: &[SocketAddr]) -> Vec<SocketAddr> {
    let Some(first) = found.first() else { return Vec::new() };
    let (one, other): (Vec<_>, Vec<_>) =
        found.iter().copied().partition(|address: &SocketAddr| address.is_ipv4() == first.is_ipv4());
    let mut mixed = Vec::with_capacity(found.len());
    for index in 0..one.len().max(other.len()) {
        mixed.extend(one.get(index).into_iter().chain(other.get(index)));
    }
    mixed.truncate(MAX_ADDRESSES);
    mixed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns() {
        let parse = |text: &str| -> Vec<SocketAddr> { text.split(' ').map(|a| a.parse().unwrap()).collect() };
        let found = parse("[::1]:1 [::2]:1 [::3]:1 10.0.0.1:1");
        assert_eq!(interleave(&found), parse("[::1]:1 10.0.0.1:1 [::2]:1 [::3]:1"));
        assert_eq!(interleave(&[]), []);
        assert_eq!(interleave(&vec![found[0]; 100]).len(), MAX_ADDRESSES);
    }

    #[tokio::test]
    async fn a_name_that_is_gone_keeps_its_addresses() {
        let addresses = Addresses::new("name.invalid", 80);
        assert_eq!(addresses.current().await.unwrap_err().reason, Reason::Resolve);
        let known: Arc<[SocketAddr]> = ["192.0.2.1:80".parse().unwrap()].into();
        addresses.lock().known = known.clone();
        addresses.refresh(Duration::ZERO).await;
        assert_eq!(addresses.current().await.unwrap(), known);
        let localhost = Addresses::new("localhost", 7);
        assert!(localhost.current().await.unwrap().iter().all(|a| a.ip().is_loopback() && a.port() == 7));
    }
}
