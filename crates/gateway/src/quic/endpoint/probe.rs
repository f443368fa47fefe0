//! Whether a client receives at the address that it was seen at: PATH_CHALLENGE without a migration.
//!
//! The engine validates an address only as a path of its own, keeps the path for good, and accepts no more of
//! them than connection IDs. So there is one such path for all the ports that a NAT may assign: its address
//! is [`PLACE`], which belongs to nobody, and its challenges are sent to the client's current address. In the
//! engine's view it never becomes fully validated, because challenges are shorter than the 1200 bytes that it
//! requires; so after each answer it wants another challenge, which is encrypted and discarded.
//!
//! RFC 9000, section 8.2.1 has challenges expanded to 1200 bytes, as far as amplification allows, to verify
//! that the path carries such datagrams. After a rebinding this is left to the data: the route is the same as
//! far as the NAT, and if full-size datagrams are lost, the connection's path-MTU discovery starts over.
//!
//! All outstanding challenges were sent to one address, and an answer proves that address. Before another is
//! challenged they must be answered or have timed out, otherwise a client could answer for an address that it
//! forged. The engine's count of answers decides, not the fact that it has something to send on the path:
//! that may be its own answer to a challenge that a client sent from a forged address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::quic::engine::Transport;

/// The address of the engine's path for challenges.
pub(super) const PLACE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A short header with the longest ID, a packet number, a PATH_CHALLENGE and the AEAD tag. With an empty ID
/// there is room for 33 bytes of frames, and a NEW_CONNECTION_ID with our IDs has 36 at least.
pub(super) const CHALLENGE: usize = 1 + 20 + 4 + 9 + 16;

/// Challenges are repeated after this time, in addition to the engine's loss detection.
const REPEAT: Duration = Duration::from_secs(1);

/// Repetitions after which an address counts as unreachable; together what RFC 9000, section 8.2.4
/// recommends where nothing is known of the path.
const TRIES: u8 = 3;

/// Packets that the engine may want to send on the path after a timeout, plus one: a challenge, two PTO
/// probes.
const DRAIN: usize = 4;

/// Packets sealed while the engine takes the path to be in use: an acknowledgement may come before the
/// challenge. It puts stream data in them too, and a PTO retransmits no more than two packets of a path.
const FIRST: usize = 2;

type Packet = [u8; CHALLENGE];

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing is decided.
    Open,
    /// The client receives at the address that is probed.
    Answered,
    /// It does not, or says nothing.
    Failed,
}

/// The validation of a connection's address.
#[derive(Debug)]
pub(super) struct Probe {
    local: SocketAddr,
    /// The address that is probed; `None` when the client's is validated.
    target: Option<SocketAddr>,
    /// Where challenges that may still be answered were sent, and how many.
    asked: SocketAddr,
    asked_open: u64,
    /// Answers that were taken in.
    answers: u64,
    /// The engine has its path.
    ready: bool,
    /// A challenge is due, once the path is in use no more.
    due: bool,
    tries: u8,
    repeat: Option<Instant>,
    /// Challenges to send to `target`.
    waiting: Vec<Packet>,
}

impl Probe {
    pub(super) fn new(local: SocketAddr) -> Self {
        Self {
            local,
            target: None,
            asked: PLACE,
            asked_open: 0,
            answers: 0,
            ready: false,
            due: false,
            tries: 0,
            repeat: None,
            waiting: Vec::new(),
        }
    }

    /// The engine has a path for challenges. Until then datagrams from a new address must be given to it as
    /// if they came from [`PLACE`], so that it makes one.
    pub(super) fn is_ready(&self) -> bool {
        self.ready
    }

    /// When [`Self::handle_repeat`] must be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.repeat
    }

    /// Begins to validate `target`, in place of any other.
    pub(super) fn begin(&mut self, transport: &mut Transport, target: SocketAddr, now: Instant) {
        self.withdraw();
        self.look(transport);
        self.target = Some(target);
        self.tries = 0;
        self.repeat = Some(now + REPEAT);
        self.ask(transport);
    }

    /// Ends the validation without a result.
    pub(super) fn end(&mut self) {
        self.withdraw();
        (self.target, self.repeat, self.due) = (None, None, false);
    }

    /// Takes in what the engine has opened.
    pub(super) fn handle_arrival(&mut self, transport: &mut Transport) -> Outcome {
        let Some(target) = self.target else { return Outcome::Open };
        let is_answered = self.look(transport);
        if is_answered && self.asked == target {
            // The engine wants another one, which is left pending until there is something to ask.
            self.end();
            return Outcome::Answered;
        }
        self.due |= is_answered;
        if self.due && !self.is_in_use(transport) {
            self.due = false;
            // Beside a challenge, what came of the path's being in use.
            self.drain(transport, DRAIN);
            self.ask(transport);
        }
        Outcome::Open
    }

    /// One of the engine's timers has fired. If it was that of the path for challenges, all outstanding ones
    /// are void, and the engine wants to send something.
    pub(super) fn handle_timeout(&mut self, transport: &mut Transport) {
        let Some(target) = self.target else { return };
        if self.is_in_use(transport) {
            // One packet goes to whoever has been silent, as long as it is who was asked.
            self.due = true;
            if self.asked == target && self.waiting.is_empty() {
                self.seal(transport, target, 1);
            }
            return;
        }
        self.look(transport);
        if self.asked_open == 0 {
            // Those just drained never leave: there may be PTO probes in place of a challenge among them.
            self.drain(transport, DRAIN);
            self.withdraw();
            self.ask(transport);
        }
    }

    /// Asks again if it is time to.
    pub(super) fn handle_repeat(&mut self, transport: &mut Transport, now: Instant) -> Outcome {
        if self.repeat.is_none_or(|repeat| repeat > now) {
            return Outcome::Open;
        }
        self.tries += 1;
        if self.tries >= TRIES {
            self.end();
            return Outcome::Failed;
        }
        self.repeat = Some(now + REPEAT);
        self.ask(transport);
        Outcome::Open
    }

    /// The next packet to send to the address that is probed.
    pub(super) fn peek(&self) -> Option<&[u8]> {
        self.waiting.first().map(|packet| &packet[..])
    }

    /// It has left.
    pub(super) fn pop(&mut self) {
        self.waiting.remove(0);
    }

    /// Whether packets wait to be sent.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes in how the challenges that have left stand. True if one was answered.
    fn look(&mut self, transport: &Transport) -> bool {
        let (answers, open) = transport.challenges(self.local, PLACE);
        let new = answers.saturating_sub(self.answers);
        self.answers = answers;
        // Others may be open, which never left.
        let open = u64::try_from(open).unwrap_or(u64::MAX);
        self.asked_open = self.asked_open.saturating_sub(new).min(open);
        new > 0
    }

    /// Has the engine make a challenge. One for another address than those under way never leaves: it only
    /// sees to it that the engine's timer runs, which ends them.
    fn ask(&mut self, transport: &mut Transport) {
        let Some(target) = self.target else { return };
        let in_use = self.is_in_use(transport);
        if in_use && self.ready {
            self.due = true;
            return;
        }
        transport.request_challenge(self.local, PLACE);
        let most = if in_use { FIRST } else { DRAIN };
        if self.asked_open == 0 || self.asked == target {
            self.ready |= self.seal(transport, target, most);
        } else {
            self.ready |= !self.drain(transport, most).is_empty();
        }
    }

    /// Has up to `most` packets of the engine's sent to `target`. True if there were any.
    fn seal(&mut self, transport: &mut Transport, target: SocketAddr, most: usize) -> bool {
        let packets = self.drain(transport, most);
        if packets.is_empty() {
            return false;
        }
        // One is the challenge, if there was room for it.
        self.asked = target;
        self.asked_open += 1;
        // A path in use may have put an acknowledgement in front of it.
        self.waiting = packets;
        self.waiting.truncate(FIRST);
        true
    }

    /// What waits is not sent any more. It still counts as asked: a part may have left.
    fn withdraw(&mut self) {
        self.waiting.clear();
    }

    fn drain(&self, transport: &mut Transport, most: usize) -> Vec<Packet> {
        let mut packets = Vec::new();
        while packets.len() < most {
            // A shorter ID leaves more room, which the engine pads.
            let mut packet = [0; CHALLENGE];
            if transport.seal_probe(&mut packet, self.local, PLACE) != CHALLENGE {
                break;
            }
            packets.push(packet);
        }
        packets
    }

    /// The engine takes its path for challenges to be the one in use: so it does from the datagram that has
    /// it make the path to the next one.
    fn is_in_use(&self, transport: &Transport) -> bool {
        let mut in_use = false;
        transport.paths(|_, remote, active| in_use |= active && remote == PLACE);
        in_use
    }
}
