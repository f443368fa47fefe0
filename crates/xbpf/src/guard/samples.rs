//! Samples of dropped packets: what is sampled, and the buffers that samples come in.

use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::tables::GuardRate;
use super::{GuardReason, monotonic};
use crate::error::Error;
use crate::rings::PerfRings;
use crate::skeleton::guard::OpenGuardMaps;
use crate::skeleton::guard::types::{guard_limit, guard_sample, guard_sampling};

const _: () = assert!(size_of::<guard_sample>() == 40 && size_of::<guard_sampling>() == 32);

/// How old samples become in the buffers, in nanoseconds: in that time what another CPU has taken earlier is written.
const HOLD: u64 = 2_000_000;

/// What is sampled of dropped packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardSampling {
    /// One packet in so many, by reason, in the order of [`GuardReason::ALL`]; 0 is none, as for what is not there.
    pub every: Vec<u32>,
    /// Samples of each reason a second at most.
    pub rate: GuardRate,
    /// Octets of a packet, [`GuardSampling::SNAPLEN`] at most.
    pub snaplen: u32,
}

impl GuardSampling {
    /// The most octets of a packet.
    pub const SNAPLEN: u32 = guard_limit::GUARD_SNAPLEN.0;
}

/// What became of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuardSamplingCount {
    /// Went into a buffer.
    pub taken: u64,
    /// Left out by the rate.
    pub limited: u64,
    /// Found no room in the buffer, or none was open.
    pub lost: u64,
}

/// A sample as it lies in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardSample<'a> {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// The interface.
    pub ifindex: u32,
    /// The receive queue.
    pub queue: u32,
    /// Octets of the packet.
    pub length: u32,
    /// Why it was dropped.
    pub reason: GuardReason,
    /// The number of the rule that dropped it, and the [`generation`](super::Guard::generation) that it is of.
    pub rule: Option<(u32, u32)>,
    /// It passed, because of a dry run.
    pub passed: bool,
    /// The packet's first octets.
    pub data: &'a [u8],
}

impl<'a> GuardSample<'a> {
    fn parse(record: &'a [u8]) -> Option<Self> {
        let long = |at: usize| record.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let word = |at: usize| record.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let head = size_of::<guard_sample>();
        let octets = word(offset_of!(guard_sample, octets))? as usize;
        let rule = word(offset_of!(guard_sample, rule))?;
        let reason = word(offset_of!(guard_sample, reason))? as usize;
        let generation = word(offset_of!(guard_sample, generation))?;
        Some(Self {
            time: long(offset_of!(guard_sample, time))?,
            ifindex: word(offset_of!(guard_sample, ifindex))?,
            queue: word(offset_of!(guard_sample, queue))?,
            length: word(offset_of!(guard_sample, length))?,
            reason: *GuardReason::ALL.get(reason)?,
            rule: (rule != guard_limit::GUARD_NO_RULE.0).then_some((rule, generation)),
            passed: word(offset_of!(guard_sample, passed))? != 0,
            data: record.get(head..head.checked_add(octets)?)?,
        })
    }
}

/// The buffers, one a CPU.
#[derive(Debug)]
pub struct GuardSamples {
    rings: PerfRings,
    room: Vec<u8>,
    /// Of one reading: time, buffer and position.
    found: Vec<(u64, usize, u64)>,
}

impl GuardSamples {
    pub(super) fn open(map: BorrowedFd<'_>, octets: usize) -> Result<Self, Error> {
        Ok(Self { rings: PerfRings::open(map, octets)?, room: Vec::new(), found: Vec::new() })
    }

    /// Waits until a buffer is a quarter full, or for `timeout`.
    ///
    /// # Errors
    /// The kernel's, other than a signal.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        self.rings.wait(timeout)
    }

    /// Hands over what has come, in the order of time, but for the last two milliseconds: samples of another CPU may lie
    /// before those. `all`: those too.
    pub fn read(&mut self, all: bool, each: &mut dyn FnMut(&GuardSample<'_>)) {
        let until = if all { u64::MAX } else { monotonic().saturating_sub(HOLD) };
        self.found.clear();
        let mut behind = Vec::with_capacity(self.rings.count());
        for ring in 0..self.rings.count() {
            let (head, mut at) = (self.rings.head(ring), self.rings.tail(ring));
            while at < head {
                let Some((record, next)) = self.rings.record(ring, at, head, &mut self.room) else {
                    // Not a record: nothing behind it can be found.
                    at = head;
                    break;
                };
                if let Some(sample) = GuardSample::parse(record) {
                    if sample.time > until {
                        break;
                    }
                    self.found.push((sample.time, ring, at));
                }
                at = next;
            }
            behind.push((at, head));
        }
        self.found.sort_unstable();
        for (_, ring, at) in &self.found {
            let head = behind.get(*ring).map_or(0, |(_, head)| *head);
            let record = self.rings.record(*ring, *at, head, &mut self.room);
            if let Some(sample) = record.and_then(|(record, _)| GuardSample::parse(record)) {
                each(&sample);
            }
        }
        for (ring, (at, _)) in behind.into_iter().enumerate() {
            self.rings.release(ring, at);
        }
    }
}

/// Sets what the program samples.
pub(super) fn set(maps: &mut OpenGuardMaps<'_>, sampling: Option<&GuardSampling>, generation: u32) {
    let Some(knobs) = maps.rodata_data.as_deref_mut() else { return };
    knobs.generation = generation;
    let Some(sampling) = sampling else { return };
    knobs.has_samples = true;
    for (to, every) in knobs.sample_every.iter_mut().zip(&sampling.every) {
        *to = *every;
    }
    (knobs.sample_cost, knobs.sample_burst) = sampling.rate.times();
    knobs.sample_snaplen = sampling.snaplen.min(GuardSampling::SNAPLEN);
}
