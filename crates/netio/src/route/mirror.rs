//! [`RouteMirror`]: the thread that follows rtnetlink and publishes snapshots.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::RouteError;
use super::netlink::{NetlinkSource, OwnNamespace, RequestSocket};
use super::resolve::Resolver;
use super::snapshot::Snapshot;
use super::tracker::Tracker;

/// The least time between two readings: a storm of changes is read once.
const MIN_PAUSE: Duration = Duration::from_millis(2);
/// The most: how old a snapshot may be on a machine with an enormous routing table.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Reading takes at most one part in this many of a core's time.
const PAUSE_FACTOR: u32 = 10;

/// Before a broken socket is replaced.
const RETRY: Duration = Duration::from_millis(500);

/// Counters of a mirror. Every field only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorStats {
    /// Generation of the current snapshot.
    pub generation: u64,
    /// Times that the kernel dropped notifications and everything was read anew.
    pub overflows: u64,
    /// Times that reading a table failed and was tried again.
    pub failures: u64,
}

/// What the thread and the resolvers share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    current: ArcSwap<Snapshot>,
    generation: AtomicU64,
    overflows: AtomicU64,
    failures: AtomicU64,
}

impl Shared {
    /// The generation of the current snapshot; cheap enough to look at for every packet.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    pub(super) fn publish(&self, snapshot: &Snapshot) {
        self.current.store(Arc::new(snapshot.clone()));
        self.generation.store(snapshot.generation(), Ordering::Release);
    }
}

/// A mirror of the kernel's links, addresses, routes and neighbours in one network namespace.
///
/// Dropping it ends its thread; resolvers keep the last snapshot.
pub struct RouteMirror {
    shared: Arc<Shared>,
    source: Arc<dyn NetlinkSource>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl RouteMirror {
    /// Reads everything once and then follows changes, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`RouteError`] when rtnetlink cannot be read, or no thread started.
    pub fn start() -> Result<Self, RouteError> {
        Self::start_from(Arc::new(OwnNamespace))
    }

    /// As [`RouteMirror::start`], in the network namespace that `source` opens sockets in.
    ///
    /// # Errors
    /// As there, and what `source` answers.
    pub fn start_from(source: Arc<dyn NetlinkSource>) -> Result<Self, RouteError> {
        Self::follow(source, true)
    }

    /// As [`RouteMirror::start`], without routes and rules: resolvers ask the kernel for each. For a host whose table is
    /// large and changes all the time, and who has few questions.
    ///
    /// # Errors
    /// As there.
    pub fn start_without_routes() -> Result<Self, RouteError> {
        Self::follow(Arc::new(OwnNamespace), false)
    }

    fn follow(source: Arc<dyn NetlinkSource>, with_routes: bool) -> Result<Self, RouteError> {
        let fault = |what| move |source: io::Error| RouteError { what, source };
        let mut tracker = Tracker::open(&*source, with_routes).map_err(fault("open"))?;
        tracker.refresh().map_err(fault("read the tables"))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| fault("eventfd")(errno.into()))?;
        let (shared, stop) = (Arc::<Shared>::default(), Arc::new(stop));
        shared.publish(tracker.snapshot());
        let follower = Follower {
            shared: Arc::clone(&shared),
            source: Arc::clone(&source),
            stop: Arc::clone(&stop),
            with_routes,
        };
        let thread = std::thread::Builder::new()
            .name("expressway-route".into())
            .spawn(move || follower.run(tracker))
            .map_err(fault("start the thread"))?;
        Ok(Self { shared, source, stop, thread: Some(thread) })
    }

    /// The current state.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.shared.snapshot()
    }

    /// The generation of the current state: changes when the state does.
    pub fn generation(&self) -> u64 {
        self.shared.generation()
    }

    /// Counters.
    pub fn stats(&self) -> MirrorStats {
        MirrorStats {
            generation: self.shared.generation(),
            overflows: self.shared.overflows.load(Ordering::Relaxed),
            failures: self.shared.failures.load(Ordering::Relaxed),
        }
    }

    /// A resolver for one worker. Call it in the network namespace that the mirror was started in, unless the
    /// mirror has a source of another one.
    ///
    /// # Errors
    /// [`RouteError`] when no socket for asking the kernel can be opened.
    pub fn resolver(&self) -> Result<Resolver, RouteError> {
        let requests = RequestSocket::open(&*self.source)
            .map_err(|source| RouteError { what: "open a socket for requests", source })?;
        Ok(Resolver::new(Arc::clone(&self.shared), Arc::clone(&self.source), requests))
    }
}

impl Drop for RouteMirror {
    fn drop(&mut self) {
        // The counter of an eventfd that is written once cannot overflow.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the route mirror's thread panicked");
        }
    }
}

/// The thread's side.
struct Follower {
    shared: Arc<Shared>,
    source: Arc<dyn NetlinkSource>,
    stop: Arc<OwnedFd>,
    with_routes: bool,
}

impl Follower {
    fn run(&self, mut tracker: Tracker) {
        loop {
            match self.follow(&mut tracker) {
                Ok(()) => return,
                Err(error) => {
                    self.shared.failures.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(%error, "rtnetlink failed: keeping the last known routes until it recovers");
                }
            }
            if self.is_stopped_within(RETRY) {
                return;
            }
            // A thread is born in its maker's namespace, so new sockets are in the right one.
            if let Ok(mut fresh) = Tracker::open(&*self.source, self.with_routes) {
                fresh.resume(tracker.snapshot());
                tracker = fresh;
                if let Err(error) = self.read(&mut tracker) {
                    tracing::debug!(%error, "rtnetlink still fails");
                }
            }
        }
    }

    /// Follows until told to stop (`Ok`) or something fails.
    fn follow(&self, tracker: &mut Tracker) -> io::Result<()> {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(tracker.fd(), PollFlags::IN),
            ];
            // What could not be read does not wait for another change.
            let retry = Timespec { tv_sec: 0, tv_nsec: RETRY.subsec_nanos().into() };
            match poll(&mut fds, tracker.is_behind().then_some(&retry)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if !fds[0].revents().is_empty() {
                return Ok(());
            }
            tracker.hear()?;
            let started = Instant::now();
            match self.read(tracker) {
                // A table that changes faster than it can be read: the next round reads it.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.shared.failures.fetch_add(1, Ordering::Relaxed);
                }
                result => result?,
            }
            let pause = (started.elapsed() * PAUSE_FACTOR).clamp(MIN_PAUSE, MAX_PAUSE);
            if self.is_stopped_within(pause) {
                return Ok(());
            }
        }
    }

    fn read(&self, tracker: &mut Tracker) -> io::Result<()> {
        let changed = tracker.refresh();
        self.shared.overflows.store(tracker.overflows(), Ordering::Relaxed);
        if changed? {
            self.shared.publish(tracker.snapshot());
        }
        Ok(())
    }

    fn is_stopped_within(&self, pause: Duration) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN)];
        let timeout = Timespec::try_from(pause).ok();
        matches!(poll(&mut fds, timeout.as_ref()), Ok(1..))
    }
}
