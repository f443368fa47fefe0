//! What the log says of a sequenced feed while it runs: a line a second at most of gaps, and one of all else, however
//! bad the feed is.

use std::time::{Duration, Instant};

use expressway_feed::sequence::Event;

/// Between lines. What is not said meanwhile is in the report.
const INTERVAL: Duration = Duration::from_secs(1);

/// Gaps since the last line.
#[derive(Default)]
pub(super) struct FeedLog {
    said: Option<Instant>,
    said_gaps: Option<Instant>,
    gaps: u64,
    messages: u64,
    /// Number of the first message of the last gap.
    first: u64,
}

impl FeedLog {
    /// Takes note of something; says what is no gap at once, where a line is due.
    pub(super) fn event(&mut self, now: Instant, event: &Event<'_>) {
        match *event {
            Event::Message(_) => {}
            Event::Gap { first, count } => {
                self.gaps += 1;
                self.messages = self.messages.saturating_add(count);
                self.first = first;
            }
            Event::Session(session) if is_due(&mut self.said, now) => {
                tracing::info!(%session, "feed session")
            }
            Event::End { next } if is_due(&mut self.said, now) => tracing::info!(next, "session ended"),
            Event::Reset { expected, found } if is_due(&mut self.said, now) => {
                tracing::warn!(expected, found, "feed numbering restarted");
            }
            Event::Session(_) | Event::End { .. } | Event::Reset { .. } => {}
        }
    }

    /// Says what is missing, where a line is due.
    pub(super) fn write(&mut self, now: Instant) {
        if self.gaps > 0 && is_due(&mut self.said_gaps, now) {
            let Self { gaps, messages, first, .. } = *self;
            tracing::warn!(gaps, messages, first, "messages missing; `first` is the start of the last gap");
            (self.gaps, self.messages) = (0, 0);
        }
    }

    /// When a line is due of what was not said yet.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.said_gaps.filter(|_| self.gaps > 0).map(|said| said + INTERVAL)
    }
}

/// Whether a line may be said that goes by this time, which is then now.
fn is_due(said: &mut Option<Instant>, now: Instant) -> bool {
    let due = said.is_none_or(|said| now.saturating_duration_since(said) >= INTERVAL);
    if due {
        *said = Some(now);
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_said_at_once_and_then_once_a_second() {
        let (mut log, start) = (FeedLog::default(), Instant::now());
        let mut gap = |milliseconds: u64| {
            let now = start + Duration::from_millis(milliseconds);
            log.event(now, &Event::Gap { first: 7, count: 2 });
            log.write(now);
            (log.gaps, log.messages, log.poll_timeout().map(|at| at - start))
        };
        let second = Some(Duration::from_secs(1));
        assert_eq!(gap(0), (0, 0, None));
        assert_eq!(gap(1), (1, 2, second));
        assert_eq!(gap(999), (2, 4, second));
        assert_eq!(gap(1000), (0, 0, None));
    }
}
