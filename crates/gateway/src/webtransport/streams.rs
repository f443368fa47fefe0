//! Streams that a client opens: which of them are the session's.

use expressway_h3::webtransport::{HeadReader, Kind};
use expressway_h3::{Error, code};

use super::connection::Connection;
use crate::quic::Turn;
use crate::quic::engine::{Received, Transport};

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

/// What is known of a stream's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    Incomplete,
    /// The stream has ended within it.
    Ended,
    Reset,
    /// What the stream is, and whether it has ended with its head.
    Known(Kind, bool),
}

/// Reads on in the head of a stream.
fn advance(transport: &mut Transport, stream: u64, reader: &mut HeadReader, scratch: &mut [u8]) -> Head {
    let is_bidirectional = stream & 2 == 0;
    loop {
        let wanted = reader.wanted();
        let (length, is_last) = match transport.receive(stream, &mut scratch[..wanted]) {
            Received::Data { length, last } => (length, last),
            Received::Reset => return Head::Reset,
            Received::Nothing => return Head::Incomplete,
        };
        reader.take(&scratch[..length]);
        match reader.kind(is_bidirectional) {
            Some(kind) => return Head::Known(kind, is_last),
            None if is_last => return Head::Ended,
            None if length < wanted => return Head::Incomplete,
            None => {}
        }
    }
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
        let mut new = HeadReader::default();
        let kept = self.heads.get_mut(&stream);
        let is_kept = kept.is_some();
        let reader = kept.unwrap_or(&mut new);
        let head = advance(&mut turn.link.transport, stream, reader, scratch);
        let read = *reader;
        if head == Head::Incomplete {
            // One that was stopped has nothing, and may be named all the same.
            if !is_kept && !read.read().is_empty() {
                self.heads.insert(stream, read);
            }
            return Ok(());
        }
        if is_kept {
            self.heads.remove(&stream);
        }
        match head {
            Head::Known(Kind::Session(session), is_last) => {
                self.accept(turn, Early { stream, session, is_last })
            }
            Head::Known(Kind::Other, is_last) if is_bidirectional => {
                self.read_request(turn, stream, (read.read(), is_last), scratch)
            }
            Head::Known(Kind::Other, is_last) => {
                let transport = &mut turn.link.transport;
                if !self.peer.take(transport, stream, read.read(), |_, _, _| Ok(()))? {
                    return Ok(());
                }
                if is_last { self.peer.close(stream) } else { self.read_peer(turn, stream, scratch) }
            }
            Head::Reset if is_bidirectional => {
                turn.link.transport.reset_with(stream, code::REQUEST_CANCELLED);
                Ok(())
            }
            Head::Ended if is_bidirectional => {
                Err(Error::stream(code::REQUEST_INCOMPLETE, "a stream without a request"))
            }
            Head::Reset | Head::Ended | Head::Incomplete => Ok(()),
        }
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
    fn refuse(&self, turn: &mut Turn<'_>, stream: u64, code: u64) {
        turn.worker.stats.refused_webtransport_stream += 1;
        turn.link.transport.stop_with(stream, code);
        if stream & 2 == 0 {
            turn.link.transport.reset_with(stream, code);
        }
    }
}
