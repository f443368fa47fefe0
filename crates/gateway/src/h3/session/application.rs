//! The functions of a session that an endpoint calls.

use std::time::Instant;

use super::Session;
use crate::quic::{self, Transport, Turn};

impl quic::Session for Session {
    fn handle_readable(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool {
        Session::handle_readable(self, turn, scratch)
    }

    fn has_unread(&self) -> bool {
        Session::has_unread(self)
    }

    fn wake(&mut self, number: u64) -> bool {
        Session::wake(self, number)
    }

    fn is_woken(&self) -> bool {
        Session::is_woken(self)
    }

    fn handle_woken(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool {
        Session::handle_woken(self, turn, scratch)
    }

    fn handle_writable(&mut self, turn: &mut Turn<'_>) -> bool {
        Session::handle_writable(self, turn)
    }

    fn has_room(&self, transport: &Transport) -> bool {
        Session::has_room(self, transport)
    }

    fn can_begin(&self) -> bool {
        Session::can_begin(self)
    }

    fn handle_queue(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool {
        Session::handle_queue(self, turn, scratch)
    }

    fn follow_limits(&mut self, turn: &Turn<'_>) {
        Session::follow_limits(self, turn);
    }

    fn watch(&mut self, turn: &Turn<'_>) {
        Session::watch(self, turn);
    }

    fn deadline(&self) -> Option<Instant> {
        Session::deadline(self)
    }

    fn handle_deadline(&mut self, turn: &mut Turn<'_>) -> bool {
        Session::handle_deadline(self, turn)
    }

    fn confirm(&mut self) {
        Session::confirm(self);
    }

    fn is_busy(&self) -> bool {
        self.active() > 0
    }

    fn held(&self) -> usize {
        Session::held(self)
    }

    fn goaway(&mut self, turn: &mut Turn<'_>) {
        Session::goaway(self, turn);
    }

    fn give_notice(&mut self, turn: &mut Turn<'_>) {
        Session::give_notice(self, turn);
    }

    fn shrink_to_fit(&mut self) {
        Session::shrink_to_fit(self);
    }

    fn abandon(&mut self, turn: &mut Turn<'_>) -> bool {
        Session::abandon(self, turn)
    }
}
