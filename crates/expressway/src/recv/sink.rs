//! What becomes of received datagrams.

use std::time::Instant;

use expressway_feed::receive::{Handler, Latency};
use expressway_feed::sequence::Sequencer;
use expressway_netio::Datagram;

use super::output::Output;

/// The handler of `expressway recv`: measures datagrams, puts them in order, and hands them on.
pub(super) struct Sink {
    pub(super) latency: Option<Box<Latency>>,
    pub(super) sequencer: Option<Box<Sequencer>>,
    pub(super) output: Output,
}

impl Sink {
    /// Waits for no message any more, and hands on what is left.
    pub(super) fn finish(&mut self) {
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.flush(&mut |event| self.output.event(event));
        }
        self.output.end_batch();
    }
}

impl Handler for Sink {
    fn begin_batch(&mut self, now: Instant) {
        self.output.set_time(now);
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.set_time(now);
        }
    }

    #[inline]
    fn handle_datagram(&mut self, datagram: Datagram<'_>) {
        if let Some(latency) = &mut self.latency {
            latency.record(&datagram);
        }
        match &mut self.sequencer {
            Some(sequencer) => {
                sequencer.handle_datagram(&datagram, &mut |event| self.output.event(event));
            }
            None => self.output.datagram(&datagram),
        }
    }

    fn handle_post(&mut self, reply: &[u8]) {
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.handle_reply(reply, &mut |event| self.output.event(event));
        }
    }

    fn end_batch(&mut self) {
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.end_batch();
        }
        self.output.end_batch();
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let sequencer = self.sequencer.as_ref().and_then(|sequencer| sequencer.poll_timeout());
        sequencer.into_iter().chain(self.output.poll_timeout()).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.output.set_time(now);
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.handle_timeout(now, &mut |event| self.output.event(event));
        }
        self.output.end_batch();
    }
}
