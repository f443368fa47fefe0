//! Reads a session's incoming streams.

use expressway_gateway::quic::{Received, Turn};

use super::publish::{Answers, GroupIn};
use super::{Session, writer};
use crate::moq::wire::{self, Message, Problem, data, request, stream_code};

/// Octets of answers that are looked at in a piece of work: the shortest have a few, and each may wake many sessions.
const PIECE: usize = 256;

/// What a stream is that the peer sends on.
pub(super) enum Incoming {
    /// What there is of its type and first message.
    Begun(Vec<u8>),
    /// Frames of a group.
    Group(Box<GroupIn>),
    /// Changes of a subscription, by its key.
    Updates(usize, Vec<u8>),
    /// The end of a request, by its key.
    End(usize),
    /// The end of what a watch is for.
    Watch,
    /// Answers to what was asked of the peer.
    Answers(Answers, Vec<u8>),
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
            let most = piece(self.incoming.get(&stream), scratch.len());
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
            None => Incoming::Begun(Vec::new()),
        };
        let next = match incoming {
            Incoming::Begun(mut buffer) => {
                buffer.extend_from_slice(octets);
                self.begin(turn, stream, buffer)?
            }
            Incoming::Group(mut group) => match group.take(octets, self.access.as_ref()) {
                Ok(()) => Incoming::Group(group),
                Err(code) => {
                    turn.transport().stop_stream(stream, code);
                    Incoming::Stopped
                }
            },
            Incoming::Updates(key, mut buffer) => {
                buffer.extend_from_slice(octets);
                self.update(key, &mut buffer)?;
                Incoming::Updates(key, buffer)
            }
            Incoming::Answers(mut answers, mut buffer) => {
                buffer.extend_from_slice(octets);
                self.hear(turn, &mut answers, &mut buffer)?;
                Incoming::Answers(answers, buffer)
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

    /// It waits until it is known where the session is.
    pub(super) fn is_held(&self, stream: u64) -> bool {
        self.held_ends.contains_key(&stream)
    }

    /// Looks at the type and the first message of a stream.
    fn begin(&mut self, turn: &mut Turn<'_>, stream: u64, buffer: Vec<u8>) -> Result<Incoming, &'static str> {
        let Some((kind, prefix)) = wire::stream_type(&buffer) else { return Ok(Incoming::Begun(buffer)) };
        let is_request = stream & 2 == 0;
        let is_setup = !is_request && kind == data::SETUP;
        if self.access.is_none() && !is_setup {
            // The session has not said where it is: what it says reaches us as it may.
            if self.held.len() as u64 > 2 * self.most_requests() {
                return Err("requests before SETUP");
            }
            self.held.push_back(stream);
            self.held_ends.insert(stream, false);
            return Ok(Incoming::Begun(buffer));
        }
        let message = &buffer[prefix..];
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
                .map(|(asked, length)| self.subscribe(turn, stream, asked, &message[length..])),
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
            Err(Problem::Incomplete) => Ok(Incoming::Begun(buffer)),
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

    /// The peer has ended its side of a stream, or reset it.
    pub(super) fn handle_end(&mut self, turn: &mut Turn<'_>, stream: u64, is_reset: bool) {
        match self.incoming.remove(&stream) {
            Some(Incoming::Ignored | Incoming::Stopped) => {}
            // Of a request that was reset before it was read nothing else is known: our side of it ends too.
            None | Some(Incoming::Begun(_)) => {
                if stream & 2 == 0 {
                    self.writers.reset(turn.transport(), stream, stream_code::CANCEL);
                }
            }
            Some(Incoming::Group(group)) => group.end(is_reset, self.access.as_ref()),
            Some(Incoming::Updates(key, _)) => self.unsubscribe(turn, key, is_reset),
            Some(Incoming::End(key)) => {
                if is_reset {
                    self.give_up(turn, key, stream_code::CANCEL);
                }
            }
            Some(Incoming::Watch) => self.unwatch(turn, stream),
            Some(Incoming::Answers(answers, _)) => self.handle_last_answer(turn, answers, stream, is_reset),
        }
    }
}

/// Octets of a stream that are read at once, of so many that there is space for.
fn piece(incoming: Option<&Incoming>, space: usize) -> usize {
    match incoming {
        Some(Incoming::Answers(..) | Incoming::Updates(..)) => space.min(PIECE),
        _ => space,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_in_small_pieces_and_groups_in_large_ones() {
        let answers = Incoming::Answers(Answers::Broadcasts(None), Vec::new());
        assert_eq!(piece(Some(&answers), 65536), PIECE);
        assert_eq!(piece(Some(&Incoming::Updates(0, Vec::new())), 65536), PIECE);
        assert_eq!(piece(Some(&answers), 100), 100);
        assert_eq!(piece(Some(&Incoming::Begun(Vec::new())), 65536), 65536);
        assert_eq!(piece(None, 65536), 65536);
    }
}
