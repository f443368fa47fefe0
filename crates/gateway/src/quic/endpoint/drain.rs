//! Ending: of one connection, and of the endpoint.

use std::time::Instant;

use expressway_netio::{Context, Slice};

use super::connection::Surroundings;
use super::{DRAIN_TIMER, Endpoint};
use crate::quic::message::Message;
use crate::quic::table::Key;

/// Connections that get in line to hear of a drain between two looks at the slice.
const SWEPT: usize = 256;

impl Endpoint {
    /// Makes every connection send GOAWAY in its turn. New ones are refused from now on.
    pub(super) fn begin_drain(&mut self, context: &mut Context<'_, Message>, deadline: Instant) {
        if self.drain.is_some_and(|earlier| earlier <= deadline) {
            return;
        }
        self.drain = Some(deadline);
        context.timers.arm(DRAIN_TIMER, deadline);
        self.sweep = Some(0);
    }

    /// The drain deadline is reached: connections that are still open are closed in their turn.
    pub(super) fn end_drain(&mut self) {
        self.expired = true;
        self.sweep = Some(0);
    }

    /// Queues connections that have not been told of the drain or its end.
    pub(super) fn sweep(&mut self, context: &mut Context<'_, Message>) {
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

    /// Runs `action` on a connection with what it needs of the endpoint.
    pub(super) fn with_connection<R>(
        &mut self,
        key: Key,
        now: Instant,
        slice: &mut Slice,
        action: impl FnOnce(&mut super::Connection, Key, &mut Surroundings<'_>) -> R,
    ) -> Option<R> {
        let connection = self.table.get_mut(key)?;
        let mut around = Surroundings {
            stats: &mut self.stats,
            notify: &self.notify,
            scratch: &mut self.scratch,
            strings: &mut self.strings,
            cids: &mut self.cids,
            resets: &self.resets,
            ledger: &self.ledger,
            now,
            worker: self.worker,
            draining: self.drain.is_some(),
            expired: self.expired,
            slice,
        };
        Some(action(connection, key, &mut around))
    }

    /// Takes a connection that is over out of the table, with everything that leads to it, once all its requests are given
    /// up: many may take several turns.
    pub(super) fn remove(&mut self, context: &mut Context<'_, Message>, key: Key) {
        let mut part = context.slice.part();
        let is_left = self.with_connection(key, context.now, &mut part, |connection, key, around| {
            connection.with_session(key, around, |session, context| session.abandon(context))
        });
        context.slice.rejoin(&part);
        context.timers.cancel(key + 1);
        if is_left.flatten() == Some(false) {
            return self.enqueue(key);
        }
        let Some(connection) = self.table.get_mut(key) else { return };
        let stats = &mut self.stats;
        stats.connections_closed += 1;
        if connection.transport.is_timed_out() {
            stats.connections_timed_out += 1;
        }
        if !connection.established {
            stats.handshaking -= 1;
            stats.connections_failed += 1;
        }
        let (lost, retransmitted) = connection.transport.losses();
        stats.packets_lost += lost;
        stats.bytes_retransmitted += retransmitted;
        let (cids, initial) = (std::mem::take(&mut connection.cids), connection.initial.take());
        self.table.remove(key, &cids, initial.as_deref());
    }
}
