//! The functions of a connection that an endpoint calls.

use std::time::Instant;

use super::connection::Connection;
use crate::quic::{self, Transport, Turn};

impl quic::Session for Connection {
    fn handle_readable(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool {
        while !turn.link.transport.is_closing() {
            let Some(stream) = self.unread.pop_front().or_else(|| turn.link.transport.next_readable()) else {
                break;
            };
            if let Err(error) = self.read(turn, stream, scratch) {
                self.fail(turn, stream, &error);
            }
            if turn.spend() {
                return true;
            }
        }
        self.is_fresh = false;
        self.with_session(turn, |session, turn| session.handle_readable(turn, scratch))
    }

    fn has_unread(&self) -> bool {
        let session = self.inner.as_ref().filter(|_| !self.is_over);
        self.is_fresh || !self.unread.is_empty() || session.is_some_and(|session| session.has_unread())
    }

    fn wake(&mut self, number: u64) -> bool {
        self.inner.as_mut().is_some_and(|session| session.wake(number))
    }

    fn is_woken(&self) -> bool {
        self.is_awake() || !self.is_over && self.inner.as_ref().is_some_and(|session| session.is_woken())
    }

    fn handle_woken(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool {
        if self.take_awake() {
            self.open_session(turn);
            if self.is_over && self.give_up(turn) {
                self.wake();
                return true;
            }
        }
        self.with_session(turn, |session, turn| session.handle_woken(turn, scratch))
    }

    fn handle_writable(&mut self, turn: &mut Turn<'_>) -> bool {
        self.flush(turn);
        if self.with_session(turn, |session, turn| session.handle_writable(turn)) {
            return true;
        }
        if self.inner.is_some() && !self.is_over {
            return false;
        }
        // Whoever had them is gone, or was not there.
        while let Some(stream) = turn.link.transport.writable() {
            turn.link.transport.is_stopped(stream);
            if turn.spend() {
                return true;
            }
        }
        false
    }

    fn has_room(&self, transport: &Transport) -> bool {
        let session = self.inner.as_ref().filter(|_| !self.is_over);
        transport.has_writable() || session.is_some_and(|session| session.has_room(transport))
    }

    fn can_begin(&self) -> bool {
        !self.is_over && self.inner.as_ref().is_some_and(|session| session.can_begin())
    }

    fn handle_queue(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool {
        self.with_session(turn, |session, turn| session.handle_queue(turn, scratch))
    }

    fn follow_limits(&mut self, turn: &Turn<'_>) {
        if let Some(session) = &mut self.inner {
            session.follow_limits(turn);
        }
    }

    fn watch(&mut self, turn: &Turn<'_>) {
        if let Some(session) = self.inner.as_mut().filter(|_| !self.is_over) {
            session.watch(turn);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let session = self.inner.as_ref().filter(|_| !self.is_over).and_then(|session| session.deadline());
        self.own_deadline().into_iter().chain(session).min()
    }

    fn handle_deadline(&mut self, turn: &mut Turn<'_>) -> bool {
        self.handle_own_deadline(turn);
        let now = turn.now;
        self.with_session(turn, |session, turn| {
            session.deadline().is_some_and(|at| at <= now) && session.handle_deadline(turn)
        })
    }

    fn confirm(&mut self) {
        self.wake();
        if let Some(session) = &mut self.inner {
            session.confirm();
        }
    }

    fn is_busy(&self) -> bool {
        let session = self.inner.as_ref().filter(|_| !self.is_over);
        !self.answers.is_empty() || session.is_some_and(|session| session.is_busy())
    }

    fn held(&self) -> usize {
        self.inner.as_ref().map_or(0, |session| session.held())
    }

    fn goaway(&mut self, turn: &mut Turn<'_>) {
        self.say_goaway(turn);
        self.with_session(turn, |session, turn| {
            session.goaway(turn);
            false
        });
    }

    fn shrink_to_fit(&mut self) {
        self.heads.shrink_to_fit();
        self.requests.shrink_to_fit();
        self.early.shrink_to_fit();
        self.unread.shrink_to_fit();
        self.answers.shrink_to_fit();
        if let Some(session) = &mut self.inner {
            session.shrink_to_fit();
        }
    }

    fn abandon(&mut self, turn: &mut Turn<'_>) -> bool {
        let is_left = self.inner.as_mut().is_some_and(|session| session.abandon(turn));
        if !is_left {
            self.inner = None;
        }
        is_left
    }
}
