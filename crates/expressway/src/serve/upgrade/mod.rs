//! Another process in this one's place, without losing a connection (`expressway upgrade`, SIGUSR2).
//!
//! ```text
//!   this process                            launcher                    the next one: same arguments, binary on disk
//!   ────────────                            ────────                    ───────────
//!   start ──────── a socketpair's end ────▶ exec ─────────────────────▶ reads the configuration, takes descriptors
//!   leaves the cache's disk store     ◀──────────── prepared ──────────
//!   gives up AF_XDP                   ◀──────────── built ─────────────  has all but the data path
//!   receives no more                  ◀──────────── opened ────────────
//!   retires                           ◀──────────── ready ─────────────  workers run
//!   serves what it has ◀══ datagrams of its connections ═══════════════
//! ```
//!
//! Each step waits for a word from this process, and until `ready` every step can be undone. Whatever goes wrong before then ends in one
//! procedure, which takes all of it back. After `ready`, this process retires: GOAWAY to HTTP/2 and HTTP/3, `connection: close` to HTTP/1.1.
//!
//! * [`launcher`] starts the next process: a small one that was there before privileges were given up.
//! * [`handover`] is what the two say to each other, and the descriptors that go with it.
//! * [`inheritance`] is the next process's side, [`attempt`] is this one's.
//! * [`generation`] shows this process among those before it.
//! * [`forward`] takes datagrams from the newest process to older ones.
//!
//! # Decisions
//!
//! The next process gets the listening sockets themselves (UDP, TCP, admin), so no backlog and no queued datagram is lost.
//!
//! Only the newest process receives; all of them send, by the kernel sockets that they share. Two processes that receive would have to
//! forward in both directions. A BPF program that steers needs a privilege, and cannot steer what AF_XDP delivers.
//!
//! A connection ID says which process issued it, in bits that are hidden by the key of its check bytes. The newest process has a socketpair
//! to each older one, so none of them depends on a process in between.
//!
//! AF_XDP sockets are not passed on. The older process gives them up as it does when an interface goes, and kernel sockets serve until the
//! newer one has its own.

pub(crate) mod attempt;
pub(crate) mod forward;
pub(crate) mod generation;
pub(crate) mod handover;
pub(crate) mod inheritance;
pub(crate) mod launcher;

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};

use expressway_gateway::admin::{Feed, Piece};
use serde_json::{Value, json};

/// Lines of a report that may wait: all that an upgrade ever says.
const LINES: usize = 32;

/// Who is told how an upgrade goes, line by line in JSON. The last has `generation` or `error`.
#[derive(Debug)]
pub(crate) struct Report(SyncSender<String>);

impl Report {
    /// With what the admin listener tells its client.
    pub(crate) fn new() -> (Self, Box<dyn Feed>) {
        let (sender, lines) = sync_channel(LINES);
        (Self(sender), Box::new(Lines(lines)))
    }

    pub(crate) fn step(&self, step: &str) {
        self.say(&json!({ "step": step }));
    }

    pub(crate) fn done(&self, generation: u64, pid: u32) {
        self.say(&json!({ "generation": generation, "pid": pid }));
    }

    pub(crate) fn failed(&self, error: &str) {
        self.say(&json!({ "error": error }));
    }

    fn say(&self, line: &Value) {
        match self.0.try_send(format!("{line}\n")) {
            // Nobody listens any more; the log has it too.
            Ok(()) | Err(TrySendError::Disconnected(_) | TrySendError::Full(_)) => {}
        }
    }
}

struct Lines(Receiver<String>);

impl Feed for Lines {
    fn poll(&mut self) -> Piece {
        match self.0.try_recv() {
            Ok(line) => Piece::Data(line.into_bytes()),
            Err(TryRecvError::Empty) => Piece::Nothing,
            Err(TryRecvError::Disconnected) => Piece::End,
        }
    }
}
