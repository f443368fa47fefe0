//! Ending: of one connection, and of the endpoint.

use std::time::Instant;

use expressway_netio::Context;

use super::connection::Surroundings;
use super::{DRAIN_TIMER, Endpoint};
use crate::h3::code;
use crate::quic::engine::CloseKind;
use crate::quic::message::Message;
use crate::quic::table::Key;

impl Endpoint {
    /// Says GOAWAY on every connection. New ones are refused from now on.
    pub(super) fn begin_drain(&mut self, context: &mut Context<'_, Message>, deadline: Instant) {
        if self.drain.is_some_and(|earlier| earlier <= deadline) {
            return;
        }
        self.drain = Some(deadline);
        context.timers.arm(DRAIN_TIMER, deadline);
        for key in self.table.keys() {
            self.with_connection(key, context.now, |connection, key, around| {
                connection.with_session(key, around, |session, context| session.goaway(context));
            });
            self.enqueue(key);
        }
    }

    /// The deadline of the drain has come: what is still open is closed.
    pub(super) fn end_drain(&mut self) {
        self.expired = true;
        for key in self.table.keys() {
            if let Some(connection) = self.table.get_mut(key) {
                connection.transport.close(CloseKind::Application, code::NO_ERROR, "");
            }
            self.enqueue(key);
        }
    }

    /// Runs `action` on a connection with what it needs of the endpoint.
    pub(super) fn with_connection<R>(
        &mut self,
        key: Key,
        now: Instant,
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
            now,
            worker: self.worker,
            draining: self.drain.is_some(),
        };
        Some(action(connection, key, &mut around))
    }

    /// Takes a connection out of the table, with everything that leads to it.
    pub(super) fn remove(&mut self, context: &mut Context<'_, Message>, key: Key) {
        self.with_connection(key, context.now, |connection, key, around| {
            connection.with_session(key, around, |session, context| session.abandon(context));
        });
        context.timers.cancel(key + 1);
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
