//! Reads a session's incoming streams.

use std::sync::atomic::Ordering::Relaxed;

use expressway_gateway::quic::{Received, Turn};
use expressway_h3::varint;

use super::incomplete::{Part, TooMuch};
use super::publish::{Answers, GroupIn};
use super::{Session, writer};
use crate::moq::wire::{self, Message, Problem, data, request, stream_code};

/// Octets of answers that are looked at in a piece of work: the shortest have a few, and each may wake many sessions.
const PIECE: usize = 256;

/// What a stream is that the peer sends on.
pub(super) enum Incoming {
    /// Its type and first message are [incomplete](super::incomplete).
    Begun,
    /// Frames of a group.
    Group(Box<GroupIn>),
    /// Changes of a subscription, by its key.
    Updates(usize),
    /// The end of a request, by its key.
    End(usize),
    /// The end of what a watch is for.
    Watch,
    /// Answers to what was asked of the peer.
    Answers(Answers),
    /// Whatever it is, nobody wants it.
    Ignored,
    /// The peer was asked to send no more of it, and nothing of it is kept: QUIC does not name it again.
    Stopped,
}

impl Session {
    /// Reads `stream` until there is nothing more, or the slice is used up: true.
    pub(super) fn read(&mut self, turn: &mut Turn<'_>, stream: u64, scratch: &mut [u8]) -> bool {
        loop {
            if self.is_held(stream) {
                return false;
            }
            let most = self.piece(stream, scratch.len());
            match turn.transport().receive(stream, &mut scratch[..most]) {
                Received::Data { length, last } => {
                    if let Err(words) = self.take(turn, stream, &scratch[..length], last) {
                        self.fail(turn, words);
                        return false;
                    }
                    if last {
                        return false;
                    }
                }
                Received::Reset => {
                    self.handle_end(turn, stream, true);
                    return false;
                }
                Received::Nothing => return false,
            }
            if turn.spend() {
                self.unread.push_front(stream);
                return true;
            }
        }
    }

    /// Takes in what has come on a stream.
    fn take(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        octets: &[u8],
        last: bool,
    ) -> Result<(), &'static str> {
        let incoming = match self.incoming.remove(&stream) {
            Some(incoming) => incoming,
            // It answers what is not asked any more.
            None if writer::is_ours(stream) => return Ok(()),
            None => Incoming::Begun,
        };
        let next = match incoming {
            Incoming::Begun => {
                let mut part = self.incomplete.take(stream, turn.now());
                part.octets.extend_from_slice(octets);
                let next = self.begin(turn, stream, &part.octets)?;
                if matches!(next, Incoming::Begun) {
                    self.keep(stream, part)?;
                }
                next
            }
            Incoming::Group(mut group) => match group.take(octets, self.access.as_ref()) {
                Ok(()) => Incoming::Group(group),
                Err(code) => {
                    turn.transport().stop_stream(stream, code);
                    Incoming::Stopped
                }
            },
            Incoming::Updates(key) => {
                self.read_messages(turn, stream, octets, |session, _, octets| session.update(key, octets))?;
                Incoming::Updates(key)
            }
            Incoming::Answers(mut answers) => {
                self.read_messages(turn, stream, octets, |session, turn, octets| {
                    session.hear(turn, &mut answers, octets)
                })?;
                Incoming::Answers(answers)
            }
            // Nothing is to come on them but their end.
            Incoming::End(_) | Incoming::Watch if !octets.is_empty() => {
                return Err("octets behind a request");
            }
            other => other,
        };
        if matches!(next, Incoming::Stopped) {
            return Ok(());
        }
        self.incoming.insert(stream, next);
        if let Some(has_ended) = self.held_ends.get_mut(&stream) {
            *has_ended |= last;
        } else if last {
            self.handle_end(turn, stream, false);
        }
        Ok(())
    }

    /// Has `read` take the whole messages off the front of what there is of a stream, and say how much they were.
    pub(super) fn read_messages(
        &mut self,
        turn: &mut Turn<'_>,
        stream: u64,
        octets: &[u8],
        read: impl FnOnce(&mut Self, &mut Turn<'_>, &[u8]) -> Result<usize, &'static str>,
    ) -> Result<(), &'static str> {
        let mut part = self.incomplete.take(stream, turn.now());
        part.octets.extend_from_slice(octets);
        let length = read(self, turn, &part.octets)?;
        if length > 0 {
            part.octets.drain(..length);
            part.begin_next(turn.now());
        }
        self.keep(stream, part)
    }

    fn keep(&mut self, stream: u64, part: Part) -> Result<(), &'static str> {
        self.incomplete.keep(stream, part, &self.account).map_err(|TooMuch| "too many incomplete messages")
    }

    /// Octets of a stream that are read at once, of so many that there is space for. Before it is known where the session is, these are
    /// the type of a stream, and SETUP.
    fn piece(&self, stream: u64, space: usize) -> usize {
        let octets = self.incomplete.octets(stream);
        let most = match self.incoming.get(&stream) {
            Some(Incoming::Answers(..) | Incoming::Updates(..)) => PIECE,
            None | Some(Incoming::Begun) if self.access.is_none() => left_of_type(octets).unwrap_or(PIECE),
            _ => space,
        };
        space.min(most)
    }

    /// It waits until it is known where the session is.
    pub(super) fn is_held(&self, stream: u64) -> bool {
        self.held_ends.contains_key(&stream)
    }

    /// Looks at the type and the first message of a stream.
    fn begin(&mut self, turn: &mut Turn<'_>, stream: u64, octets: &[u8]) -> Result<Incoming, &'static str> {
        let Some((kind, prefix)) = wire::stream_type(octets) else { return Ok(Incoming::Begun) };
        let is_request = stream & 2 == 0;
        let is_setup = !is_request && kind == data::SETUP;
        if self.access.is_none() && !is_setup {
            // The session has not said where it is: what it says reaches us as it may.
            if self.held.len() as u64 > 2 * self.most_requests() {
                return Err("requests before SETUP");
            }
            self.held.push_back(stream);
            self.held_ends.insert(stream, false);
            return Ok(Incoming::Begun);
        }
        let message = &octets[prefix..];
        // Nothing comes behind most requests.
        let alone = |length: usize| match length == message.len() {
            true => Ok(()),
            false => Err(Problem::Invalid("octets behind a request")),
        };
        let read = match (is_request, kind) {
            (false, data::SETUP) => wire::Setup::read(message).and_then(|(setup, length)| {
                alone(length)?;
                self.enter(turn, setup.path).map_err(Problem::Invalid)?;
                Ok(Incoming::Ignored)
            }),
            (false, data::GROUP) => wire::Group::read(message)
                .map(|(group, length)| self.begin_group(turn, stream, group, &message[length..])),
            (true, request::ANNOUNCE) => wire::AnnounceRequest::read(message).and_then(|(asked, length)| {
                alone(length)?;
                Ok(self.begin_watch(turn, stream, asked))
            }),
            (true, request::SUBSCRIBE) => wire::Subscribe::read(message)
                .map(|(asked, length)| (self.subscribe(turn, stream, asked), &message[length..]))
                .and_then(|begun| self.begin_updates(turn, stream, begun)),
            (true, request::FETCH) => wire::Fetch::read(message).and_then(|(asked, length)| {
                alone(length)?;
                Ok(self.fetch(turn, stream, asked))
            }),
            (true, request::TRACK) => wire::Track::read(message).and_then(|(asked, length)| {
                alone(length)?;
                Ok(self.tell(turn, stream, asked))
            }),
            (true, request::GOAWAY) => wire::Goaway::read(message).map(|_| {
                self.is_leaving = true;
                self.writers.write(turn.transport(), stream, Vec::new(), true);
                Incoming::Ignored
            }),
            // Nothing is measured for the peer (PROBE), and types to come are none of ours.
            _ => {
                self.refuse(turn, stream, stream_code::CANCEL);
                return Ok(Incoming::Stopped);
            }
        };
        match read {
            Ok(incoming) => Ok(incoming),
            Err(Problem::Incomplete) => Ok(Incoming::Begun),
            Err(Problem::Invalid(words)) => Err(words),
        }
    }

    /// Goes on with streams that waited for [`Self::enter`]. True: there are more, for another turn.
    pub(super) fn release_held(&mut self, turn: &mut Turn<'_>) -> Result<bool, &'static str> {
        while self.access.is_some()
            && let Some(stream) = self.held.pop_front()
        {
            let has_ended = self.held_ends.remove(&stream).unwrap_or_default();
            self.take(turn, stream, &[], has_ended)?;
            if !has_ended {
                self.unread.push_back(stream);
            }
            if turn.spend() {
                return Ok(!self.held.is_empty());
            }
        }
        Ok(false)
    }

    /// Ends streams whose messages have been incomplete for too long: no more than the peer may have.
    pub(super) fn end_incomplete(&mut self, turn: &mut Turn<'_>) {
        for stream in self.incomplete.overdue(turn.now()) {
            // Those that wait for SETUP have its time.
            if self.is_held(stream) {
                continue;
            }
            if let Some(access) = &self.access {
                access.room.counters.ended_incomplete.fetch_add(1, Relaxed);
            }
            turn.transport().stop_stream(stream, stream_code::CANCEL);
            self.handle_end(turn, stream, true);
            turn.spend();
        }
    }

    /// The peer has ended its side of a stream, or reset it.
    pub(super) fn handle_end(&mut self, turn: &mut Turn<'_>, stream: u64, is_reset: bool) {
        self.incomplete.forget(stream);
        match self.incoming.remove(&stream) {
            Some(Incoming::Ignored | Incoming::Stopped) => {}
            // Of a request that was reset before it was read nothing else is known: our side of it ends too.
            None | Some(Incoming::Begun) => {
                if stream & 2 == 0 {
                    self.writers.reset(turn.transport(), stream, stream_code::CANCEL);
                }
            }
            Some(Incoming::Group(group)) => group.end(is_reset, self.access.as_ref()),
            Some(Incoming::Updates(key)) => self.unsubscribe(turn, key, is_reset),
            Some(Incoming::End(key)) => {
                if is_reset {
                    self.give_up(turn, key, stream_code::CANCEL);
                }
            }
            Some(Incoming::Watch) => self.unwatch(turn, stream),
            Some(Incoming::Answers(answers)) => self.handle_last_answer(turn, answers, stream, is_reset),
        }
    }
}

/// Octets of a stream's type that are still to come, 1 at least; `None`: it is there.
fn left_of_type(octets: &[u8]) -> Option<usize> {
    let length = octets.first().map_or(1, |first| varint::len_of(*first));
    length.checked_sub(octets.len()).filter(|left| *left > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_a_type_is_read_of_one() {
        assert_eq!(left_of_type(&[]), Some(1));
        assert_eq!(left_of_type(&[1]), None);
        assert_eq!(left_of_type(&[0x40]), Some(1));
        assert_eq!(left_of_type(&[0xc0, 0, 0]), Some(5));
        assert_eq!(left_of_type(&[0xc0, 0, 0, 0, 0, 0, 0, 1]), None);
        assert_eq!(left_of_type(&[1, 2, 3]), None);
    }
}
