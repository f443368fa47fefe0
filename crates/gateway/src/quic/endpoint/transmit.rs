//! Which connection sends next, and how much.
//!
//! Connections with work to do are in one queue. Each gets a turn: received data is handled, streams are
//! refilled, one burst is sent. A connection that still has packets, or has used up its share of the turn,
//! goes to the end of the queue.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use expressway_netio::udp::MAX_PAYLOAD;
use expressway_netio::{Context, Flow, IoError, PacketIo, Transmit};

use super::Endpoint;
use super::address::Address;
use super::connection::Connection;
use super::link::Link;
use super::turn::Turn;
use crate::quic::engine::Transport;
use crate::quic::settings::{CongestionControl, MIN_UDP_PAYLOAD};
use crate::quic::stats::Stats;
use crate::quic::table::Key;

/// Segments of one GSO message (UDP_MAX_SEGMENTS in include/linux/udp.h was 64 until Linux 6.9).
const SEGMENTS: usize = 64;

/// Datagrams of `segment` bytes that a connection sends in one turn: one whole GSO message. What a few more cost is
/// a message of their own, and the cache that they take from those that have not left yet.
fn burst(segment: usize) -> usize {
    (MAX_PAYLOAD / segment).clamp(1, SEGMENTS)
}

/// Datagrams after which the worker checks for received packets, whatever the clock says: the following
/// flush takes time too.
const TURN: usize = 512;

/// The cost of a message to the kernel in addition to its datagrams, in datagrams.
const MESSAGE: usize = 3;

/// Wake tokens between two looks at the slice.
const WAKES: usize = 64;

/// Packets in a turn on a path that is not in use: challenges and responses. Two are what the engine's PTO
/// retransmits whole if they are lost.
const PROBES: usize = 2;

/// A packet that the pacer schedules within this time is sent now: no timer is finer.
const SLACK: Duration = Duration::from_micros(250);

/// What a burst came to.
#[derive(Clone, Copy, Default)]
struct Burst {
    packets: usize,
    bytes: usize,
    /// The engine has nothing left to send.
    drained: bool,
    /// The pacer holds the next packet back until then.
    release: Option<Instant>,
    /// Packet I/O has no buffer.
    blocked: bool,
    /// The client must prove its address before more goes there.
    unproven: bool,
    /// When it was begun.
    clock: Option<Instant>,
}

impl Endpoint {
    /// One turn of sending, and of all that connections have to do before they send.
    pub(super) fn transmit<M>(
        &mut self,
        context: &mut Context<'_, M>,
        io: &mut dyn PacketIo,
    ) -> Result<Transmit, IoError> {
        self.handle_wakes(context);
        self.sweep(context);
        let (mut budget, mut blocked) = (TURN, false);
        if !self.replies.is_empty() {
            let (packets, bytes, full) = self.replies.send(io)?;
            blocked = full;
            self.worker.stats.datagrams_sent += packets as u64;
            self.worker.stats.bytes_sent += bytes as u64;
            budget = budget.saturating_sub(packets * MESSAGE);
        }
        self.admit(context);
        let began = context.slice.clock();
        while let Some(key) = self.ready.pop_front() {
            let Some(burst) = self.turn(context, io, key)? else { continue };
            if burst.blocked {
                return Ok(Transmit::Blocked);
            }
            budget = budget.saturating_sub(burst.packets + MESSAGE);
            let is_spent = match burst.clock {
                // It sent: the clock was looked at a moment ago.
                Some(clock) => context.slice.spend_until(clock),
                None => context.slice.spend(),
            };
            if is_spent || budget == 0 {
                break;
            }
        }
        self.handshakes.pay(context.slice.clock() - began);
        let has_more = !self.ready.is_empty()
            || !self.handshakes.is_empty()
            || !self.replies.is_empty() && !blocked
            || self.has_wakes()
            || self.sweep.is_some();
        Ok(match has_more {
            true => Transmit::More,
            false if blocked => Transmit::Blocked,
            false => Transmit::Done,
        })
    }

    /// Has requests that can make progress do so in their connections' turns.
    fn handle_wakes<M>(&mut self, context: &mut Context<'_, M>) {
        loop {
            if !self.has_wakes() {
                self.woken.clear();
                self.heard = 0;
                self.wakes.take(&mut self.woken);
                if self.woken.is_empty() {
                    return;
                }
            }
            let end = self.woken.len().min(self.heard + WAKES);
            for at in self.heard..end {
                self.handle_wake(self.woken[at]);
            }
            self.heard = end;
            if end.is_multiple_of(WAKES) && context.slice.spend() {
                return;
            }
        }
    }

    /// Some wake-ups have not been handled.
    fn has_wakes(&self) -> bool {
        self.heard < self.woken.len()
    }

    fn handle_wake(&mut self, token: u64) {
        let (generation, number) = ((token >> 48) as u16, token & crate::h3::STREAM_MASK);
        let key = (token >> 24) as usize & 0xff_ffff;
        let connection =
            self.table.get_mut(key).filter(|connection| connection.link.generation == generation);
        let session = connection.and_then(|connection| connection.upper.session.as_mut());
        match session.is_some_and(|session| session.wake(number)) {
            true => self.enqueue(key),
            false => self.worker.stats.wakeups_stale += 1,
        }
    }

    /// One connection's turn; none if it is gone.
    fn turn<M>(
        &mut self,
        context: &mut Context<'_, M>,
        io: &mut dyn PacketIo,
        key: Key,
    ) -> Result<Option<Burst>, IoError> {
        let now = context.now;
        let Some((connection, ids)) = self.table.get_with_ids(key) else { return Ok(None) };
        connection.queued = false;
        let Connection { link, upper, received, .. } = connection;
        link.follow_tracer(&self.worker.tracer);
        link.trace_acknowledged(&self.worker.tracer);
        let mut part = context.slice.part();
        let mut turn = Turn { worker: &mut self.worker, link, key, now, slice: &mut part };
        upper.progress(&mut turn, &mut self.scratch, ids);
        received.follow(&mut turn);
        context.slice.rejoin(&part);
        // Held back by the pacer it leaves the queue: the timer brings it back.
        let held = Burst { drained: upper.drained, release: connection.release, ..Burst::default() };
        let mut burst = held;
        // What ends has no pace to keep, and may have no other turn.
        if connection.release.is_none_or(|release| release <= now) || link.transport.is_closing() {
            let segment = link.segment_on(io, &mut self.max_payload);
            let traced = link.begin_burst(&self.worker.tracer, &self.worker.stats);
            burst = link.send(io, now, segment, &mut self.worker.stats, &mut self.scratch)?;
            if let Some(traced) = traced {
                link.end_burst(&self.worker.tracer, traced, &self.worker.stats);
            }
            upper.drained = burst.drained;
            connection.release = burst.release;
        }
        // A drained server does not wait for connections that are closing.
        let gone = link.transport.is_closed()
            || self.worker.drain.is_some() && burst.drained && link.transport.is_closing();
        if gone {
            self.remove(context, key);
            return Ok(Some(Burst { blocked: false, ..burst }));
        }
        connection.follow_idleness(now);
        connection.arm(context, self.worker.first_timer + 1 + key);
        let more = if connection.is_cut() || burst.blocked {
            true
        } else if burst.drained {
            // Streams are refilled in turns that begin with nothing left to send, and this was none. If all that was in
            // flight has been acknowledged meanwhile, no packet of the client's will bring another turn about.
            !held.drained && connection.has_room()
        } else {
            burst.release.is_none() && !burst.unproven
        };
        if more {
            connection.queued = true;
            // Whatever found no buffer goes first once there are buffers again.
            match burst.blocked {
                true => self.ready.push_front(key),
                false => self.ready.push_back(key),
            }
        }
        Ok(Some(burst))
    }
}

impl Link {
    /// The size of full datagrams now. While it is the least there is, the interface is asked for its limit,
    /// which also serves the connections to come.
    fn segment_on(&mut self, io: &mut dyn PacketIo, limits: &mut [usize; 2]) -> usize {
        if self.segment == MIN_UDP_PAYLOAD {
            let flow = Flow::new(self.address.local, self.address.remote);
            let limit = io.max_payload(&flow).max(MIN_UDP_PAYLOAD);
            limits[usize::from(self.address.local.is_ipv6())] = limit;
            if self.established && !self.setup.settings.discover_pmtu {
                self.segment = self.transport.max_datagram().min(limit);
            }
        }
        self.segment
    }

    /// Sends one burst on the active path, and what probes other paths need.
    fn send(
        &mut self,
        io: &mut dyn PacketIo,
        now: Instant,
        segment: usize,
        stats: &mut Stats,
        scratch: &mut [u8],
    ) -> Result<Burst, IoError> {
        let settings = &self.setup.settings;
        let paced =
            settings.pacing && settings.congestion == CongestionControl::Bbr2 && !self.transport.is_closing();
        let limit = burst(segment);
        let limit = if paced { (self.transport.quantum() / segment).clamp(1, limit) } else { limit };
        let clock = Instant::now();
        let begun = Burst { clock: Some(clock), ..Burst::default() };
        let mut sender = Sender { transport: &mut self.transport, io, stats, now, clock, paced };
        let (segment, allowance) = self.address.allowance(segment);
        let limit = limit.min(allowance);
        let mut burst = if self.address.several {
            sender.paths(&self.address, segment, limit)?
        } else {
            let flow = Flow::new(self.address.local, self.address.remote);
            let probes = settings.discover_pmtu && self.established && !self.address.is_unproven();
            if probes && sender.transport.is_probing_mtu() {
                // A probe needs a larger place than other datagrams; whatever else is sealed into it only
                // ends a GSO message early.
                let largest = sender.io.max_payload(&flow).min(settings.max_udp_payload);
                if self.probe_limit > segment {
                    let scratch = scratch.get_mut(..self.probe_limit).filter(|_| self.probe_limit > largest);
                    let burst = sender.probe(&flow, largest.max(segment), scratch)?;
                    if burst.drained || burst.blocked || burst.release.is_some() {
                        return Ok(Burst { clock: begun.clock, ..burst });
                    }
                }
            }
            sender.burst(&flow, None, segment, limit)?
        };
        self.address.spend(burst.bytes);
        burst.unproven = self.address.allowance(segment).1 == 0;
        burst.clock = begun.clock;
        Ok(burst)
    }
}

impl Connection {
    /// Sets its timer to the next deadline. Nearly each packet moves that, mostly later: a timer left where it was would
    /// wake a sleeping worker for nothing.
    fn arm<M>(&mut self, context: &mut Context<'_, M>, timer: usize) {
        let deadline = self.deadline();
        if deadline == self.armed {
            return;
        }
        match deadline {
            Some(deadline) => context.timers.arm(timer, deadline),
            None => context.timers.cancel(timer),
        }
        self.armed = deadline;
    }
}

/// A connection's transport on its way through packet I/O.
struct Sender<'a> {
    transport: &'a mut Transport,
    io: &'a mut dyn PacketIo,
    stats: &'a mut Stats,
    /// The time of this turn.
    now: Instant,
    /// The time that datagrams leave at.
    clock: Instant,
    paced: bool,
}

impl Sender<'_> {
    /// Sends on each path of the engine: a burst on the active one, on others only what probes need.
    fn paths(&mut self, address: &Address, segment: usize, limit: usize) -> Result<Burst, IoError> {
        let mut paths = Vec::new();
        self.transport.paths(|local, engine, active| paths.push((local, engine, active)));
        // The active one comes last, so that its burst is the one reported.
        paths.sort_by_key(|(_, _, active)| *active);
        let mut burst = Burst { drained: true, ..Burst::default() };
        for (local, engine, active) in paths {
            let flow = Flow::new(local, address.destination(engine));
            let in_use = active && engine == address.engine;
            let (segment, limit) = if in_use { (segment, limit) } else { (MIN_UDP_PAYLOAD, PROBES) };
            burst = self.burst(&flow, Some(&(local, engine)), segment, limit)?;
            if burst.blocked {
                break;
            }
        }
        Ok(burst)
    }

    /// Sends one datagram that may be a path-MTU probe of up to `largest` bytes. With `scratch` the engine
    /// may probe for more than that: the limit is another interface's, or a router has reported a smaller
    /// MTU meanwhile. The engine only goes on to smaller sizes once such a probe was sent and is lost, so it
    /// is sealed there and dropped here.
    fn probe(&mut self, flow: &Flow, largest: usize, scratch: Option<&mut [u8]>) -> Result<Burst, IoError> {
        let Some(scratch) = scratch else { return self.burst(flow, None, largest, 1) };
        let Self { transport, io, stats, clock, .. } = self;
        let mut burst = Burst::default();
        let sent = io.transmit(flow, largest, &mut |slot| {
            if burst.packets == 1 {
                return 0;
            }
            let mut length = transport.seal(scratch, *clock);
            if length > slot.len() {
                stats.mtu_probes_dropped += 1;
                length = transport.seal(slot, *clock);
            } else {
                slot[..length].copy_from_slice(&scratch[..length]);
            }
            burst.drained = length == 0;
            burst.packets += usize::from(length > 0);
            length
        })?;
        burst.blocked = sent.blocked && !burst.drained;
        burst.bytes = sent.bytes;
        self.count(sent.packets, sent.bytes);
        Ok(burst)
    }

    fn count(&mut self, packets: usize, bytes: usize) {
        if packets > 0 {
            self.stats.bursts_sent += 1;
            self.stats.datagrams_sent += packets as u64;
            self.stats.bytes_sent += bytes as u64;
        }
    }

    /// Seals up to `limit` datagrams of up to `segment` bytes inside the buffers they leave in. `path` asks
    /// the engine for packets of this very path.
    fn burst(
        &mut self,
        flow: &Flow,
        path: Option<&(SocketAddr, SocketAddr)>,
        segment: usize,
        limit: usize,
    ) -> Result<Burst, IoError> {
        let Self { transport, io, now, clock, paced, .. } = self;
        let mut burst = Burst::default();
        let mut train = transport.train(path, *clock);
        let sent = io.transmit(flow, segment, &mut |slot| {
            if burst.packets == limit {
                return 0;
            }
            if *paced && let Some(release) = train.release_time(*now).filter(|at| *at > *now + SLACK) {
                burst.release = Some(release);
                return 0;
            }
            let length = train.seal(slot);
            burst.drained = length == 0;
            burst.packets += usize::from(length > 0);
            length
        })?;
        burst.blocked = sent.blocked && !burst.drained;
        burst.bytes = sent.bytes;
        self.count(sent.packets, sent.bytes);
        Ok(burst)
    }
}
