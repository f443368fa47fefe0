//! Counters of a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use expressway_metrics::{Kind, Metric};
use expressway_netio::stats::{TURN_BOUNDS, TurnTimes};
use expressway_web::Protocol;
use expressway_web::memory::Ledger;

/// Why a connection or a request was ended or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The worker has its maximum of connections, and none is idle.
    Connections,
    /// The address has its maximum.
    Address,
    /// An idle one, for a newcomer.
    Shed,
    /// No connection could be accepted: no descriptors or memory.
    Accept,
    /// No PROXY header from one who has to send it, or a malformed one.
    Proxy,
    /// The handshake failed.
    Handshake,
    /// It took too long.
    HandshakeTimeout,
    /// A header section took too long.
    HeaderTimeout,
    /// It was too large.
    HeaderSize,
    /// What came is no HTTP.
    Malformed,
    /// Too much came that carries nothing: small frames, resets, pings.
    Flood,
    /// A body made no progress.
    RequestTimeout,
    /// A response was not taken.
    ResponseTimeout,
    /// More came that was not read than there is memory for.
    Memory,
}

impl Refusal {
    const NAMES: [&'static str; 14] = [
        "connections",
        "address",
        "shed",
        "accept",
        "proxy",
        "handshake",
        "handshake-timeout",
        "header-timeout",
        "header-size",
        "malformed",
        "flood",
        "request-timeout",
        "response-timeout",
        "memory",
    ];

    /// Its name on the metrics page.
    pub(crate) fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Http10, Protocol::Http11, Protocol::H2];
const WIRES: [&str; 2] = ["h1", "h2"];

/// What a worker has counted.
#[derive(Debug, Default)]
pub struct Stats {
    /// What the worker's connections hold.
    ledger: Option<Arc<Ledger>>,
    pub(crate) accepted: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) idle: AtomicU64,
    pub(crate) handshakes: [AtomicU64; 2],
    pub(crate) requests_active: AtomicU64,
    pub(crate) requests_waiting: AtomicU64,
    requests: [AtomicU64; 3],
    responses: [AtomicU64; 2],
    pub(crate) received: [AtomicU64; 2],
    pub(crate) sent: [AtomicU64; 2],
    refusals: [AtomicU64; Refusal::NAMES.len()],
    turns: Turns,
}

/// [`TurnTimes`] of a worker that others read.
#[derive(Debug, Default)]
struct Turns {
    buckets: [AtomicU64; TURN_BOUNDS.len() + 1],
    sum: AtomicU64,
    longest: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// Takes from a level.
pub(crate) fn sub(level: &AtomicU64, number: u64) {
    level.fetch_sub(number, Ordering::Relaxed);
}

impl Stats {
    /// Of a worker whose connections hold what `ledger` says.
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger: Some(ledger), ..Self::default() }
    }

    pub(crate) fn count_request(&self, protocol: Protocol) {
        if let Some(index) = PROTOCOLS.iter().position(|known| *known == protocol) {
            add(&self.requests[index], 1);
        }
    }

    pub(crate) fn count_response(&self, complete: bool) {
        add(&self.responses[usize::from(!complete)], 1);
    }

    /// Counts a turn: a poll of a connection's task.
    pub(crate) fn count_turn(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        add(&self.turns.buckets[TurnTimes::bucket(time)], 1);
        add(&self.turns.sum, nanoseconds);
        self.turns.longest.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    /// How long turns took: each is a poll of one connection's task.
    pub fn turns(&self) -> TurnTimes {
        TurnTimes {
            buckets: self.turns.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed)),
            sum: self.turns.sum.load(Ordering::Relaxed),
            longest: self.turns.longest.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn refuse(&self, why: Refusal) {
        add(&self.refusals[why as usize], 1);
    }

    /// All values now.
    pub fn fields(&self) -> Vec<Metric> {
        use Kind::{Counter, Gauge};
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let one = |name, help, kind, counter| Metric { name, help, kind, label: None, value: load(counter) };
        let mut all = vec![
            one("tcp_accepted", "TCP connections accepted.", Counter, &self.accepted),
            one("tcp_connections", "Open TCP connections.", Gauge, &self.connections),
            one("tcp_connections_idle", "Of these, connections with no request.", Gauge, &self.idle),
            one("tcp_requests_active", "Requests under way over TCP.", Gauge, &self.requests_active),
            one(
                "tcp_requests_waiting",
                "Requests over TCP that wait for their connection's others.",
                Gauge,
                &self.requests_waiting,
            ),
        ];
        let held = self.ledger.as_ref().map(|ledger| ledger.levels()).unwrap_or_default();
        for (name, help, value) in [
            ("tcp_response_bytes", "Bytes of responses over TCP that wait to be sent.", held.responses),
            (
                "tcp_request_bytes",
                "Bytes of requests over TCP: received and unread, or kept until they are answered.",
                held.requests,
            ),
        ] {
            all.push(Metric { name, help, kind: Gauge, label: None, value: value as u64 });
        }
        let mut several =
            |name, help, label, values: &mut dyn Iterator<Item = (&'static str, &AtomicU64)>| {
                all.extend(values.map(|(of, value)| Metric {
                    name,
                    help,
                    kind: Counter,
                    label: Some((label, of)),
                    value: load(value),
                }));
            };
        several(
            "tcp_handshakes",
            "TLS handshakes completed over TCP, by version.",
            "version",
            &mut ["TLSv1.2", "TLSv1.3"].into_iter().zip(&self.handshakes),
        );
        several(
            "tcp_requests",
            "Requests over TCP, by protocol.",
            "protocol",
            &mut PROTOCOLS.map(Protocol::as_str).into_iter().zip(&self.requests),
        );
        several(
            "tcp_responses",
            "Responses over TCP, by whether they were sent whole.",
            "end",
            &mut ["complete", "incomplete"].into_iter().zip(&self.responses),
        );
        several(
            "tcp_received_bytes",
            "Bytes received over TCP inside of TLS, by protocol.",
            "protocol",
            &mut WIRES.into_iter().zip(&self.received),
        );
        several(
            "tcp_sent_bytes",
            "Bytes sent over TCP inside of TLS, by protocol.",
            "protocol",
            &mut WIRES.into_iter().zip(&self.sent),
        );
        several(
            "tcp_refused",
            "Connections and requests over TCP that were refused or ended by a limit.",
            "reason",
            &mut Refusal::NAMES.into_iter().zip(&self.refusals),
        );
        all
    }
}
