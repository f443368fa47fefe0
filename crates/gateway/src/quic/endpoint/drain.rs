//! Ending one connection, and the whole endpoint.

use std::time::{Duration, Instant};

use expressway_netio::Context;

use super::connection::Connection;
use super::turn::Turn;
use super::{DRAIN_TIMER, Endpoint};
use crate::quic::table::Key;

/// How long a retiring endpoint without connections stays: a client that got a Retry returns with its connection ID a
/// round trip later.
const CROSSING: Duration = Duration::from_secs(2);

/// Connections queued to hear of a drain between two looks at the slice.
const SWEPT: usize = 256;

impl Endpoint {
    /// Makes every connection send GOAWAY in its turn. New ones are refused from now on, unless the process `retires`: then those
    /// that still arrive are of clients that had begun with it, and clients get time to see the GOAWAY.
    pub(super) fn begin_drain<M>(&mut self, context: &mut Context<'_, M>, deadline: Instant, retires: bool) {
        let is_sooner = self.worker.drain.is_none_or(|earlier| deadline < earlier);
        let hurries = self.worker.retiring && !retires;
        if !is_sooner && !hurries {
            return;
        }
        self.worker.retiring = retires;
        let deadline = self.worker.drain.map_or(deadline, |earlier| earlier.min(deadline));
        self.worker.drain = Some(deadline);
        let first = if retires { deadline.min(context.now + CROSSING) } else { deadline };
        self.worker.awaits_crossing = retires;
        context.timers.arm(self.worker.first_timer + DRAIN_TIMER, first);
        self.sweep = Some(0);
    }

    /// The drain's timer is due: a retiring endpoint has waited for connections in transit, or the drain is over.
    pub(super) fn follow_drain<M>(&mut self, context: &mut Context<'_, M>) {
        match self.worker.drain {
            Some(deadline) if context.now < deadline => {
                self.worker.awaits_crossing = false;
                context.timers.arm(self.worker.first_timer + DRAIN_TIMER, deadline);
            }
            _ => self.end_drain(),
        }
    }

    /// The drain deadline is reached: connections that are still open are closed in their turn.
    fn end_drain(&mut self) {
        self.worker.expired = true;
        self.sweep = Some(0);
    }

    /// Queues connections that have not been told of the drain or its end.
    pub(super) fn sweep<M>(&mut self, context: &mut Context<'_, M>) {
        while let Some(from) = self.sweep {
            let mut next = Some(from);
            for _ in 0..SWEPT {
                next = next.and_then(|from| self.table.next_key(from));
                let Some(key) = next else { break };
                self.enqueue(key);
                next = Some(key + 1);
            }
            self.sweep = next;
            if context.slice.spend() {
                break;
            }
        }
    }

    /// Takes a connection that is over out of the table, with everything that leads to it, once all its requests are given
    /// up: many may take several turns.
    pub(super) fn remove<M>(&mut self, context: &mut Context<'_, M>, key: Key) {
        let Some(connection) = self.table.get_mut(key) else { return };
        let Connection { link, upper, .. } = connection;
        let mut part = context.slice.part();
        let mut turn = Turn { worker: &mut self.worker, link, key, now: context.now, slice: &mut part };
        let is_left = upper.with_session(&mut turn, |session, turn| session.abandon(turn));
        context.slice.rejoin(&part);
        context.timers.cancel(self.worker.first_timer + 1 + key);
        if is_left {
            return self.enqueue(key);
        }
        link.trace_closed(&self.worker.tracer);
        let stats = &mut self.worker.stats;
        stats.connections_closed += 1;
        if link.transport.is_timed_out() {
            stats.connections_timed_out += 1;
        }
        if !link.established {
            stats.handshaking -= 1;
            stats.connections_failed += 1;
        }
        let (lost, retransmitted) = link.transport.losses();
        stats.packets_lost += lost;
        stats.bytes_retransmitted += retransmitted;
        let (cids, initial) = (std::mem::take(&mut link.cids), link.initial.take());
        self.table.remove(key, &cids, initial.as_deref());
    }
}
