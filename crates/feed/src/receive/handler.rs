//! Where received datagrams go.

use expressway_netio::Datagram;

/// What is done with datagrams. Called on the receiver's thread, which receives nothing meanwhile: what takes long
/// belongs to another thread.
pub trait Handler {
    /// One datagram, where it lies. In the order of arrival within a queue of the device.
    fn handle_datagram(&mut self, datagram: Datagram<'_>);

    /// All that had come by now has been handled: a few batches of packet I/O at most. Not called after nothing.
    fn end_batch(&mut self) {}

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
