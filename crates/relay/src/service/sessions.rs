//! WebRTC sessions among the rooms of a worker.

use std::net::SocketAddr;

use expressway_netio::{Context, IoError, PacketIo, Transmit};

use super::{Handover, Message, Relay};
use crate::rtp::Progress;
use crate::webrtc::table::{Join, Restart};
use crate::webrtc::{Address, Route};

/// Where a session of another worker can be reached, so that its datagrams find it.
#[derive(Clone, Copy, Debug)]
pub struct News {
    worker: usize,
    address: Address,
}

impl Relay {
    pub(super) fn dispatch_session(
        &mut self,
        context: &mut Context<'_, Message>,
        datagram: &[u8],
        (remote, local): (SocketAddr, SocketAddr),
        is_handed_over: bool,
    ) {
        let Some(sessions) = &mut self.sessions else { return };
        match sessions.route(datagram, remote, is_handed_over) {
            Route::Dropped => {}
            Route::Worker(worker) => {
                let handover = Box::new(Handover { payload: datagram.to_vec(), remote, local });
                let peer = context.peers.get(worker);
                if peer.is_none_or(|peer| peer.try_send(Message::Datagram(handover)).is_err()) {
                    sessions.counters.dropped_handover += 1;
                }
            }
            Route::Session(session) => {
                let Some(index) = sessions.room(session) else { return };
                let Some(owned) = &mut self.rooms[index] else { return };
                let room_and_members = (&mut owned.room, &mut owned.members);
                let (timers, now) = (&mut *context.timers, context.now);
                sessions.handle_datagram(session, datagram, (remote, local), room_and_members, timers, now);
                self.tell(context);
                self.happened(index, context);
            }
        }
    }

    pub(super) fn join(&mut self, context: &mut Context<'_, Message>, join: Join) {
        let index = join.room;
        // Dropped, the reply says that the session has no place.
        let Some(sessions) = &mut self.sessions else { return };
        let Some(owned) = self.rooms.get_mut(index).and_then(Option::as_mut) else { return };
        sessions.join(join, (&mut owned.room, &mut owned.members), context.timers, context.now);
        self.tell(context);
        self.happened(index, context);
    }

    pub(super) fn leave(&mut self, context: &mut Context<'_, Message>, index: usize, number: u64) {
        let Some(sessions) = &mut self.sessions else { return };
        let Some(owned) = self.rooms.get_mut(index).and_then(Option::as_mut) else { return };
        sessions.leave(number, (&mut owned.room, &mut owned.members), context.timers);
        self.tell(context);
        self.happened(index, context);
    }

    pub(super) fn restart(&mut self, context: &Context<'_, Message>, restart: Restart) {
        // Dropped, the reply says that the session stays as it is.
        let Some(sessions) = &mut self.sessions else { return };
        sessions.restart(restart, context.now);
    }

    pub(super) fn set_layer(&mut self, context: &Context<'_, Message>, number: u64, rid: Option<Box<str>>) {
        if let Some(sessions) = &mut self.sessions {
            sessions.set_layer(number, rid, context.now);
        }
    }

    pub(super) fn hear(&mut self, news: News) {
        if let Some(sessions) = &mut self.sessions {
            sessions.handle_address(news.worker, news.address);
        }
    }

    pub(super) fn session_timeout(&mut self, context: &mut Context<'_, Message>, token: usize) {
        let Some(sessions) = &mut self.sessions else { return };
        let Some(session) = sessions.of_timer(token) else { return };
        let Some(index) = sessions.room(session) else { return };
        let Some(owned) = &mut self.rooms[index] else { return };
        let room_and_members = (&mut owned.room, &mut owned.members);
        sessions.handle_timeout(session, room_and_members, context.timers, context.now);
        self.tell(context);
        self.happened(index, context);
    }

    /// Tells other workers where sessions of this one are reached. One that is behind drops what it does not know, and its peers send again.
    fn tell(&mut self, context: &Context<'_, Message>) {
        let Some(sessions) = &mut self.sessions else { return };
        while let Some(address) = sessions.news.pop_front() {
            let news = News { worker: self.worker, address };
            for (_, peer) in context.peers.iter().enumerate().filter(|(worker, _)| *worker != self.worker) {
                if peer.try_send(Message::News(news)).is_err() {
                    sessions.counters.dropped_handover += 1;
                }
            }
        }
    }

    /// The room's players get what is new.
    pub(super) fn play(
        &mut self,
        context: &mut Context<'_, Message>,
        io: &mut dyn PacketIo,
        index: usize,
    ) -> Result<Progress, IoError> {
        let (Some(sessions), Some(owned)) = (&mut self.sessions, &mut self.rooms[index]) else {
            return Ok(Progress::Done);
        };
        if !owned.members.has_news() {
            return Ok(Progress::Done);
        }
        let room_and_members = (&mut owned.room, &mut owned.members);
        let progress = sessions.play(io, room_and_members, (context.slice, context.timers), context.now);
        self.tell(context);
        progress
    }

    /// What sessions have to say by themselves is sent.
    pub(super) fn transmit_sessions(
        &mut self,
        context: &mut Context<'_, Message>,
        io: &mut dyn PacketIo,
    ) -> Result<Transmit, IoError> {
        let Some(sessions) = self.sessions.as_mut().filter(|sessions| sessions.has_waiting()) else {
            return Ok(Transmit::Done);
        };
        let rooms = &mut self.rooms;
        let progress = sessions.transmit(io, context.slice, |room, send| {
            rooms.get_mut(room).and_then(Option::as_mut).map(|owned| send(&mut owned.members.counters))
        })?;
        Ok(match progress {
            Progress::Blocked => Transmit::Blocked,
            Progress::More => Transmit::More,
            Progress::Done => Transmit::Done,
        })
    }
}
