//! The durations of steps.

use hdrhistogram::Histogram;

use super::request::{Request, Stamp};

/// Longest time that is told apart, in nanoseconds: longer than any timeout.
const LONGEST: u64 = 3_600_000_000_000;

/// Significant digits of percentiles.
const DIGITS: u8 = 3;

/// A step of a request: from one place to another.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Short, for a table and JSON.
    pub name: &'static str,
    from: Stamp,
    to: Stamp,
}

const fn step(name: &'static str, from: Stamp, to: Stamp) -> Step {
    Step { name, from, to }
}

/// Steps of requests, in order. Some overlap.
pub const STEPS: [Step; 11] = [
    step("receive", Stamp::Arrived, Stamp::Taken),
    step("decrypt", Stamp::Taken, Stamp::Opened),
    step("turn", Stamp::Opened, Stamp::Request),
    step("dispatch", Stamp::Request, Stamp::Started),
    step("answer", Stamp::Started, Stamp::Answered),
    step("build", Stamp::Answered, Stamp::Built),
    step("flush", Stamp::Built, Stamp::Flushed),
    step("complete", Stamp::Built, Stamp::Completed),
    step("body", Stamp::Answered, Stamp::Written),
    step("acknowledge", Stamp::Written, Stamp::Acknowledged),
    step("whole", Stamp::Taken, Stamp::Acknowledged),
];

/// Steps of packets.
pub const PACKET_STEPS: [&str; 5] =
    ["datagram receive", "datagram decrypt", "burst build", "flush", "burst complete"];

/// Measurements of at most so long, and of more than the bucket before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Bucket {
    /// Nanoseconds, included.
    pub le: u64,
    /// How many.
    pub count: u64,
}

/// The first bucket holds what took less than so many bits of nanoseconds say: 1.024 µs. Each further one goes to twice as much.
const FIRST: u32 = 10;

/// In which bucket a time is.
const fn bucket(nanoseconds: u64) -> usize {
    (u64::BITS - (nanoseconds >> FIRST).leading_zeros()) as usize
}

/// How long some steps took.
#[derive(Clone, Debug)]
pub struct Steps<const N: usize> {
    times: Vec<Histogram<u64>>,
}

/// A line of the table. Times are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Row {
    /// The step.
    pub step: &'static str,
    /// How many were measured.
    pub count: u64,
    /// Half took this or less.
    pub p50: u64,
    /// Nine in ten.
    pub p90: u64,
    /// Ninety-nine in a hundred.
    pub p99: u64,
    /// The longest.
    pub max: u64,
    /// How many took how long: from the first bucket that has any to the last, without gaps. The first of all ends at 1023 ns, each
    /// further one at twice as much.
    pub buckets: Vec<Bucket>,
}

impl Row {
    /// The same from the first of all buckets on, the last of which holds what is beyond.
    pub fn counts<const N: usize>(&self) -> [u64; N] {
        let mut counts = [0; N];
        for Bucket { le, count } in &self.buckets {
            counts[bucket(*le).min(N - 1)] += count;
        }
        counts
    }
}

fn buckets(times: &Histogram<u64>) -> Vec<Bucket> {
    let mut counts: Vec<u64> = Vec::new();
    // No longer than a word has bits. Values that the histogram takes for the same are in one bucket: both divide at powers of two.
    for value in times.iter_recorded() {
        let at = bucket(value.value_iterated_to());
        counts.resize(counts.len().max(at + 1), 0);
        counts[at] += value.count_at_value();
    }
    let buckets = counts.into_iter().zip(0..);
    let all = buckets.map(|(count, at)| Bucket { le: (1 << (FIRST + at)) - 1, count });
    all.skip_while(|bucket| bucket.count == 0).collect()
}

impl<const N: usize> Default for Steps<N> {
    fn default() -> Self {
        let empty = || Histogram::new_with_bounds(1, LONGEST, DIGITS).expect("the bounds are constants");
        Self { times: (0..N).map(|_| empty()).collect() }
    }
}

impl<const N: usize> Steps<N> {
    pub(super) fn add(&mut self, step: usize, from: u64, to: u64) {
        self.times[step].saturating_record(to.saturating_sub(from));
    }

    pub(super) fn rows(&self, names: [&'static str; N]) -> Vec<Row> {
        let row = |(step, times): (&'static str, &Histogram<u64>)| {
            let at = |quantile| times.value_at_quantile(quantile).min(times.max());
            let (count, max) = (times.len(), times.max());
            Row { step, count, p50: at(0.5), p90: at(0.9), p99: at(0.99), max, buckets: buckets(times) }
        };
        names.into_iter().zip(&self.times).map(row).filter(|row| row.count > 0).collect()
    }
}

impl Steps<{ STEPS.len() }> {
    /// Takes in what is known of a request.
    pub(super) fn take(&mut self, request: &Request) {
        for (index, step) in STEPS.iter().enumerate() {
            if let (Some(from), Some(to)) = (request.time(step.from), request.time(step.to)) {
                self.add(index, from, to);
            }
        }
    }
}
