//! Where received datagrams, or the messages made of them, go on to: the ring that other processes read.

use std::time::{Duration, Instant};

use expressway_feed::sequence::{Event, Line, Message};
use expressway_netio::Datagram;
use expressway_netio::broadcast::{Broadcast, BroadcastConfig, ReaderAccessError, Record, flags};
use expressway_netio::io::Timestamp;

use super::feed_log::FeedLog;
use crate::args::Recv as Arguments;
use crate::fail::Failure;

/// How often readers that come and go are attended to.
const ATTENDANCE: Duration = Duration::from_millis(50);
/// Readers at a time.
const READERS: u32 = 64;
/// Gaps that the report lists one by one.
const LISTED: usize = 64;
/// What a record says as its source when it came from a re-request server.
const REPLY: u16 = u16::MAX;

/// What becomes of messages.
pub(super) struct Output {
    ring: Option<Broadcast>,
    attended: Instant,
    log: FeedLog,
    now: Instant,
    /// Number of the next datagram, where datagrams are not numbered themselves.
    datagrams: u64,
    /// The first gaps: first number and count.
    pub(super) gaps: Vec<(u64, u64)>,
}

impl Output {
    /// Makes the ring, if one is asked for.
    pub(super) fn open(arguments: &Arguments) -> Result<Self, Failure> {
        let ring = match &arguments.broadcast {
            None => None,
            Some(path) => {
                let capacity = arguments.broadcast_size.0 as usize;
                let largest = usize::from(u16::MAX).min((capacity / 4).saturating_sub(32));
                let config = BroadcastConfig::new(path);
                let ring = Broadcast::new(BroadcastConfig { capacity, largest, readers: READERS, ..config });
                Some(ring.map_err(|error| match error {
                    ReaderAccessError::Config { value, must, .. } => {
                        Failure::usage(format!("--broadcast-size {value}: {must}"))
                    }
                    other => Failure::run_time(format!("--broadcast: {other}")),
                })?)
            }
        };
        let (now, gaps) = (Instant::now(), Vec::with_capacity(LISTED));
        Ok(Self { ring, attended: now, log: FeedLog::default(), now, datagrams: 0, gaps })
    }

    /// The ring.
    pub(super) fn ring(&self) -> Option<&Broadcast> {
        self.ring.as_ref()
    }

    /// A datagram of a feed without numbers.
    #[inline]
    pub(super) fn datagram(&mut self, datagram: &Datagram<'_>) {
        if let Some(ring) = &mut self.ring {
            let (timestamp, flags) = stamped(datagram.hints.timestamp);
            let number = self.datagrams;
            ring.push(&Record { data: datagram.payload, timestamp, number, flags, source: 0 });
            self.datagrams += 1;
        }
    }

    /// The time, before what comes at that time.
    pub(super) fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Something of a sequenced feed.
    #[inline]
    pub(super) fn event(&mut self, event: Event<'_>) {
        self.log.event(self.now, &event);
        if let Event::Gap { first, count } = event
            && self.gaps.len() < LISTED
        {
            self.gaps.push((first, count));
        }
        let Some(ring) = &mut self.ring else { return };
        let count;
        let session;
        let record = match event {
            Event::Message(Message { sequence, data, line, stamp, late }) => {
                let (timestamp, stamped) = stamped(stamp);
                Record {
                    data,
                    timestamp,
                    number: sequence,
                    flags: stamped | if late { flags::LATE } else { 0 },
                    source: match line {
                        Line::Feed(line) => line.into(),
                        Line::Reply => REPLY,
                    },
                }
            }
            Event::Gap { first, count: missing } => {
                count = missing.to_ne_bytes();
                Record { data: &count, number: first, flags: flags::GAP, ..Record::default() }
            }
            Event::Session(name) => {
                session = name.0;
                Record { data: &session, flags: flags::SESSION, ..Record::default() }
            }
            Event::Reset { found, .. } => Record { number: found, flags: flags::RESET, ..Record::default() },
            Event::End { next } => Record { number: next, flags: flags::END, ..Record::default() },
        };
        ring.push(&record);
    }

    /// Shows readers what has come, and attends to them now and then.
    pub(super) fn end_batch(&mut self) {
        let now = self.now;
        self.log.write(now);
        if let Some(ring) = &mut self.ring {
            ring.publish();
            if now >= self.attended + ATTENDANCE {
                ring.attend();
                self.attended = now;
            }
        }
    }

    /// When [`Output::end_batch`] is wanted, come what may.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let attendance = self.ring.as_ref().map(|_| self.attended + ATTENDANCE);
        attendance.into_iter().chain(self.log.poll_timeout()).min()
    }
}

/// The time of a record and the flag that says whose it is.
fn stamped(stamp: Option<Timestamp>) -> (u64, u16) {
    stamp.map_or((0, 0), |stamp| (stamp.nanoseconds, flags::of_source(stamp.source)))
}
