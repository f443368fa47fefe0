//! The protocol on the connections of an endpoint: HTTP/3, or that of another service.
//!
//! An endpoint knows packets, paths, timers and turns; an [`Application`] knows the purpose of streams. It gives each
//! connection a [`Session`], which is called in the connection's turn, and reads and writes streams through
//! [`Turn::transport`]. If something happens elsewhere, any thread can wake the session's connection by
//! [`Turn::waker`].

use std::sync::Arc;
use std::time::Instant;

use super::settings::Settings;
use super::{Transport, Turn};

/// Streams that a client may open and what it may send on them before it is read, in streams and bytes. A window is how much a
/// client may have sent that was not read. Whenever half of it is used up within two round trips it is doubled, up to its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// Streams in both directions that a client may have open.
    pub bidirectional: u64,
    /// Streams in its direction alone.
    pub unidirectional: u64,
    /// Bytes under way on a stream that the client opened in both directions.
    pub bidirectional_window: u64,
    /// Bytes under way on a stream in its direction alone.
    pub unidirectional_window: u64,
    /// Bytes that a client may send on a stream that we opened.
    pub own_window: u64,
    /// What the window of a stream grows to at most.
    pub max_stream_window: u64,
    /// Bytes under way on all of its streams.
    pub connection_window: u64,
    /// What this window grows to at most.
    pub max_connection_window: u64,
}

/// What all connections of an endpoint speak.
pub trait Application: Send + Sync {
    /// Its protocols by ALPN ID (RFC 7301), the preferred first.
    fn protocols(&self) -> &[&[u8]];

    /// What a client may open and send.
    fn limits(&self, settings: &Settings) -> StreamLimits;

    /// DATAGRAM frames (RFC 9221) that a connection keeps until its turn. 0: clients are told that none are taken. They are for protocols
    /// that want it said that they can be sent: nothing reads them yet, and they are counted as dropped.
    fn datagrams(&self) -> usize {
        0
    }

    /// The code that a connection with that protocol is closed with when there is nothing left to say.
    fn closing_code(&self, protocol: &[u8]) -> u64;

    /// The code that a connection is closed with whose client has more held for it than it may.
    fn excess_code(&self, protocol: &[u8]) -> u64;

    /// Begins on a connection: its handshake is complete, or 0-RTT data is there.
    fn start(self: Arc<Self>, turn: &mut Turn<'_>) -> Box<dyn Session>;
}

/// An application on one connection. Where a method says whether something is left, that is because the turn's slice was used up
/// ([`Turn::spend`]): it is called again.
pub trait Session: Send {
    /// Reads streams that have something; `scratch` is for what is read. True: there may be more.
    fn handle_readable(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool;

    /// [`Self::handle_readable`] has something to do whatever the engine says.
    fn has_unread(&self) -> bool {
        false
    }

    /// Takes in a wake-up by the number that [`Turn::waker`] was given. False: it concerns nothing that is here.
    fn wake(&mut self, number: u64) -> bool;

    /// [`Self::handle_woken`] has something to do.
    fn is_woken(&self) -> bool;

    /// Goes on with what was woken. True: there is more.
    fn handle_woken(&mut self, turn: &mut Turn<'_>, scratch: &mut [u8]) -> bool;

    /// Gives streams what they have room for. True: there is more.
    fn handle_writable(&mut self, turn: &mut Turn<'_>) -> bool;

    /// Some stream could be given more now.
    fn has_room(&self, transport: &Transport) -> bool;

    /// What waits for others of the connection to be done can begin.
    fn can_begin(&self) -> bool {
        false
    }

    /// Begins with it. True: there is more.
    fn handle_queue(&mut self, _turn: &mut Turn<'_>, _scratch: &mut [u8]) -> bool {
        false
    }

    /// Before anything of a turn: what may be held has changed.
    fn follow_limits(&mut self, _turn: &Turn<'_>) {}

    /// After anything of a turn.
    fn watch(&mut self, _turn: &Turn<'_>) {}

    /// When [`Self::handle_deadline`] is to be called next.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Ends what has taken too long. True: there is more.
    fn handle_deadline(&mut self, _turn: &mut Turn<'_>) -> bool {
        false
    }

    /// The handshake is complete.
    fn confirm(&mut self) {}

    /// Something is under way that a drain waits for.
    fn is_busy(&self) -> bool;

    /// Bytes that the peer has not acknowledged.
    fn held(&self) -> usize {
        0
    }

    /// Tells the peer that this will end: what is open is completed, nothing else is begun.
    fn goaway(&mut self, turn: &mut Turn<'_>);

    /// Tells the peer that this will end, and takes what it begins until it has heard.
    fn give_notice(&mut self, turn: &mut Turn<'_>) {
        self.goaway(turn);
    }

    /// Gives back room that is not needed for what there is.
    fn shrink_to_fit(&mut self) {}

    /// The connection is gone. True: there is more to give up.
    fn abandon(&mut self, turn: &mut Turn<'_>) -> bool;
}

impl dyn Session {
    /// It is time for [`Session::handle_deadline`].
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }
}
