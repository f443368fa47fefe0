//! Times at the beginning of lines.

use std::fmt::Write;

use chrono::{DateTime, Local, TimeZone};

/// How times are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeFormat {
    /// Local time of the day.
    #[default]
    Time,
    /// Not at all (`-t`).
    None,
    /// Seconds since the epoch (`-tt`).
    Epoch,
    /// Since the packet before (`-ttt`).
    Previous,
    /// Local date and time (`-tttt`).
    Date,
    /// Since the first packet (`-ttttt`).
    First,
}

#[derive(Debug)]
pub(super) struct Clock {
    format: TimeFormat,
    nano: bool,
    /// The time that others are told from.
    from: Option<u64>,
}

const SECOND: u64 = 1_000_000_000;

impl Clock {
    pub(super) fn new(format: TimeFormat, nano: bool) -> Self {
        Self { format, nano, from: None }
    }

    /// Appends a time in nanoseconds since the epoch, and a space.
    pub(super) fn print(&mut self, time: u64, out: &mut String) {
        let (seconds, nanos) = (time / SECOND, time % SECOND);
        let local = || -> Option<DateTime<Local>> {
            Local.timestamp_opt(i64::try_from(seconds).ok()?, nanos as u32).single()
        };
        match self.format {
            TimeFormat::None => return,
            TimeFormat::Epoch => {
                let _ = write!(out, "{seconds}");
            }
            TimeFormat::Time | TimeFormat::Date => {
                let format = if self.format == TimeFormat::Date { "%Y-%m-%d %H:%M:%S" } else { "%H:%M:%S" };
                let _ = match local() {
                    Some(local) => write!(out, "{}", local.format(format)),
                    None => write!(out, "{seconds}"),
                };
            }
            TimeFormat::Previous | TimeFormat::First => {
                let from = *self.from.get_or_insert(time);
                if self.format == TimeFormat::Previous {
                    self.from = Some(time);
                }
                if time < from {
                    out.push('-');
                }
                let difference = time.abs_diff(from);
                let seconds = difference / SECOND;
                let _ = write!(out, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
                self.fraction(difference % SECOND, out);
                return;
            }
        }
        self.fraction(nanos, out);
    }

    fn fraction(&self, nanos: u64, out: &mut String) {
        let _ = match self.nano {
            true => write!(out, ".{nanos:09} "),
            false => write!(out, ".{:06} ", nanos / 1000),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_asked_for() {
        let shown = |format, nano, times: &[u64]| {
            let mut clock = Clock::new(format, nano);
            let mut out = String::new();
            times.iter().for_each(|time| clock.print(*time, &mut out));
            out
        };
        let time = 1_800_000_000_123_456_789;
        assert_eq!(shown(TimeFormat::None, false, &[time]), "");
        assert_eq!(shown(TimeFormat::Epoch, false, &[time]), "1800000000.123456 ");
        assert_eq!(shown(TimeFormat::Epoch, true, &[time]), "1800000000.123456789 ");
        let later = time + 3_723 * SECOND + 1000;
        assert_eq!(
            shown(TimeFormat::Previous, false, &[time, later, time]),
            "00:00:00.000000 01:02:03.000001 -01:02:03.000001 "
        );
        assert_eq!(
            shown(TimeFormat::First, true, &[time, later, time]),
            "00:00:00.000000000 01:02:03.000001000 00:00:00.000000000 "
        );
        let local = shown(TimeFormat::Date, false, &[time]);
        assert!(local.starts_with("2027-01-1") && local.ends_with(".123456 "), "{local}");
        assert_eq!(shown(TimeFormat::Time, false, &[time]), local[11..]);
        assert!(shown(TimeFormat::Time, false, &[u64::MAX]).ends_with(".709551 "));
    }
}
