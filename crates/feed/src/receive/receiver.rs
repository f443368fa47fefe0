//! [`Receiver`]: packet I/O, a worker, and the program's handler.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use expressway_netio::stats::{Published, StatsCell};
use expressway_netio::worker::{Turn, WorkerOptions, WorkerStats};
use expressway_netio::{IoError, IoStats, Mailbox, PacketIo, Wait, Worker, mailbox};

use super::counters::Counters;
use super::echo::Echo;
use super::handler::Handler;
use super::service::{Feed, Message, TIMERS};

/// Messages that may wait: stopping takes one, posts of handlers the others.
const MESSAGES: usize = 64;

/// How to receive.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The CPU to pin the receiving thread to.
    pub cpu: Option<usize>,
    /// How to wait while nothing comes.
    pub wait: Wait,
    /// Hand over datagrams from these addresses only; empty: from all. AF_XDP needs it for source-specific groups, whose
    /// filter in the kernel it goes past.
    pub sources: Vec<IpAddr>,
    /// End after so many datagrams.
    pub limit: Option<u64>,
    /// Send each datagram back to its sender, from the address that it was sent to: not for multicast
    /// groups.
    pub echo: bool,
}

/// Receives datagrams on one thread and hands them to a [`Handler`].
pub struct Receiver<P: PacketIo, H: Handler> {
    worker: Worker<Feed<H>, P>,
    mailbox: Mailbox<Message>,
    published: Arc<Published<Counters>>,
}

impl<P: PacketIo, H: Handler> Receiver<P, H> {
    /// A receiver over `io`, which has its sockets open.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new(io: P, options: Options, handler: H) -> Result<Self, IoError> {
        let (mailbox, inbox) = mailbox(MESSAGES)
            .map_err(|source| IoError::Socket { what: "receiver: eventfd".into(), source })?;
        let published = Arc::<Published<Counters>>::default();
        let feed = Feed {
            handler,
            sources: options.sources,
            limit: options.limit.unwrap_or(u64::MAX),
            echo: options.echo.then(Echo::new),
            counters: Counters::default(),
            published: Arc::clone(&published),
            span: None,
            stopped: false,
            seen: 0,
            begun: false,
            timeout: None,
        };
        let peers: Arc<[_]> = Arc::new([mailbox.clone()]);
        let how = WorkerOptions {
            core: options.cpu,
            timer_tokens: TIMERS,
            wait: options.wait,
            ..Default::default()
        };
        let worker = Worker::new(how, Instant::now(), feed, io, inbox, peers);
        Ok(Self { worker, mailbox, published })
    }

    /// Ends [`Receiver::run`] from another thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.mailbox.clone())
    }

    /// Hands things to [`Handler::handle_post`] from another thread.
    pub fn poster(&self) -> Poster {
        Poster(self.mailbox.clone())
    }

    /// Shows the counters to another thread.
    pub fn watch(&self) -> Watch {
        Watch { published: Arc::clone(&self.published), cell: self.worker.stats_cell() }
    }

    /// Pins the thread if told, and receives until told to stop, the limit is reached, or the handler is finished.
    ///
    /// # Errors
    /// What stops a socket for good; a CPU that there is not; a way to wait that is not permitted.
    pub fn run(&mut self) -> Result<(), IoError> {
        let result = self.worker.run();
        self.published.store(&self.worker.service().counters);
        result
    }

    /// Handles what has arrived, without waiting: for programs with their own event loop, over
    /// [`PacketIo::descriptors`].
    ///
    /// # Errors
    /// What stops a socket for good.
    pub fn turn(&mut self) -> Result<Turn, IoError> {
        self.worker.turn(Instant::now())
    }

    /// Whether it has ended, and why does not matter.
    pub fn is_finished(&self) -> bool {
        expressway_netio::Service::is_finished(self.worker.service())
    }

    /// The packet I/O.
    pub fn io(&self) -> &P {
        self.worker.io()
    }

    /// The handler.
    pub fn handler(&self) -> &H {
        &self.worker.service().handler
    }

    /// Counters of the receiver.
    pub fn counters(&self) -> Counters {
        self.worker.service().counters
    }

    /// Counters of packet I/O: datagrams by path, and losses by reason.
    pub fn io_stats(&self) -> IoStats {
        self.worker.io().stats()
    }

    /// Counters of the worker: turns, sleeps.
    pub fn worker_stats(&self) -> WorkerStats {
        self.worker.stats()
    }

    /// Between the turns of the first and the last datagram; `None` without any.
    pub fn span(&self) -> Option<Duration> {
        self.worker.service().span.map(|(first, last)| last.saturating_duration_since(first))
    }

    /// Ends it and returns packet I/O and handler.
    pub fn into_parts(self) -> (P, H) {
        let (feed, io) = self.worker.into_parts();
        (io, feed.handler)
    }
}

/// Ends a receiver from another thread.
#[derive(Clone)]
pub struct Stopper(Mailbox<Message>);

impl Stopper {
    /// Ends it after its present turn.
    pub fn stop(&self) {
        // Full: then it has been told already. Closed: it has ended.
        let _ = self.0.try_send(Message::Stop);
    }
}

/// Hands things to a receiver's handler from another thread.
#[derive(Clone)]
pub struct Poster(Mailbox<Message>);

impl Poster {
    /// Posts something. False if as much waits as may, or the receiver has ended.
    pub fn post(&self, post: Box<[u8]>) -> bool {
        self.0.try_send(Message::Post(post)).is_ok()
    }
}

/// Shows a receiver's counters to another thread, as of some 100 ms ago.
#[derive(Clone, Debug)]
pub struct Watch {
    published: Arc<Published<Counters>>,
    cell: Arc<StatsCell>,
}

impl Watch {
    /// Counters of the receiver.
    pub fn counters(&self) -> Counters {
        self.published.load()
    }

    /// Counters of packet I/O and of the worker.
    pub fn io(&self) -> (IoStats, WorkerStats) {
        (self.cell.io(), self.cell.worker())
    }
}
