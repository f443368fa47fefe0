//! A subscriber of a feed that the kernel forwards: what it was given, how much its socket has accepted, and how it
//! ends.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use expressway_xbpf::{FanoutPrograms, FanoutRecord};
use rustix::net::sockopt;

use super::super::service::FanoutError;
use super::super::stats::{Account, Reason, Totals, add};
use super::super::sys;
use super::super::transport::{self, Transport};
use super::group::GroupSocket;

/// Times, 100 µs apart, that a fresh connection is looked at for being established.
const SETTLE: usize = 100;

/// `include/net/tcp_states.h`
pub(super) const ESTABLISHED: u8 = 1;
const SYN_RECV: u8 = 3;
pub(super) const CLOSE: u8 = 7;
pub(super) const CLOSE_WAIT: u8 = 8;

/// A subscriber: its connection, its socket of the group, and its account as it was at the last look.
pub(super) struct Link {
    transport: Transport,
    pub(super) account: Arc<Account>,
    pub(super) socket: GroupSocket,
    /// At the last look.
    record: FanoutRecord,
    taken: u64,
    /// Datagrams that its socket took, by the last look.
    frames: u64,
    /// Since when its socket has accepted nothing of what it was given.
    stuck: Option<Instant>,
    /// Since when it has been quiet: when it ended its side of the connection, or since then was given something.
    half_closed: Option<Instant>,
}

/// What a look at a subscriber saw.
pub(super) struct Looked {
    /// It was given something since the last look.
    given: bool,
    /// Its TCP state.
    state: u8,
}

impl Link {
    /// One that was given nothing yet.
    pub(super) fn new(transport: Transport, account: Arc<Account>, socket: GroupSocket) -> Self {
        Self {
            transport,
            account,
            socket,
            record: FanoutRecord::default(),
            taken: 0,
            frames: 0,
            stuck: None,
            half_closed: None,
        }
    }

    /// Brings its account up to date.
    pub(super) fn account(
        &mut self,
        programs: &FanoutPrograms,
        totals: &Totals,
    ) -> Result<Looked, FanoutError> {
        // After the end there is none any more.
        let record = programs.record(self.socket.cookie)?.unwrap_or(self.record);
        let socket = self.transport.socket().as_fd();
        // In this order, what is acknowledged in between is counted twice rather than not at all.
        let unacknowledged = sys::unacknowledged_bytes(socket).unwrap_or(0);
        let info = sys::tcp_info(socket).ok();
        let acknowledged = info.as_ref().map_or(self.taken, |info| info.acknowledged_bytes);
        let taken = (acknowledged + unacknowledged).clamp(self.taken, record.bytes.max(self.taken));
        let lag = record.bytes.saturating_sub(taken);
        let waiting = if lag == 0 { 0 } else { u64::from(record.queue) };
        let frames = record.datagrams.saturating_sub(waiting).max(self.frames);
        let account = &self.account;
        let grown = |cell: &AtomicU64, total, now: u64, before: u64| {
            cell.store(now, Ordering::Relaxed);
            add(total, now.saturating_sub(before));
        };
        grown(&account.sends, &totals.sends, record.datagrams, self.record.datagrams);
        grown(&account.bytes, &totals.sent_bytes, taken, self.taken);
        grown(&account.frames, &totals.sent_frames, frames, self.frames);
        grown(&account.gaps, &totals.gaps, record.gaps, self.record.gaps);
        grown(&account.skipped, &totals.skipped_frames, record.skipped, self.record.skipped);
        account.at_byte.store(lag, Ordering::Relaxed);
        account.at_frame.store(waiting, Ordering::Relaxed);
        let given = record.datagrams != self.record.datagrams;
        if taken != self.taken || lag == 0 {
            self.stuck = None;
        }
        (self.record, self.taken, self.frames) = (record, taken, frames);
        Ok(Looked { given, state: info.map_or(CLOSE, |info| info.state) })
    }

    /// Decides by what it has accepted, and when, whether it must be disconnected, and why.
    pub(super) fn judge(&mut self, looked: &Looked, stall: Duration, now: Instant) -> Option<Reason> {
        let Looked { given, state } = *looked;
        if state == CLOSE {
            // Its event was lost, or is on its way.
            return Some(self.ended());
        }
        if self.record.bytes > self.taken {
            let stuck = *self.stuck.get_or_insert(now);
            return (now - stuck > stall).then_some(Reason::Stalled);
        }
        if let Some(since) = &mut self.half_closed {
            if given {
                *since = now;
            }
            return (now - *since > stall).then_some(Reason::Closed);
        }
        None
    }

    /// It has ended its side of the connection.
    pub(super) fn half_close(&mut self) {
        self.half_closed.get_or_insert_with(Instant::now);
        self.account.half_closed.store(true, Ordering::Relaxed);
    }

    /// Whether its socket has taken all that it was given.
    pub(super) fn is_done(&self) -> bool {
        self.record.bytes <= self.taken
    }

    /// Why its connection has ended.
    pub(super) fn ended(&self) -> Reason {
        match sockopt::socket_error(&**self.transport.socket()) {
            Ok(Err(error)) | Err(error) => transport::reason(error),
            Ok(Ok(())) => Reason::Closed,
        }
    }

    /// Ends the subscription: in order where its socket has taken all that it was given, else by a reset, so that a
    /// part of a datagram is not taken for the whole.
    pub(super) fn end(self, programs: &FanoutPrograms, reason: Reason) {
        let done = self.is_done();
        let Self { mut transport, socket, .. } = self;
        socket.end(programs);
        if done || reason == Reason::Closed {
            transport.close();
        } else {
            transport.abort();
        }
    }
}

/// The kernel lets a connection be accepted an instant before it is established (`tcp_check_req` in
/// net/ipv4/tcp_minisocks.c): only then do the programs know it, and before may it be put into no map.
pub(super) fn wait_until_made(connection: &OwnedFd) {
    for _ in 0..SETTLE {
        if !sys::tcp_info(connection.as_fd()).is_ok_and(|info| info.state == SYN_RECV) {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}
