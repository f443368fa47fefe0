//! Counters of a running load.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Counters of one run; one thread.
pub(crate) struct Count {
    counting: Cell<bool>,
    requests: Cell<u64>,
    bytes: Cell<u64>,
    errors: Cell<u64>,
    last_error: RefCell<Option<String>>,
    /// Microseconds from sending a request to the end of its body.
    latency: RefCell<Histogram<u64>>,
    handshakes: Cell<u64>,
    /// Datagrams and bytes received by connections that are closed.
    received: Cell<(u64, u64)>,
}

impl Default for Count {
    fn default() -> Self {
        Self {
            counting: Cell::new(false),
            requests: Cell::new(0),
            bytes: Cell::new(0),
            errors: Cell::new(0),
            last_error: RefCell::new(None),
            handshakes: Cell::new(0),
            received: Cell::new((0, 0)),
            // One microsecond to a minute, two significant digits.
            latency: RefCell::new(Histogram::new_with_bounds(1, 60_000_000, 2).expect("constant bounds")),
        }
    }
}

/// The JSON document.
#[derive(Serialize)]
pub(crate) struct Report {
    seconds: f64,
    connections: usize,
    requests: u64,
    /// Body bytes, whole responses and parts of unfinished ones.
    bytes: u64,
    errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// Datagrams received from the server.
    datagrams: u64,
    /// UDP payload bytes received from the server.
    datagram_bytes: u64,
    latency_us_p50: u64,
    latency_us_p99: u64,
    latency_us_p999: u64,
    /// Handshakes completed.
    handshakes: u64,
    /// CPU of this process while counting, nanoseconds.
    client_ns: u64,
}

impl Count {
    pub(crate) fn start(&self) {
        self.counting.set(true);
    }

    pub(crate) fn body(&self, bytes: usize) {
        if self.counting.get() {
            self.bytes.set(self.bytes.get() + bytes as u64);
        }
    }

    pub(crate) fn done(&self, took: Duration) {
        if self.counting.get() {
            self.requests.set(self.requests.get() + 1);
            self.latency.borrow_mut().saturating_record(took.as_micros() as u64);
        }
    }

    /// A handshake is complete.
    pub(crate) fn connected(&self) {
        if self.counting.get() {
            self.handshakes.set(self.handshakes.get() + 1);
        }
    }

    /// A connection ends that has received so much.
    pub(crate) fn closed(&self, datagrams: u64, bytes: u64) {
        let (all_datagrams, all_bytes) = self.received.get();
        self.received.set((all_datagrams + datagrams, all_bytes + bytes));
    }

    /// Datagrams and bytes of all connections that have ended.
    pub(crate) fn udp_received(&self) -> (u64, u64) {
        self.received.get()
    }

    pub(crate) fn failed(&self, error: String) {
        self.errors.set(self.errors.get() + 1);
        *self.last_error.borrow_mut() = Some(error);
    }

    pub(crate) fn report(
        &self,
        elapsed: Duration,
        connections: usize,
        (datagrams, datagram_bytes): (u64, u64),
        client_ns: u64,
    ) -> Report {
        self.counting.set(false);
        let latency = self.latency.borrow();
        Report {
            seconds: elapsed.as_secs_f64(),
            connections,
            requests: self.requests.get(),
            bytes: self.bytes.get(),
            errors: self.errors.get(),
            last_error: self.last_error.borrow().clone(),
            datagrams,
            datagram_bytes,
            latency_us_p50: latency.value_at_quantile(0.5),
            latency_us_p99: latency.value_at_quantile(0.99),
            latency_us_p999: latency.value_at_quantile(0.999),
            handshakes: self.handshakes.get(),
            client_ns,
        }
    }
}
