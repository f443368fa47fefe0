//! What to send when: datagrams generated at a rate, or those of a capture.

use expressway_netio::Flow;
use expressway_netio::sim::Random;

use super::capture::{Capture, CaptureError, CaptureStats};
use super::flows::Flows;
use super::payload::Payload;
use super::schedule::Schedule;
use super::size::Sizes;
use crate::probe::Probe;

/// Where datagrams come from.
pub enum Content {
    /// They are made, each with the probe header.
    Made {
        /// When.
        schedule: Schedule,
        /// How long.
        sizes: Sizes,
        /// The payload after the header; as long as the longest.
        payload: Payload,
        /// Decides lengths.
        seed: u64,
    },
    /// They are the UDP payloads of a capture, at its times.
    Replayed {
        /// The capture.
        capture: Box<Capture>,
        /// Write the probe header over the first bytes of payloads that are long enough.
        stamp: bool,
    },
}

/// One datagram that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// When, in nanoseconds from the start.
    pub at: u64,
    /// Its flow.
    pub flow: u32,
    /// Its number in the flow.
    pub sequence: u64,
    /// Bytes of payload.
    pub length: usize,
    /// Where in the plan's bytes they lie.
    start: usize,
}

/// All datagrams of a run, in order.
pub struct Plan {
    flows: Flows,
    source: PayloadSource,
    /// Datagrams are due before this, in nanoseconds from the start.
    end: u64,
    /// Datagrams that may still be planned.
    left: u64,
    planned: u64,
    next: Option<Due>,
    batch: Vec<Due>,
    /// How much of the batch was sent.
    sent: usize,
    /// Payloads of the batch, and of `next`, which a capture gave.
    bytes: Vec<u8>,
}

enum PayloadSource {
    Made { schedule: Schedule, sizes: Sizes, payload: Payload, random: Random },
    Replayed { capture: Box<Capture>, stamp: bool },
}

impl Plan {
    /// The plan of a run of `nanoseconds` and of at most `count` datagrams.
    ///
    /// # Errors
    /// A capture that cannot be read.
    pub fn new(flows: Flows, content: Content, nanoseconds: u64, count: u64) -> Result<Self, CaptureError> {
        let source = match content {
            Content::Made { schedule, sizes, payload, seed } => {
                PayloadSource::Made { schedule, sizes, payload, random: Random::new(seed) }
            }
            Content::Replayed { capture, stamp } => PayloadSource::Replayed { capture, stamp },
        };
        let mut plan = Self {
            flows,
            source,
            end: nanoseconds,
            left: count,
            planned: 0,
            next: None,
            batch: Vec::new(),
            sent: 0,
            bytes: Vec::new(),
        };
        plan.advance()?;
        Ok(plan)
    }

    /// The flows.
    pub fn flows(&self) -> &Flows {
        &self.flows
    }

    /// When the next datagram is due that is in no batch; `None` at the end.
    pub fn next_time(&self) -> Option<u64> {
        self.next.map(|due| due.at)
    }

    /// Datagrams that came into batches so far.
    pub fn planned(&self) -> u64 {
        self.planned
    }

    /// Counts and skips the remaining datagrams, which will not be sent.
    ///
    /// # Errors
    /// A capture that cannot be read.
    pub fn skip_rest(&mut self) -> Result<u64, CaptureError> {
        let mut skipped = (self.batch.len() - self.sent) as u64;
        self.batch.clear();
        self.sent = 0;
        while self.next.is_some() {
            skipped += 1;
            self.planned += 1;
            self.bytes.clear();
            self.advance()?;
        }
        Ok(skipped)
    }

    /// Puts what is due by `now` into the batch, up to `most` datagrams, once the previous batch was sent
    /// completely.
    ///
    /// # Errors
    /// A capture that cannot be read.
    pub fn collect(&mut self, now: u64, most: usize) -> Result<(), CaptureError> {
        if self.sent < self.batch.len() {
            return Ok(());
        }
        self.batch.clear();
        self.sent = 0;
        if let (PayloadSource::Replayed { .. }, Some(next)) = (&self.source, &mut self.next) {
            // Only the payload read ahead is still wanted.
            self.bytes.drain(..next.start);
            next.start = 0;
        }
        while self.batch.len() < most
            && let Some(due) = self.next.filter(|due| due.at <= now)
        {
            self.batch.push(due);
            self.planned += 1;
            self.advance()?;
        }
        Ok(())
    }

    /// What of the batch is not sent yet. `epoch` is the start, in ns of [`Probe::time`]'s clock.
    pub fn datagrams(&self, epoch: u64) -> Datagrams<'_> {
        let (bytes, stamp) = match &self.source {
            PayloadSource::Made { payload, .. } => (payload.bytes(), true),
            PayloadSource::Replayed { stamp, .. } => (&self.bytes[..], *stamp),
        };
        Datagrams { dues: &self.batch[self.sent..], flows: &self.flows, bytes, stamp, epoch }
    }

    /// Notes that so many datagrams of the batch were sent, and says when they were due.
    pub fn take(&mut self, count: usize) -> impl Iterator<Item = u64> + '_ {
        let from = self.sent;
        self.sent = (self.sent + count).min(self.batch.len());
        self.batch[from..self.sent].iter().map(|due| due.at)
    }

    /// What became of the packets of the capture; `None` without one.
    pub fn capture_stats(&self) -> Option<CaptureStats> {
        match &self.source {
            PayloadSource::Made { .. } => None,
            PayloadSource::Replayed { capture, .. } => Some(capture.stats()),
        }
    }

    /// Works out [`Self::next`].
    fn advance(&mut self) -> Result<(), CaptureError> {
        self.next = None;
        if self.left == 0 {
            return Ok(());
        }
        let (at, length, start) = match &mut self.source {
            PayloadSource::Made { schedule, sizes, random, .. } => {
                (schedule.next_time(), sizes.draw(random), 0)
            }
            PayloadSource::Replayed { capture, .. } => {
                let start = self.bytes.len();
                let Some(at) = capture.next_payload(&mut self.bytes)? else { return Ok(()) };
                (at, self.bytes.len() - start, start)
            }
        };
        if at >= self.end {
            self.left = 0;
            return Ok(());
        }
        self.left -= 1;
        let (flow, sequence) = self.flows.place(self.planned);
        self.next = Some(Due { at, flow, sequence, length, start });
        Ok(())
    }
}

/// A batch for an output.
#[derive(Clone, Copy)]
pub struct Datagrams<'a> {
    dues: &'a [Due],
    flows: &'a Flows,
    bytes: &'a [u8],
    stamp: bool,
    epoch: u64,
}

impl<'a> Datagrams<'a> {
    /// The datagrams, in the order in which they are due.
    pub fn dues(&self) -> &'a [Due] {
        self.dues
    }

    /// The addresses of one.
    #[inline]
    pub fn flow(&self, due: &Due) -> Flow {
        self.flows.flow(due.flow)
    }

    /// Writes the payload of one to the front of `slice`, which holds it. Returns its length.
    #[inline]
    pub fn write(&self, due: &Due, slice: &mut [u8]) -> usize {
        let payload = &mut slice[..due.length];
        payload.copy_from_slice(&self.bytes[due.start..due.start + due.length]);
        if self.stamp
            && let Some(header) = payload.first_chunk_mut::<{ Probe::LENGTH }>()
        {
            let time = self.epoch.saturating_add(due.at);
            *header = Probe { sequence: due.sequence, time, flow: due.flow }.to_bytes();
        }
        due.length
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Pace, Pattern};
    use super::*;

    fn plan(rate: f64, seconds: f64, count: u64, flows: u32) -> Plan {
        let to = "192.0.2.9:7000".parse().unwrap();
        let flows = Flows::new(vec![[192, 0, 2, 1].into()], 5000, (to, 1), flows, 1).unwrap();
        let content = Content::Made {
            schedule: Schedule::new(Pace::Even, rate, 1, 0),
            sizes: Sizes::Fixed(32),
            payload: Payload::new(Pattern::Sequence, 32, 0),
            seed: 0,
        };
        Plan::new(flows, content, (seconds * 1e9) as u64, count).unwrap()
    }

    #[test]
    fn what_is_due_comes_once_and_in_order() {
        let mut plan = plan(1000.0, 0.01, u64::MAX, 3);
        assert_eq!(plan.next_time(), Some(0));
        plan.collect(3_500_000, 100).unwrap();
        let batch = plan.datagrams(1_000_000_000);
        let seen: Vec<_> = batch.dues().iter().map(|due| (due.at, due.flow, due.sequence)).collect();
        assert_eq!(seen, [(0, 0, 0), (1_000_000, 1, 0), (2_000_000, 2, 0), (3_000_000, 0, 1)]);
        let mut slice = [0; 40];
        assert_eq!(batch.write(&batch.dues()[3], &mut slice), 32);
        let probe = Probe::parse(&slice).unwrap();
        assert_eq!(probe, Probe { sequence: 1, time: 1_003_000_000, flow: 0 });
        assert_eq!(slice[24..32], [24, 25, 26, 27, 28, 29, 30, 31]);
        assert_eq!(plan.take(3).collect::<Vec<_>>(), [0, 1_000_000, 2_000_000]);
        // What was not sent stays first.
        plan.collect(9_999_999, 100).unwrap();
        assert_eq!(plan.datagrams(0).dues().len(), 1);
        assert_eq!(plan.take(1).count(), 1);
        plan.collect(9_999_999, 4).unwrap();
        assert_eq!(plan.datagrams(0).dues().len(), 4, "no more than asked for");
        assert_eq!(plan.skip_rest().unwrap(), 6);
        assert_eq!((plan.planned(), plan.next_time()), (10, None));
    }

    #[test]
    fn the_plan_ends_by_time_or_count() {
        for (plan, expected) in [(plan(1000.0, 0.0100001, u64::MAX, 1), 11), (plan(1000.0, 1.0, 7, 1), 7)] {
            let mut plan = plan;
            plan.collect(u64::MAX, 1000).unwrap();
            assert_eq!(plan.datagrams(0).dues().len(), expected);
            assert_eq!(plan.next_time(), None);
            assert!(plan.capture_stats().is_none());
        }
    }
}
