//! Counters of the whole fan-out and of each subscriber.
//!
//! Threads count in atomics that others read. Only the list of subscribers is locked, when one comes or goes, or
//! when statistics are requested. The kernel is then asked for each subscriber's round-trip time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use expressway_netio::stats::{Metric, counters};

use super::options::{Limits, Protocol};
use super::presence::{Host, Presence};
use super::ring;
use super::sys;

/// Subscribers taken from their list at a time.
const PART: usize = 64;

counters! {
    /// Counters of the whole; every one only grows.
    pub(crate) struct Totals {
        /// Datagrams taken into the feed.
        pub(crate) datagrams: AtomicU64,
        /// Payload bytes taken into the feed.
        pub(crate) datagram_bytes: AtomicU64,
        /// Datagrams dropped because they did not come from an allowed source.
        pub(crate) dropped_source: AtomicU64,
        /// Empty datagrams dropped because the framing cannot tell them.
        pub(crate) dropped_empty: AtomicU64,
        /// Times that the multicast group was joined anew after its interface had gone.
        pub(crate) group_rejoins: AtomicU64,
        /// Connections accepted.
        pub(crate) accepted: AtomicU64,
        /// Connections closed at once because their address is not allowed.
        pub(crate) refused_address: AtomicU64,
        /// Connections closed at once because there are as many subscribers as may be.
        pub(crate) refused_limit: AtomicU64,
        /// Connections closed at once because there are as many subscribers from their address as may be.
        pub(crate) refused_limit_address: AtomicU64,
        /// Connections closed at once because as many handshakes are under way as may be, in all or from their address.
        pub(crate) refused_busy: AtomicU64,
        /// Connections closed at once because the process has no file descriptor left.
        pub(crate) refused_descriptors: AtomicU64,
        /// Handshakes that failed: TLS, WebSocket, or a first line that says no start.
        pub(crate) refused_handshake: AtomicU64,
        /// Handshakes that took too long.
        pub(crate) refused_handshake_timeout: AtomicU64,
        /// Handshakes that had taken more than a second and ended to make room for others.
        pub(crate) refused_displaced: AtomicU64,
        /// WebSocket requests whose head is too long, and TLS handshakes of too many bytes.
        pub(crate) refused_size: AtomicU64,
        /// Connections that their peer gave up before it had subscribed.
        pub(crate) abandoned: AtomicU64,
        /// WebSocket requests of pages whose origin is not allowed.
        pub(crate) refused_origin: AtomicU64,
        /// Pages served to browsers.
        pub(crate) pages: AtomicU64,
        /// Sends to subscribers.
        pub(crate) sends: AtomicU64,
        /// Bytes that subscribers' sockets took.
        pub(crate) sent_bytes: AtomicU64,
        /// Datagrams that subscribers' sockets took.
        pub(crate) sent_frames: AtomicU64,
        /// Times that a subscriber jumped over datagrams.
        pub(crate) gaps: AtomicU64,
        /// Datagrams that subscribers jumped over.
        pub(crate) skipped_frames: AtomicU64,
    }
}

counters! {
    /// Additional counters of forwarding in the kernel.
    pub(crate) struct KernelTotals {
        /// Datagrams of a unicast feed that were turned into multicast.
        pub(crate) turned: AtomicU64,
        /// Datagrams that reached the feed's plain socket, from where they are not forwarded: fragments, those behind IPv6 extension headers, and those of another interface.
        pub(crate) dropped_unforwarded: AtomicU64,
        /// Datagrams dropped because they were sent to the private multicast group from outside.
        pub(crate) dropped_private: AtomicU64,
        /// Datagrams dropped because their headers could not be rewritten.
        pub(crate) dropped_rewrite: AtomicU64,
        /// Datagrams dropped because they were for a subscriber that has just gone.
        pub(crate) dropped_unknown: AtomicU64,
        /// Datagrams that a subscriber was not given because it was too many bytes behind.
        pub(crate) skipped_lag_bytes: AtomicU64,
        /// Datagrams that a subscriber was not given because too many waited for its socket.
        pub(crate) skipped_queue: AtomicU64,
        /// Datagrams that a subscriber was not given because one had waited for its socket for too long.
        pub(crate) skipped_lag_age: AtomicU64,
        /// Datagrams that a slow subscriber was not given before its socket had taken everything.
        pub(crate) skipped_catching_up: AtomicU64,
        /// Datagrams that a subscriber was not given because its connection had ended.
        pub(crate) skipped_state: AtomicU64,
        /// Datagrams that a subscriber was not given for want of memory.
        pub(crate) skipped_memory: AtomicU64,
        /// Times that a subscriber fell behind a limit, by the kernel's events.
        pub(crate) fell_behind: AtomicU64,
        /// Connections made, by the kernel's events.
        pub(crate) connected: AtomicU64,
        /// Events of the kernel that were lost because nobody took them in time.
        pub(crate) events_lost: AtomicU64,
        /// Times that the interface of a unicast feed was taken over anew after it had gone.
        pub(crate) interface_returns: AtomicU64,
    }
}

/// Why a subscriber was disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Reason {
    /// It closed the connection.
    Closed,
    /// It reset the connection.
    Reset,
    /// Its kernel did not answer (TCP_USER_TIMEOUT, keepalive).
    TimedOut,
    /// It was more bytes behind than allowed.
    TooManyBytes,
    /// It was further behind in time than allowed.
    TooOld,
    /// It took nothing for as long as the stall limit.
    Stalled,
    /// It sent more than a subscriber has to say.
    Flooded,
    /// It broke TLS or WebSocket.
    Protocol,
    /// The fan-out ended.
    Stopped,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Closed,
        Self::Reset,
        Self::TimedOut,
        Self::TooManyBytes,
        Self::TooOld,
        Self::Stalled,
        Self::Flooded,
        Self::Protocol,
        Self::Stopped,
    ];

    /// The word for metrics labels; unique and stable.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Reset => "reset",
            Self::TimedOut => "timed_out",
            Self::TooManyBytes => "lag_bytes",
            Self::TooOld => "lag_age",
            Self::Stalled => "stalled",
            Self::Flooded => "flooded",
            Self::Protocol => "protocol",
            Self::Stopped => "stopped",
        }
    }
}

/// One subscriber's counters, written by its shard.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) protocol: Protocol,
    pub(crate) shard: usize,
    since: Instant,
    socket: Weak<OwnedFd>,
    pub(crate) sends: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) frames: AtomicU64,
    pub(crate) gaps: AtomicU64,
    pub(crate) skipped: AtomicU64,
    /// Where it is in its ring's stream; without a ring, how far it is behind.
    pub(crate) at_frame: AtomicU64,
    pub(crate) at_byte: AtomicU64,
    /// It has ended its side of the connection, and may still read.
    pub(crate) half_closed: AtomicBool,
}

/// All that is counted.
pub(crate) struct Ledger {
    started: Instant,
    pub(crate) totals: Totals,
    disconnects: [AtomicU64; Reason::ALL.len()],
    subscribers: Mutex<BTreeMap<u64, Arc<Account>>>,
    /// Subscribers and handshakes now, against the limits.
    pub(crate) presence: Presence,
    /// Handshakes now.
    pub(crate) handshakes: AtomicUsize,
    next_id: AtomicU64,
    /// The rings of the modes that have some.
    rings: Vec<Arc<ring::Shared>>,
    /// Counters of the mode that has none.
    pub(crate) kernel: Option<KernelTotals>,
}

impl Ledger {
    /// That of a fan-out by this process, out of these rings.
    pub(crate) fn new(limits: &Limits, rings: Vec<Arc<ring::Shared>>) -> Self {
        Self::with(limits, rings, None)
    }

    /// That of a fan-out by the kernel.
    pub(crate) fn of_kernel(limits: &Limits) -> Self {
        Self::with(limits, Vec::new(), Some(KernelTotals::default()))
    }

    fn with(limits: &Limits, rings: Vec<Arc<ring::Shared>>, kernel: Option<KernelTotals>) -> Self {
        Self {
            started: Instant::now(),
            totals: Totals::default(),
            disconnects: Default::default(),
            subscribers: Mutex::default(),
            presence: Presence::new(limits),
            handshakes: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
            rings,
            kernel,
        }
    }

    fn subscribers(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Account>>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the account of a new subscriber.
    pub(crate) fn open(
        &self,
        peer: SocketAddr,
        protocol: Protocol,
        shard: usize,
        socket: &Arc<OwnedFd>,
    ) -> Arc<Account> {
        let zero = || AtomicU64::new(0);
        let account = Arc::new(Account {
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            peer,
            protocol,
            shard,
            since: Instant::now(),
            socket: Arc::downgrade(socket),
            sends: zero(),
            bytes: zero(),
            frames: zero(),
            gaps: zero(),
            skipped: zero(),
            at_frame: zero(),
            at_byte: zero(),
            half_closed: AtomicBool::new(false),
        });
        self.subscribers().insert(account.id, account.clone());
        account
    }

    /// Closes an account whose subscriber is gone for `reason`.
    pub(crate) fn close(&self, account: &Account, reason: Reason) {
        self.subscribers().remove(&account.id);
        self.disconnects[reason as usize].fetch_add(1, Ordering::Relaxed);
        self.presence.leave(Host::of(account.peer.ip()));
    }

    /// Everything as it is now.
    pub(crate) fn statistics(&self) -> Statistics {
        let accounts = self.accounts();
        let kernel = self.kernel.iter().flat_map(KernelTotals::fields);
        let counters = self.totals.fields().into_iter().chain(kernel).collect();
        Statistics {
            uptime: self.started.elapsed(),
            in_kernel: self.kernel.is_some(),
            handshakes: self.handshakes.load(Ordering::Relaxed),
            counters,
            disconnects: Reason::ALL
                .map(|reason| (reason, self.disconnects[reason as usize].load(Ordering::Relaxed)))
                .to_vec(),
            subscribers: accounts.iter().map(|account| self.subscriber(account)).collect(),
        }
    }

    /// The current subscribers, a part at a time: sending threads wait for this lock when a subscriber comes
    /// or goes.
    fn accounts(&self) -> Vec<Arc<Account>> {
        let mut accounts: Vec<Arc<Account>> = Vec::new();
        loop {
            let behind = accounts.last().map_or(0, |last| last.id + 1);
            let before = accounts.len();
            accounts
                .extend(self.subscribers().range(behind..).take(PART).map(|(_, account)| account.clone()));
            if accounts.len() < before + PART {
                return accounts;
            }
        }
    }

    fn subscriber(&self, account: &Account) -> SubscriberStatistics {
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let (at_byte, at_frame) = (load(&account.at_byte), load(&account.at_frame));
        let (lag_bytes, lag_frames) = match self.rings.get(usize::from(account.protocol.is_websocket())) {
            Some(ring) => (ring.bytes().saturating_sub(at_byte), ring.frames().saturating_sub(at_frame)),
            None => (at_byte, at_frame),
        };
        let tcp = account.socket.upgrade().and_then(|socket| sys::tcp_info(socket.as_fd()).ok());
        SubscriberStatistics {
            id: account.id,
            peer: account.peer,
            protocol: account.protocol,
            thread: account.shard,
            age: account.since.elapsed(),
            sends: load(&account.sends),
            bytes: load(&account.bytes),
            frames: load(&account.frames),
            gaps: load(&account.gaps),
            skipped: load(&account.skipped),
            lag_bytes,
            lag_frames,
            half_closed: account.half_closed.load(Ordering::Relaxed),
            rtt: tcp.map(|tcp| tcp.rtt),
            retransmits: tcp.map(|tcp| tcp.retransmits),
            unsent_bytes: tcp.map(|tcp| tcp.unsent_bytes),
        }
    }
}

/// What a fan-out has done.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Since it began.
    pub uptime: Duration,
    /// The kernel forwards, and not this process.
    pub in_kernel: bool,
    /// Handshakes under way now.
    pub handshakes: usize,
    /// Counters of the whole.
    pub counters: Vec<Metric>,
    /// Subscribers disconnected, by reason.
    pub disconnects: Vec<(Reason, u64)>,
    /// The subscribers of now, by identifier.
    pub subscribers: Vec<SubscriberStatistics>,
}

impl Statistics {
    /// The counter of that name.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|counter| counter.name == name).map(|counter| counter.value)
    }

    /// Subscribers disconnected for `reason`.
    pub fn disconnected(&self, reason: Reason) -> u64 {
        self.disconnects.iter().find(|(own, _)| *own == reason).map_or(0, |(_, count)| *count)
    }
}

/// One subscriber.
#[derive(Clone, Debug)]
pub struct SubscriberStatistics {
    /// Counts subscribers from 1, in the order in which they came.
    pub id: u64,
    /// Its address.
    pub peer: SocketAddr,
    /// What it speaks.
    pub protocol: Protocol,
    /// The thread that sends to it.
    pub thread: usize,
    /// Since it came.
    pub age: Duration,
    /// Sends to it.
    pub sends: u64,
    /// Bytes that its socket took.
    pub bytes: u64,
    /// Datagrams that its socket took.
    pub frames: u64,
    /// Times that it jumped over datagrams.
    pub gaps: u64,
    /// Datagrams that it jumped over.
    pub skipped: u64,
    /// Bytes of the stream that its socket has not taken yet.
    pub lag_bytes: u64,
    /// Datagrams of the stream that its socket has not taken yet.
    pub lag_frames: u64,
    /// It has ended its side of the connection, and may still read, or have gone.
    pub half_closed: bool,
    /// Smoothed round-trip time (`tcpi_rtt`).
    pub rtt: Option<Duration>,
    /// Segments retransmitted in all (`tcpi_total_retrans`).
    pub retransmits: Option<u64>,
    /// Bytes that the kernel has taken and not sent yet (`tcpi_notsent_bytes`).
    pub unsent_bytes: Option<u64>,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

/// Adds to a counter that no other thread adds to, which takes no locked instruction.
pub(crate) fn add_alone(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

/// What a shard has counted in a turn, of the totals that all shards add to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sends: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) sent_frames: u64,
    pub(crate) gaps: u64,
    pub(crate) skipped_frames: u64,
}

impl Tally {
    /// Adds it to the totals.
    pub(crate) fn tell(self, totals: &Totals) {
        for (counter, value) in [
            (&totals.sends, self.sends),
            (&totals.sent_bytes, self.sent_bytes),
            (&totals.sent_frames, self.sent_frames),
            (&totals.gaps, self.gaps),
            (&totals.skipped_frames, self.skipped_frames),
        ] {
            if value != 0 {
                add(counter, value);
            }
        }
    }
}
