//! The workers together.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use arc_swap::ArcSwap;
use expressway_netio::trace::Tracer;
use expressway_web::memory::Memory;
use tokio::sync::watch;

use crate::connections::{Addresses, Connections};
use crate::listener::Listener;
use crate::setup::Setup;
use crate::stats::Stats;
use crate::worker::{self, Shared};

/// How workers end, and by when. No more connections are accepted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ending {
    /// Another process accepts connections. Clients are told when they next ask.
    Retire(Instant),
    /// Connections end with their requests.
    Finish(Instant),
}

/// Running workers. Dropped, they end at once and with them their connections.
#[derive(Debug)]
pub struct Server {
    setup: Arc<ArcSwap<Setup>>,
    stats: Vec<Arc<Stats>>,
    drain: watch::Sender<Option<Ending>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// Starts so many workers on `listeners`, which have been bound for as many. What their connections hold counts in
    /// `memory`. `tracer` gives each worker, by its number, what it tells of its requests by.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(
        workers: usize,
        listeners: Vec<Listener>,
        setup: Arc<Setup>,
        memory: &Arc<Memory>,
        tracer: impl Fn(usize) -> Tracer,
    ) -> io::Result<Self> {
        let (drain, drained) = watch::channel(None);
        let setup = Arc::new(ArcSwap::new(setup));
        let mut server = Self { setup, stats: Vec::new(), drain, threads: Vec::new() };
        let addresses = Arc::<Addresses>::default();
        let mut listeners: Vec<_> = listeners
            .into_iter()
            .map(|listener| (Arc::new(listener.listen), listener.sockets.into_iter()))
            .collect();
        for number in 0..workers {
            let ledger = memory.ledger();
            let stats = Arc::new(Stats::new(Arc::clone(&ledger)));
            server.stats.push(Arc::clone(&stats));
            let shared = Arc::new(Shared {
                number: u16::try_from(number).unwrap_or(u16::MAX),
                setup: Arc::clone(&server.setup),
                connections: Connections::new(Arc::clone(&stats)),
                stats,
                ledger,
                addresses: Arc::clone(&addresses),
                tracer: tracer(number),
            });
            let sockets = listeners
                .iter_mut()
                .filter_map(|(listen, sockets)| Some((Arc::clone(listen), sockets.next()?)))
                .collect();
            let drained = drained.clone();
            let thread = std::thread::Builder::new()
                .name(format!("tcp-{number}"))
                .spawn(move || worker::run(shared, sockets, drained))?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Swaps what serves: requests that come from now on have the new handler, connections the new certificate and
    /// limits.
    pub fn reload(&self, setup: Arc<Setup>) {
        self.setup.store(setup);
    }

    /// The counters of each worker.
    pub fn stats(&self) -> Vec<Arc<Stats>> {
        self.stats.clone()
    }

    /// Accepts no more connections, has those that are there finish their requests, and ends them at `deadline`.
    pub fn drain(&self, deadline: Instant) {
        self.drain.send_replace(Some(Ending::Finish(deadline)));
    }

    /// Accepts no more connections, because another process does, on the same sockets. Those that are there, also those that are
    /// shaking hands, have their requests answered until their clients go there: with GOAWAY over HTTP/2, with the next response over
    /// HTTP/1.1. At `deadline` they end.
    pub fn retire(&self, deadline: Instant) {
        self.drain.send_replace(Some(Ending::Retire(deadline)));
    }

    /// All workers have ended; or, unless they were told to, one has, which then failed.
    pub fn has_ended(&self, was_told: bool) -> bool {
        let mut threads = self.threads.iter();
        if was_told { threads.all(JoinHandle::is_finished) } else { threads.any(JoinHandle::is_finished) }
    }

    /// Ends all workers at once.
    ///
    /// # Errors
    /// That of a worker that failed.
    pub fn abort(mut self) -> io::Result<()> {
        self.drain(Instant::now());
        self.end()
    }

    /// Waits until all workers have ended.
    ///
    /// # Errors
    /// That of a worker that failed.
    pub fn join(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
            result = result.and(ended);
        }
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.drain(Instant::now());
            let _ = self.end();
        }
    }
}
