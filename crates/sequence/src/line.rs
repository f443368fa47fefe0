//! One line of a feed: a copy of the stream that arrives over its own path.

use std::time::{Duration, Instant};

use crate::mold::Session;
use crate::stats::LineStats;

/// Where a datagram came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line of the feed, numbered from 0: A, B and so on.
    Feed(u8),
    /// A re-request server.
    Reply,
}

impl Line {
    /// Its name in messages and statistics.
    pub fn name(self) -> String {
        match self {
            Self::Feed(number @ 0..26) => char::from(b'A' + number).to_string(),
            Self::Feed(number) => number.to_string(),
            Self::Reply => "reply".to_owned(),
        }
    }
}

/// What is remembered of a line.
#[derive(Debug, Default)]
pub(crate) struct LineState {
    pub(crate) stats: LineStats,
    session: Option<Session>,
    /// Number behind the highest that came; `None` before the first datagram of a session.
    highest: Option<u64>,
    /// Which numbering its numbers are of: one that is behind the arbiter's is over.
    numbering: u64,
    heard: Option<Instant>,
}

/// How a datagram stands to the arbiter's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its numbers are to be compared.
    Current,
    /// It is of a numbering that is over.
    Stale,
    /// The sender has begun anew.
    Reset,
}

/// What the arbiter goes by when it judges a datagram.
#[derive(Clone, Copy)]
pub(crate) struct Reference {
    /// Number expected next, if any.
    pub(crate) next: Option<u64>,
    pub(crate) numbering: u64,
    pub(crate) window: u64,
    pub(crate) restart: Duration,
    /// Going far back means a new numbering, as there are no sessions to say so.
    pub(crate) without_sessions: bool,
}

impl LineState {
    /// Takes note of a datagram with numbers `first..end`.
    pub(crate) fn judge(
        &mut self,
        now: Instant,
        session: Option<Session>,
        (first, end): (u64, u64),
        reference: Reference,
    ) -> Standing {
        let silent =
            self.heard.is_some_and(|heard| now.saturating_duration_since(heard) >= reference.restart);
        self.heard = Some(now);
        if self.session != session {
            self.session = session;
            self.highest = None;
        }
        let Some(highest) = self.highest else {
            self.join(end, reference);
            return Standing::Current;
        };
        // On one line, order is lost within a window at most, and by nothing that slept.
        let far_back = reference.without_sessions && end.saturating_add(reference.window) <= highest;
        if far_back || (silent && end < highest) {
            let leads = self.numbering == reference.numbering;
            self.join(end, reference);
            return if leads { Standing::Reset } else { Standing::Current };
        }
        if self.numbering != reference.numbering {
            let near = reference.next.is_none_or(|next| first.abs_diff(next) <= reference.window);
            if !near {
                return Standing::Stale;
            }
            self.join(end, reference);
            return Standing::Current;
        }
        let skipped = first.saturating_sub(highest);
        self.stats.skipped = self.stats.skipped.saturating_add(skipped);
        self.highest = Some(highest.max(end));
        Standing::Current
    }

    /// Takes part in a numbering that begins with it.
    pub(crate) fn lead(&mut self, numbering: u64) {
        self.numbering = numbering;
    }

    fn join(&mut self, end: u64, reference: Reference) {
        self.highest = Some(end);
        self.numbering = reference.numbering;
    }
}
