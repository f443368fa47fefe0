//! Checks whether a client receives at the address that it was seen at: PATH_CHALLENGE without a migration.
//!
//! To the engine, the client is still on its old, validated path. A challenge is therefore a frame in that path's next
//! packet, which goes to the client's current address (RFC 9000, section 8.2). The engine pads that packet to full size
//! if the amplification limit allows it.
//!
//! An answer proves the address to which its challenge was sent. Every challenge has different data, and only an answer
//! to that of the address being probed counts: otherwise a client could answer for an address that it forged.

use std::time::{Duration, Instant};

use crate::quic::engine::Transport;

/// Another challenge is sent after this time, in addition to the engine's loss detection.
const REPEAT: Duration = Duration::from_secs(1);

/// Challenges after which an address counts as unreachable; together what RFC 9000, section 8.2.4 recommends where nothing is
/// known of the path.
const TRIES: usize = 3;

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing is decided.
    Open,
    /// The client receives at the address that is probed.
    Answered,
    /// It does not, or has not answered in time.
    Failed,
}

/// The validation of a connection's address.
#[derive(Debug, Default)]
pub(super) struct Probe {
    /// The data of the challenges for the address that is probed: none when the client's is validated.
    asked: Vec<[u8; 8]>,
    /// When the next challenge is due.
    repeat: Option<Instant>,
}

impl Probe {
    /// When [`Self::handle_repeat`] must be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.repeat
    }

    /// Begins to validate the address that packets go to from now on, in place of any other.
    pub(super) fn begin(&mut self, transport: &mut Transport, now: Instant) {
        self.asked.clear();
        self.ask(transport, now);
    }

    /// Ends the validation without a result.
    pub(super) fn end(&mut self) {
        self.asked.clear();
        self.repeat = None;
    }

    /// Takes in what the engine has opened.
    pub(super) fn handle_arrival(&mut self, transport: &mut Transport) -> Outcome {
        while let Some(data) = transport.answered_challenge() {
            if self.asked.contains(&data) {
                self.end();
                return Outcome::Answered;
            }
        }
        Outcome::Open
    }

    /// Asks again if it is time to.
    pub(super) fn handle_repeat(&mut self, transport: &mut Transport, now: Instant) -> Outcome {
        if self.repeat.is_none_or(|repeat| repeat > now) {
            return Outcome::Open;
        }
        if self.asked.len() == TRIES {
            self.end();
            return Outcome::Failed;
        }
        self.ask(transport, now);
        Outcome::Open
    }

    fn ask(&mut self, transport: &mut Transport, now: Instant) {
        self.repeat = Some(now + REPEAT);
        let mut data = [0; 8];
        // Without a random generator nothing is asked that could be guessed: the address fails in time.
        if boring::rand::rand_bytes(&mut data).is_ok() {
            transport.challenge(data);
        }
        self.asked.push(data);
    }
}
