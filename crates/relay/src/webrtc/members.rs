//! Who is in a room: its sessions, whose turn it is, and what they share.

use super::message_log::MessageLog;
use super::payloads::Payloads;
use super::session::RoomContext;
use crate::rtp::Room;
use crate::rtp::history::Position;
use crate::status::WebRtcCounters;

/// A room's sessions, and what they share.
#[derive(Debug, Default)]
pub(crate) struct RoomMembers {
    pub(super) publisher: Option<usize>,
    /// All sessions in the room.
    pub(super) sessions: Vec<usize>,
    /// How many of them are players.
    pub(super) players: usize,
    /// Index in `sessions` of the one served next.
    pub(super) turn: usize,
    /// How many in a row have been sent everything.
    pub(super) idle: usize,
    /// The ends of history and log when `idle` was last reset.
    seen: (Position, u64),
    pub(super) payloads: Payloads,
    pub(super) log: MessageLog,
    /// What is counted.
    pub(crate) counters: WebRtcCounters,
}

impl RoomMembers {
    /// Resets `idle` if there are new packets or messages.
    pub(crate) fn look(&mut self, room: &Room) {
        let now = (room.history().head(), self.log.head() + self.log.channels().len() as u64);
        if std::mem::replace(&mut self.seen, now) != now {
            self.idle = 0;
        }
    }

    /// Whether a session may have something left to be sent.
    pub(crate) fn has_news(&self) -> bool {
        self.idle < self.sessions.len()
    }

    /// A session has left. The others' turns stay as they are.
    pub(super) fn remove(&mut self, session: usize) {
        let Some(place) = self.sessions.iter().position(|member| *member == session) else { return };
        self.sessions.remove(place);
        self.turn -= usize::from(place < self.turn);
        if self.turn >= self.sessions.len() {
            self.turn = 0;
        }
        self.idle = 0;
    }

    pub(super) fn context<'a>(&'a mut self, room: &'a mut Room) -> RoomContext<'a> {
        RoomContext { room, log: &mut self.log, counters: &mut self.counters }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_leaves_takes_nobodys_turn() {
        let mut members = RoomMembers { sessions: vec![1, 2, 3, 4], turn: 2, ..RoomMembers::default() };
        members.remove(1);
        assert_eq!(members.sessions[members.turn], 3, "one before");
        members.remove(3);
        assert_eq!(members.sessions[members.turn], 4, "the one whose turn it was");
        members.remove(4);
        assert_eq!(members.sessions[members.turn], 2, "the last");
        members.remove(7);
        members.remove(2);
        assert_eq!((members.turn, members.sessions.len()), (0, 0));
    }
}
