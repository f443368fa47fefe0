//! Tracing: the datagrams, requests and bursts of connections that a recording selects.
//!
//! A connection notices a recording with its next datagram or turn, and is matched again when the client's address
//! changes. If only some requests are followed, packets are recorded while one of these is in progress.

use data_encoding::HEXLOWER_PERMISSIVE as HEX;
use expressway_netio::Datagram;
use expressway_netio::trace::{Arrival, Channel, Hop, OpenBurst, Tracer, escaped};

use super::Endpoint;
use super::link::Link;
use super::receive::Path;
use crate::quic::stats::Stats;

/// Streams of a connection whose acknowledgement is traced at a time; that of further ones is not.
const UNACKNOWLEDGED: usize = 256;

/// A connection that is followed.
pub(crate) struct Followed {
    number: u64,
    /// The recording that `number` belongs to.
    epoch: u32,
    /// All its requests are followed, and so its packets always.
    all: bool,
    /// The last datagram that came.
    arrival: Arrival,
    /// Requests under way that are followed.
    open: usize,
    /// Streams whose end was sent.
    unacknowledged: Vec<u64>,
}

/// Packets that are being built, and what had been sent before.
#[must_use]
pub(super) struct Building {
    burst: OpenBurst,
    before: (u64, u64),
}

impl Followed {
    fn wants_packets(&self) -> bool {
        self.all || self.open > 0 || !self.unacknowledged.is_empty()
    }
}

impl Link {
    /// What the connection is known by, though it may not be in use any more.
    pub(super) fn first_id(&self) -> Vec<u8> {
        HEX.decode(self.transport.first_id().as_bytes()).unwrap_or_default()
    }

    /// Takes up a recording that has begun, or forgets one that has ended.
    #[inline]
    pub(super) fn follow_tracer(&mut self, tracer: &Tracer) {
        // The client may have moved before the recording ended.
        if tracer.epoch() != self.epoch || self.epoch == 0 && self.followed.is_some() {
            self.meet_tracer(tracer);
        }
    }

    #[cold]
    fn meet_tracer(&mut self, tracer: &Tracer) {
        self.epoch = tracer.epoch();
        let known = self.followed.take().filter(|known| known.epoch == self.epoch);
        if self.epoch == 0 {
            return;
        }
        let remote = self.address.remote;
        let id: Box<str> = self.transport.first_id().into();
        let first = self.first_id();
        let ids = self.cids.iter().map(|cid| &cid.0[..]);
        let ids = ids.chain(self.initial.as_deref()).chain(std::iter::once(&first[..]));
        if !tracer.selects(remote, ids) {
            if let Some(known) = known {
                tracer.record(known.number, Hop::Closed);
            }
            return;
        }
        let epoch = self.epoch;
        let mut followed = known.unwrap_or_else(|| {
            let (all, number) = (tracer.follows_all(), tracer.number());
            let (arrival, unacknowledged) = (Arrival::default(), Vec::new());
            Box::new(Followed { number, epoch, all, arrival, open: 0, unacknowledged })
        });
        followed.all = tracer.follows_all();
        tracer.record(followed.number, Hop::Connection { remote, id });
        self.followed = Some(followed);
    }

    /// The client's address has changed, so the connection is matched again. Its number stays.
    pub(super) fn forget_tracer(&mut self) {
        self.epoch = 0;
    }

    /// It is over.
    pub(super) fn trace_closed(&mut self, tracer: &Tracer) {
        if let Some(followed) = self.followed.take_if(|followed| followed.epoch == tracer.epoch()) {
            tracer.record(followed.number, Hop::Closed);
        }
    }

    /// A datagram has come for it.
    pub(super) fn trace_taken(&mut self, tracer: &Tracer, arrival: Arrival, bytes: usize, path: Path) {
        let Some(followed) = &mut self.followed else { return };
        followed.arrival = arrival;
        if followed.wants_packets() {
            record_taken(tracer, followed.number, arrival, bytes, path);
        }
    }

    /// It was decrypted.
    pub(super) fn trace_opened(&mut self, tracer: &Tracer) {
        let Some(followed) = &mut self.followed else { return };
        followed.arrival.opened = tracer.now();
        if followed.wants_packets() {
            tracer.record_at(followed.arrival.opened, followed.number, Hop::Opened);
        }
    }

    /// A request has come. True if it is followed.
    #[inline]
    pub(crate) fn trace_request(
        &mut self,
        tracer: &Tracer,
        stream: u64,
        text: impl FnOnce() -> String,
    ) -> bool {
        let Some(followed) = &mut self.followed else { return false };
        if !tracer.samples() {
            return false;
        }
        followed.open += 1;
        let (request, datagram) = (escaped(&text()), followed.arrival);
        tracer.record(followed.number, Hop::Request { stream, request, datagram });
        true
    }

    /// A request that is followed has come so far.
    pub(crate) fn trace(&self, tracer: &Tracer, hop: Hop) {
        if let Some(followed) = &self.followed {
            tracer.record(followed.number, hop);
        }
    }

    /// A request that is followed has ended.
    pub(crate) fn trace_end(&mut self, tracer: &Tracer, (stream, bytes, complete): (u64, u64, bool)) {
        let Some(followed) = &mut self.followed else { return };
        // One that began before the client was followed is not counted.
        followed.open = followed.open.saturating_sub(1);
        tracer.record(followed.number, Hop::Written { stream, bytes, complete });
        if complete && followed.unacknowledged.len() < UNACKNOWLEDGED {
            followed.unacknowledged.push(stream);
        }
    }

    /// Tells which streams the client has acknowledged to their ends.
    #[inline]
    pub(super) fn trace_acknowledged(&mut self, tracer: &Tracer) {
        let Self { followed: Some(followed), transport, .. } = self else { return };
        let Followed { number, unacknowledged, .. } = &mut **followed;
        unacknowledged.retain(|stream| {
            let is_gone = transport.is_collected(*stream);
            if is_gone {
                tracer.record(*number, Hop::Acknowledged { stream: *stream });
            }
            !is_gone
        });
    }

    /// Packets are about to be built.
    #[inline]
    pub(super) fn begin_burst(&self, tracer: &Tracer, stats: &Stats) -> Option<Building> {
        let followed = self.followed.as_ref()?;
        let before = (stats.datagrams_sent, stats.bytes_sent);
        followed.wants_packets().then(|| Building { burst: tracer.begin_burst(), before })
    }

    /// They were built, path-MTU probes and what other paths need included.
    pub(super) fn end_burst(&self, tracer: &Tracer, building: Building, stats: &Stats) {
        let number = self.followed.as_ref().map_or(0, |followed| followed.number);
        let Building { burst, before } = building;
        let sent = (stats.datagrams_sent - before.0, stats.bytes_sent - before.1);
        tracer.end_burst(burst, number, sent.0 as usize, sent.1 as usize);
    }
}

impl Endpoint {
    /// Notes when and how a datagram arrived, while a trace is on.
    #[cold]
    pub(super) fn note_arrival(&mut self, datagram: &Datagram<'_>) {
        let tracer = &self.worker.tracer;
        let taken = tracer.now();
        let stamp = datagram.hints.timestamp.zip(tracer.clock());
        let arrived = stamp.and_then(|(stamp, clock)| stamp.monotonic(&clock, taken));
        self.arrival = Some(Arrival { arrived, taken, opened: 0, way: Some(datagram.via.into()) });
    }

    /// The same for one that another worker received.
    #[cold]
    pub(super) fn note_handed_over(&mut self) {
        let taken = self.worker.tracer.now();
        self.arrival = Some(Arrival { arrived: None, taken, opened: 0, way: Some(Channel::Worker) });
    }

    /// Records a datagram that reached no connection: a first one, or one that was dropped.
    #[cold]
    pub(super) fn settle_arrival(&mut self, bytes: usize, path: Path) {
        let Some(arrival) = self.arrival.take() else { return };
        let tracer = &self.worker.tracer;
        if tracer.selects_address(path.1) {
            record_taken(tracer, 0, arrival, bytes, path);
        }
    }
}

fn record_taken(tracer: &Tracer, connection: u64, arrival: Arrival, bytes: usize, (_, remote): Path) {
    let Arrival { arrived, taken, way, .. } = arrival;
    let way = way.unwrap_or(Channel::Kernel);
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    tracer.record_at(taken, connection, Hop::Taken { way, remote, bytes, arrived });
}
