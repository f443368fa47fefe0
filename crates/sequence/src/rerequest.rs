//! The [`Rerequester`]: asks a MoldUDP64 re-request server for the messages that an [`Arbiter`] waits for.
//!
//! A hole is requested once it is older than `delay`, because until then another line may fill it. A server answers
//! with one packet of as many messages as fit. The rest is requested at once. A request that is not answered within
//! `timeout` is repeated, `retries` times. After that the hole is left to its hold time. Replies go to the arbiter as
//! [`crate::Line::Reply`], and to [`Rerequester::handle_reply`].

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::arbiter::Arbiter;
use crate::mold::{Downstream, MAX_COUNT, Request, Session};
use crate::ranges::Ranges;

/// Ranges that are not asked for any more.
const MAX_ABANDONED: usize = 1024;

/// How to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RerequestConfig {
    /// How long a message is missing before it is asked for.
    pub delay: Duration,
    /// How long an answer is waited for.
    pub timeout: Duration,
    /// How often a request that is not answered is made again.
    pub retries: u32,
    /// Requests under way at a time, at least 1.
    pub outstanding: usize,
    /// Messages asked for by one request: 1 to 65,534.
    pub count: u16,
}

impl Default for RerequestConfig {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(1),
            timeout: Duration::from_millis(20),
            retries: 3,
            outstanding: 4,
            count: 512,
        }
    }
}

/// What became of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RerequestStats {
    /// Requests made, repeated ones included.
    pub requests: u64,
    /// Requests that were not answered in time.
    pub timeouts: u64,
    /// Requests given up after the last retry.
    pub abandoned: u64,
    /// Replies with messages that had been asked for.
    pub replies: u64,
}

/// Messages asked for and not there yet.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    first: u64,
    end: u64,
    /// When it is due to be asked for again.
    due: Instant,
    /// Times it has been asked for since something came of it.
    attempts: u32,
}

/// Requests for the holes of one arbiter.
#[derive(Debug)]
pub struct Rerequester {
    config: RerequestConfig,
    session: Option<Session>,
    outstanding: Vec<Outstanding>,
    abandoned: Ranges<()>,
    stats: RerequestStats,
}

impl Rerequester {
    /// Nothing is asked for yet. Numbers of `config` out of range are brought into it.
    pub fn new(config: RerequestConfig) -> Self {
        let (outstanding, count) = (config.outstanding.max(1), config.count.clamp(1, MAX_COUNT));
        let config = RerequestConfig { outstanding, count, ..config };
        Self {
            config,
            session: None,
            outstanding: Vec::with_capacity(outstanding),
            abandoned: Ranges::default(),
            stats: RerequestStats::default(),
        }
    }

    /// The next request to be sent now; call until there is none, after each batch of datagrams and when
    /// [`Rerequester::poll_timeout`] has passed.
    pub fn poll_request<S: Copy>(&mut self, now: Instant, arbiter: &Arbiter<S>) -> Option<Request> {
        let session = arbiter.session()?;
        if self.session != Some(session) {
            self.session = Some(session);
            self.outstanding.clear();
            self.abandoned.clear();
        }
        let (first, end) = self.repeat(now, arbiter).or_else(|| self.ask(now, arbiter))?;
        self.stats.requests += 1;
        // No more than `config.count`, which is a u16.
        Some(Request { session, sequence: first, count: (end - first) as u16 })
    }

    /// Something that was asked for and is due again. Forgets what has come or was given up.
    fn repeat<S: Copy>(&mut self, now: Instant, arbiter: &Arbiter<S>) -> Option<(u64, u64)> {
        let Self { config, outstanding, abandoned, stats, .. } = self;
        outstanding.retain_mut(|one| match arbiter.missing(one.first, one.end) {
            Some((first, _)) => {
                one.first = first;
                if one.due > now || one.attempts <= config.retries {
                    return true;
                }
                stats.timeouts += 1;
                stats.abandoned += 1;
                abandon(abandoned, arbiter, (one.first, one.end));
                false
            }
            None => false,
        });
        let one = outstanding.iter_mut().find(|one| one.due <= now)?;
        stats.timeouts += u64::from(one.attempts > 0);
        one.attempts += 1;
        one.due = now + config.timeout;
        Some((one.first, one.end))
    }

    /// Something that was not asked for yet.
    fn ask<S: Copy>(&mut self, now: Instant, arbiter: &Arbiter<S>) -> Option<(u64, u64)> {
        if self.outstanding.len() >= self.config.outstanding {
            return None;
        }
        let ripe = arbiter.holes().take_while(|hole| hole.since + self.config.delay <= now);
        let (first, end) = ripe.filter_map(|hole| self.open_part(hole.first, hole.end)).next()?;
        let due = now + self.config.timeout;
        self.outstanding.push(Outstanding { first, end, due, attempts: 1 });
        Some((first, end))
    }

    /// The first part of a hole that nobody asked for, of one request at most.
    fn open_part(&self, mut first: u64, end: u64) -> Option<(u64, u64)> {
        let taken = |number: u64| {
            let asked = self.outstanding.iter().find(|one| (one.first..one.end).contains(&number));
            let asked = asked.map(|one| one.end);
            asked.or_else(|| {
                let given_up = self.abandoned.iter().find(|range| (range.first..range.end).contains(&number));
                given_up.map(|range| range.end)
            })
        };
        while let Some(behind) = taken(first) {
            first = behind;
        }
        let asked = self.outstanding.iter().map(|one| one.first);
        let given_up = self.abandoned.iter().map(|range| range.first);
        let limit = asked.chain(given_up).filter(|start| *start > first).min().unwrap_or(end);
        let end = end.min(limit).min(first.saturating_add(self.config.count.into()));
        (first < end).then_some((first, end))
    }

    /// Takes note of a datagram from the re-request server: what it left out of a request is asked for at once.
    pub fn handle_reply(&mut self, now: Instant, datagram: &[u8]) {
        let Ok(packet) = Downstream::parse(datagram) else { return };
        if packet.is_empty() || self.session != Some(packet.session) {
            return;
        }
        let answered =
            self.outstanding.iter_mut().find(|one| (one.first..one.end).contains(&packet.sequence));
        if let Some(one) = answered {
            self.stats.replies += 1;
            one.attempts = 0;
            one.due = now;
        }
    }

    /// When [`Rerequester::poll_request`] is to be called next; `None`: not before something is missing.
    pub fn poll_timeout<S: Copy>(&self, arbiter: &Arbiter<S>) -> Option<Instant> {
        // Without a session there is nothing to ask by.
        arbiter.session()?;
        let due = self.outstanding.iter().map(|one| one.due).min();
        if self.outstanding.len() >= self.config.outstanding {
            return due;
        }
        let mut holes = arbiter.holes().filter(|hole| self.open_part(hole.first, hole.end).is_some());
        let ripe = holes.next().map(|hole| hole.since + self.config.delay);
        due.into_iter().chain(ripe).min()
    }

    /// What became of requests.
    pub fn stats(&self) -> RerequestStats {
        self.stats
    }
}

/// Remembers a range as not to be asked for again, and forgets those that nobody waits for any more.
fn abandon<S: Copy>(abandoned: &mut Ranges<()>, arbiter: &Arbiter<S>, (first, end): (u64, u64)) {
    let mut all: Vec<_> = abandoned.iter().map(|range| (range.first, range.end)).collect();
    all.push((first, end));
    all.retain(|(first, end)| arbiter.missing(*first, *end).is_some());
    all.sort_unstable();
    abandoned.clear();
    for (first, end) in all.into_iter().take(MAX_ABANDONED) {
        abandoned.push(first, end, (), MAX_ABANDONED);
    }
}

#[cfg(test)]
#[path = "rerequest_tests.rs"]
mod tests;
