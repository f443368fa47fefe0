//! The [`Sequencer`]: passes received datagrams to the arbiter, by the address that they were sent to.

use std::net::SocketAddr;
use std::time::Instant;

use expressway_netio::Datagram;
use expressway_sequence::Line;

use super::client::RerequestClient;
use super::{Arbiter, Event};
use crate::receive::Handler;

/// An arbiter with addresses for its lines and, maybe, a re-request server.
pub struct Sequencer {
    arbiter: Arbiter,
    lines: Vec<SocketAddr>,
    client: Option<RerequestClient>,
    now: Instant,
    dropped_address: u64,
}

impl Sequencer {
    /// Line *n* of the arbiter is what is sent to `lines[n]`, whose address may be a wildcard.
    pub fn new(arbiter: Arbiter, lines: Vec<SocketAddr>) -> Self {
        Self { arbiter, lines, client: None, now: Instant::now(), dropped_address: 0 }
    }

    /// Requests missing messages there.
    pub fn ask(&mut self, client: RerequestClient) {
        self.client = Some(client);
    }

    /// The time, before what arrives at that time.
    pub fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Processes a datagram. Its timestamp is that of its messages; those of replies have none.
    #[inline]
    pub fn handle_datagram(&mut self, datagram: &Datagram<'_>, sink: &mut dyn FnMut(Event<'_>)) {
        let Some(line) = self.line_of(datagram.local) else {
            self.dropped_address += 1;
            return;
        };
        self.arbiter.handle_datagram(self.now, line, datagram.hints.timestamp, datagram.payload, sink);
    }

    fn line_of(&self, local: SocketAddr) -> Option<Line> {
        let is_it = |line: &SocketAddr| {
            line.port() == local.port() && (line.ip() == local.ip() || line.ip().is_unspecified())
        };
        // No more than the arbiter's lines, which are eight at most.
        self.lines.iter().position(is_it).map(|index| Line::Feed(index as u8))
    }

    /// Takes a reply of the re-request server in.
    pub fn handle_reply(&mut self, reply: &[u8], sink: &mut dyn FnMut(Event<'_>)) {
        self.arbiter.handle_datagram(self.now, Line::Reply, None, reply, sink);
        if let Some(client) = &mut self.client {
            client.rerequester_mut().handle_reply(self.now, reply);
        }
    }

    /// Requests what is missing, once everything received is processed.
    pub fn end_batch(&mut self) {
        if let Some(client) = &mut self.client {
            client.send(self.now, &self.arbiter);
        }
    }

    /// When [`Sequencer::handle_timeout`] is wanted.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let request =
            self.client.as_ref().and_then(|client| client.rerequester().poll_timeout(&self.arbiter));
        self.arbiter.poll_timeout().into_iter().chain(request).min()
    }

    /// Announces gaps, and asks again for what did not come.
    pub fn handle_timeout(&mut self, now: Instant, sink: &mut dyn FnMut(Event<'_>)) {
        self.now = now;
        self.arbiter.handle_timeout(now, sink);
        self.end_batch();
    }

    /// Waits for nothing any more: at the end.
    pub fn flush(&mut self, sink: &mut dyn FnMut(Event<'_>)) {
        self.arbiter.flush(sink);
    }

    /// The arbiter.
    pub fn arbiter(&self) -> &Arbiter {
        &self.arbiter
    }

    /// The client of the re-request server.
    pub fn client(&self) -> Option<&RerequestClient> {
        self.client.as_ref()
    }

    /// Datagrams that came to an address which is no line's.
    pub fn dropped_address(&self) -> u64 {
        self.dropped_address
    }
}

/// A [`Handler`] that hands a program the events of a feed.
pub struct Sequenced<F> {
    sequencer: Sequencer,
    sink: F,
}

impl<F: FnMut(Event<'_>)> Sequenced<F> {
    /// Each event goes to `sink`.
    pub fn new(sequencer: Sequencer, sink: F) -> Self {
        Self { sequencer, sink }
    }

    /// What puts the feed together.
    pub fn sequencer(&self) -> &Sequencer {
        &self.sequencer
    }

    /// Announces all gaps and hands on all that waits: at the end.
    pub fn flush(&mut self) {
        self.sequencer.flush(&mut self.sink);
    }
}

impl<F: FnMut(Event<'_>)> Handler for Sequenced<F> {
    fn begin_batch(&mut self, now: Instant) {
        self.sequencer.set_time(now);
    }

    #[inline]
    fn handle_datagram(&mut self, datagram: Datagram<'_>) {
        self.sequencer.handle_datagram(&datagram, &mut self.sink);
    }

    fn handle_post(&mut self, reply: &[u8]) {
        self.sequencer.handle_reply(reply, &mut self.sink);
    }

    fn end_batch(&mut self) {
        self.sequencer.end_batch();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.sequencer.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.sequencer.handle_timeout(now, &mut self.sink);
    }
}
