//! Handlers: the code that gets received datagrams.

use std::time::Instant;

use expressway_netio::Datagram;

/// What is done with datagrams. Called on the receiver's thread, which receives nothing meanwhile: what takes long
/// belongs to another thread.
pub trait Handler {
    /// Datagrams come, or something was posted: the time of this turn.
    fn begin_batch(&mut self, _now: Instant) {}

    /// One datagram, where it lies. In the order of arrival within a queue of the device.
    fn handle_datagram(&mut self, datagram: Datagram<'_>);

    /// All that had come by now has been handled: a few batches of packet I/O at most. Not called after nothing.
    fn end_batch(&mut self) {}

    /// Something that another thread has posted ([`super::Poster`]).
    fn handle_post(&mut self, _post: &[u8]) {}

    /// When [`Handler::handle_timeout`] must be called, to 0.3 ms; asked once per turn.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The time of [`Handler::poll_timeout`] has come.
    fn handle_timeout(&mut self, _now: Instant) {}

    /// Asked after each batch: true ends the receiver.
    fn is_finished(&self) -> bool {
        false
    }
}

impl<F: FnMut(Datagram<'_>)> Handler for F {
    fn handle_datagram(&mut self, datagram: Datagram<'_>) {
        self(datagram);
    }
}
