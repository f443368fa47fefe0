//! Streams that a client opens: which of them are the session's.

use expressway_h3::webtransport::Kind;
use expressway_h3::{Error, code};

use super::connection::Connection;
use crate::quic::Turn;
use crate::quic::engine::Received;

/// Streams that may wait for their session: as many as a client opens within the round trip that its request takes to be answered.
pub(super) const EARLY: usize = 32;

/// A stream that waits for its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Early {
    stream: u64,
    session: u64,
    /// It has ended with its head.
    is_last: bool,
}

/// Codes of connections beyond those of HTTP/3's requests.
fn invalid_session() -> Error {
    Error::connection(code::ID_ERROR, "invalid session ID")
}

impl Connection {
    /// Reads a stream that something has come on; one of the session's is named to it.
    pub(super) fn read(&mut self, turn: &mut Turn<'_>, stream: u64, scratch: &mut [u8]) -> Result<(), Error> {
        if let Some(within) = &mut turn.link.transport.within
            && within.contains(stream)
        {
            if !within.is_over() {
                within.push_readable(stream);
            }
            return Ok(());
        }
        // One of ours that is over, or one that waits, which is named to its session with all that has come.
        if stream & 1 != 0 || self.early.iter().any(|early| early.stream == stream) {
            return Ok(());
        }
        if self.peer.knows(stream) {
            return self.read_peer(turn, stream, scratch);
        }
        if self.connect.as_ref().is_some_and(|connect| connect.stream == stream) {
            return self.read_connect(turn, stream, scratch);
        }
        if self.requests.contains(stream) {
            return self.read_request(turn, stream, (&[], false), scratch);
        }
        self.read_head(turn, stream, scratch)
    }

    /// Reads on in the control stream, or one of QPACK.
    fn read_peer(&mut self, turn: &mut Turn<'_>, stream: u64, scratch: &mut [u8]) -> Result<(), Error> {
        let all = self.peer.read(&mut turn.link.transport, stream, scratch, turn.slice, |_, _, _| Ok(()))?;
        if !all {
            self.unread.push_front(stream);
        }
        self.open_session(turn);
        Ok(())
    }

    /// Reads what a stream is.
    fn read_head(&mut self, turn: &mut Turn<'_>, stream: u64, scratch: &mut [u8]) -> Result<(), Error> {
        let is_bidirectional = stream & 2 == 0;
        let (mut head, since) = self.heads.take(stream, turn.now);
        loop {
            let wanted = head.wanted();
            let (length, is_last) = match turn.link.transport.receive(stream, &mut scratch[..wanted]) {
                Received::Data { length, last } => (length, last),
                Received::Reset => {
                    if is_bidirectional {
                        turn.link.transport.reset_with(stream, code::REQUEST_CANCELLED);
                    }
                    return Ok(());
                }
                Received::Nothing => break,
            };
            head.take(&scratch[..length]);
            match head.kind(is_bidirectional) {
                Some(Kind::Session(session)) => return self.accept(turn, Early { stream, session, is_last }),
                Some(Kind::Other) if is_bidirectional => {
                    return self.read_request(turn, stream, (head.read(), is_last), scratch);
                }
                Some(Kind::Other) => {
                    let transport = &mut turn.link.transport;
                    if !self.peer.take(transport, stream, head.read(), |_, _, _| Ok(()))? {
                        return Ok(());
                    }
                    return if is_last {
                        self.peer.close(stream)
                    } else {
                        self.read_peer(turn, stream, scratch)
                    };
                }
                None if is_last && is_bidirectional => {
                    return Err(Error::stream(code::REQUEST_INCOMPLETE, "a stream without a request"));
                }
                None if is_last => return Ok(()),
                None if length < wanted => break,
                None => {}
            }
        }
        // One that was stopped has nothing, and may be named all the same.
        if !head.read().is_empty() {
            self.heads.keep(stream, (head, since), &turn.link.account);
        }
        Ok(())
    }

    /// A stream is for a session.
    fn accept(&mut self, turn: &mut Turn<'_>, early: Early) -> Result<(), Error> {
        let Early { stream, session, is_last } = early;
        if session & 3 != 0 {
            return Err(invalid_session());
        }
        let asked = self.connect.as_ref().map(|connect| connect.stream);
        let is_asked = asked.is_none_or(|stream| stream == session);
        match &mut turn.link.transport.within {
            _ if self.is_over && is_asked => self.refuse(turn, stream, code::WT_SESSION_GONE),
            Some(within) if is_asked && self.inner.is_some() => within.accept(stream, is_last),
            _ if is_asked && self.early.len() < EARLY => self.early.push_back(early),
            _ => self.refuse(turn, stream, code::WT_BUFFERED_STREAM_REJECTED),
        }
        Ok(())
    }

    /// The session has begun: streams that have waited for it are its own, others nobody's.
    pub(super) fn take_early(&mut self, turn: &mut Turn<'_>, session: u64) {
        for early in std::mem::take(&mut self.early) {
            match &mut turn.link.transport.within {
                Some(within) if early.session == session => within.accept(early.stream, early.is_last),
                _ => self.refuse(turn, early.stream, code::WT_BUFFERED_STREAM_REJECTED),
            }
        }
    }

    /// There is no such session: streams that have waited for it wait no longer.
    pub(super) fn refuse_early(&mut self, turn: &mut Turn<'_>, session: u64) {
        for early in std::mem::take(&mut self.early) {
            match early.session == session {
                true => self.refuse(turn, early.stream, code::WT_BUFFERED_STREAM_REJECTED),
                false => self.early.push_back(early),
            }
        }
    }

    /// Ends both sides of a stream that no session has.
    pub(super) fn refuse(&self, turn: &mut Turn<'_>, stream: u64, code: u64) {
        turn.worker.stats.refused_webtransport_stream += 1;
        turn.link.transport.stop_with(stream, code);
        if stream & 2 == 0 {
            turn.link.transport.reset_with(stream, code);
        }
    }
}
