//! What has come from a connection's client and was not read: counted, bounded, and ended if it waits for what does not come.
//!
//! QUIC keeps data that is out of order until the rest is there, and data that its reader has no room for. Flow control bounds the
//! data, but not what many small segments of it take, and a client that leaves out the first byte of a stream can have it kept for as
//! long as it answers. The application is told of a stream by its first byte, so that its own deadlines begin there.
//!
//! Beyond the connection's share of the memory it is closed. Always allowed is what its first flow control window permits, and the
//! beginning of as many requests as may be open: who keeps to what was promised is not closed for what we do not read.
//!
//! Clients that send more urgent streams first may be late with what was lost of the others, so time is long.

use std::time::{Duration, Instant};

use expressway_web::memory::Charge;

use super::link::Link;
use super::turn::Turn;
use crate::quic::application::StreamLimits;

/// Checks within the time that data may be missing: it ends late by at most one interval between them.
const LOOKS: u32 = 8;

/// The longest interval between checks.
const LONGEST: Duration = Duration::from_secs(2);

/// What a stream of which little has come takes at most, in bytes: its state and the first packet.
const STREAM: u64 = 2 << 10;

/// See the module.
pub(super) struct Received {
    charge: Charge,
    /// Bytes that it may hold however little memory is left, and however much.
    least: usize,
    most: usize,
    /// When to check for how long data has been missing.
    look: Option<Instant>,
}

impl Received {
    /// Of a new connection.
    pub(super) fn new(link: &Link) -> Self {
        let settings = link.settings();
        let limits = link.setup.application.limits(settings);
        let StreamLimits { bidirectional, unidirectional, .. } = limits;
        let bytes = |sum: u64| usize::try_from(sum).unwrap_or(usize::MAX);
        // What packets of a kilobyte take in addition is less than a quarter.
        let least = bytes(limits.connection_window / 4 * 5 + (bidirectional + unidirectional) * STREAM);
        let most = settings.connection_memory().max(bytes(limits.max_connection_window.saturating_mul(2)));
        Self { charge: link.account.charge_received(), least, most, look: None }
    }

    /// When the next check is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.look
    }

    /// Takes in what is held at the end of a turn, in which was read what could be, and closes the connection if that is too much or
    /// has waited for too long.
    #[inline]
    pub(super) fn follow(&mut self, turn: &mut Turn<'_>) {
        let held = turn.link.transport.received_held();
        if held != self.charge.octets() {
            self.charge.resize(held);
        }
        if held > 0 || self.look.is_some() {
            self.judge(turn, held);
        }
    }

    fn judge(&mut self, turn: &mut Turn<'_>, held: usize) {
        if turn.link.transport.is_closing() {
            self.look = None;
            return;
        }
        if held > self.least && held > turn.worker.ledger.memory().share().min(self.most) {
            turn.worker.stats.refused_received_memory += 1;
            return self.close(turn, "too much unreadable data buffered");
        }
        if !turn.link.transport.received_waits() {
            self.look = None;
            return;
        }
        let timeout = turn.link.settings().missing_timeout;
        let is_due = self.look.is_some_and(|look| look <= turn.now);
        if is_due || self.look.is_none() {
            self.look = Some(turn.now + (timeout / LOOKS).min(LONGEST));
        }
        if is_due
            && let Some(start) = turn.now.checked_sub(timeout)
            && turn.link.transport.received_has_waited(turn.now, start)
        {
            turn.worker.stats.refused_received_timeout += 1;
            self.close(turn, "data has been missing for too long");
        }
    }

    fn close(&mut self, turn: &mut Turn<'_>, reason: &str) {
        tracing::debug!(remote = %turn.link.remote(), held = self.charge.octets(), reason, "closing a connection");
        let code = turn.link.setup.application.excess_code(turn.link.transport.protocol());
        turn.link.transport.close_connection(code, reason);
        self.look = None;
    }
}
