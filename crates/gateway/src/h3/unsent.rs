//! What one of our own streams has not accepted yet.

use bytes::Bytes;

use crate::quic::engine::{SendError, Transport};

/// Octets that wait for a stream to accept them.
#[derive(Default)]
pub(crate) struct Unsent(Bytes);

impl Unsent {
    /// Has what `write` appends sent behind the rest.
    pub(crate) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        // Without a copy, unless the stream still has a part of it.
        let mut octets = Vec::from(std::mem::take(&mut self.0));
        write(&mut octets);
        self.0 = octets.into();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0 = Bytes::new();
    }

    /// Sends as much as the stream accepts, and with all of it the end of the stream if it is the `last`.
    pub(crate) fn send(
        &mut self,
        transport: &mut Transport,
        stream: u64,
        last: bool,
    ) -> Result<usize, SendError> {
        transport.send_on(stream, &mut self.0, last)
    }
}
