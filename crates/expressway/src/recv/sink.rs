//! What becomes of received datagrams.

use expressway_feed::receive::{Handler, Latency};
use expressway_netio::Datagram;

/// The handler of `expressway recv`.
pub(super) struct Sink {
    pub(super) latency: Option<Box<Latency>>,
}

impl Handler for Sink {
    #[inline]
    fn handle_datagram(&mut self, datagram: Datagram<'_>) {
        if let Some(latency) = &mut self.latency {
            latency.record(&datagram);
        }
    }
}
