//! How a capture is divided into files, and their names: as in tcpdump.

use std::path::PathBuf;
use std::time::Duration;

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Local};

/// When a file is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Octets after which the next file begins (`-C`).
    pub size: Option<u64>,
    /// Time after which the next file begins (`-G`).
    pub period: Option<Duration>,
    /// With a size: as many files are kept, the oldest is written over. With a period: the capture ends after as many
    /// (`-W`).
    pub count: Option<u32>,
}

/// Why files cannot be called so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A count with nothing to count.
    #[error("-W needs -C or -G")]
    Count,
    /// Count, size and period at once.
    #[error("-W counts the files of -C or of -G, not of both")]
    Both,
    /// Not a format of strftime.
    #[error("the file name is not a valid strftime format")]
    Format,
}

/// The names of a capture's files, one after another.
#[derive(Debug)]
pub(super) struct Names {
    base: PathBuf,
    rotation: Rotation,
    /// Number of the next file, within its period where names tell periods apart.
    number: u32,
    /// Files so far.
    made: u64,
}

impl Names {
    pub(super) fn new(base: PathBuf, rotation: Rotation) -> Result<Self, NameError> {
        match rotation {
            Rotation { size: None, period: None, count: Some(_) } => return Err(NameError::Count),
            Rotation { size: Some(_), period: Some(_), count: Some(_) } => return Err(NameError::Both),
            _ => {}
        }
        let names = Self { base, rotation, number: 0, made: 0 };
        if names.is_format() {
            let base = names.base.to_str().ok_or(NameError::Format)?;
            if StrftimeItems::new(base).any(|item| matches!(item, Item::Error)) {
                return Err(NameError::Format);
            }
        }
        Ok(names)
    }

    /// Has a ring go on behind the file that was changed last.
    pub(super) fn resume(&mut self) {
        let Some(count) = self.rotation.count.filter(|_| self.rotation.size.is_some()) else { return };
        let changed = |number: u32| std::fs::metadata(self.ring_name(count, number)).ok()?.modified().ok();
        let newest = (0..count).filter_map(|number| Some((changed(number)?, number))).max();
        self.number = newest.map_or(0, |(_, number)| (number + 1) % count);
    }

    /// The file of that number in a ring of so many.
    fn ring_name(&self, count: u32, number: u32) -> PathBuf {
        let digits = (count - 1).checked_ilog10().map_or(0, |digits| digits as usize + 1);
        let mut name = self.base.clone();
        if digits > 0 {
            name.as_mut_os_string().push(format!("{number:0digits$}"));
        }
        name
    }

    pub(super) fn rotation(&self) -> Rotation {
        self.rotation
    }

    /// Whether the name says when a file begins.
    fn is_format(&self) -> bool {
        self.rotation.period.is_some() && self.base.as_os_str().as_encoded_bytes().contains(&b'%')
    }

    /// The next file's name; `None` after the last. `period`: because the time of the one before is over.
    pub(super) fn next(&mut self, now: DateTime<Local>, period: bool) -> Option<PathBuf> {
        let Rotation { size, count, .. } = self.rotation;
        if size.is_none() && count.is_some_and(|count| self.made >= u64::from(count)) {
            return None;
        }
        let mut name = self.base.clone();
        let is_format = self.is_format();
        if is_format {
            if period {
                self.number = 0;
            }
            if let Some(base) = self.base.to_str() {
                name = now.format(base).to_string().into();
            }
        }
        // Periods that the name does not tell apart are numbered, or each would write over the one before.
        let numbered = size.is_some() || !is_format;
        let ring = count.filter(|_| size.is_some());
        if let Some(count) = ring {
            name = self.ring_name(count, self.number);
        } else if numbered && self.number > 0 {
            name.as_mut_os_string().push(self.number.to_string());
        }
        self.number = match ring {
            Some(count) => (self.number + 1) % count,
            None => self.number.saturating_add(1),
        };
        self.made += 1;
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeZone;

    use super::*;

    fn names(base: &str, size: Option<u64>, period: Option<u64>, count: Option<u32>) -> Names {
        let rotation = Rotation { size, period: period.map(Duration::from_secs), count };
        Names::new(base.into(), rotation).unwrap()
    }

    fn made(mut names: Names, periods: &[bool]) -> Vec<String> {
        let time = |minute| Local.with_ymd_and_hms(2026, 11, 24, 10, minute, 0).unwrap();
        let mut minute = 0;
        let one = |period: &bool| {
            minute += u32::from(*period);
            names.next(time(minute), *period).map(|path| path.display().to_string())
        };
        periods.iter().map_while(one).collect()
    }

    #[test]
    fn files_are_called_as_tcpdump_calls_them() {
        assert_eq!(made(names("a", None, None, None), &[false]), ["a"]);
        assert_eq!(made(names("a%", Some(1), None, None), &[false; 3]), ["a%", "a%1", "a%2"]);
        assert_eq!(made(names("a", Some(1), None, Some(3)), &[false; 4]), ["a0", "a1", "a2", "a0"]);
        assert_eq!(made(names("a", Some(1), None, Some(1)), &[false; 2]), ["a", "a"]);
        let eleven = made(names("a", Some(1), None, Some(11)), &[false; 12]);
        assert_eq!((&*eleven[0], &*eleven[10], &*eleven[11]), ("a00", "a10", "a00"));
        assert_eq!(made(names("a-%H%M", None, Some(60), None), &[false, true]), ["a-1000", "a-1001"]);
        assert_eq!(
            made(names("a-%M", Some(1), Some(60), None), &[false, false, true, false]),
            ["a-00", "a-001", "a-01", "a-011"]
        );
    }

    #[test]
    fn periods_without_a_format_write_over_nothing_and_a_count_ends_them() {
        assert_eq!(made(names("a", None, Some(60), None), &[false, true, true]), ["a", "a1", "a2"]);
        assert_eq!(made(names("a-%M", None, Some(60), Some(2)), &[false, true, true]), ["a-00", "a-01"]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |size, period: Option<u64>, count, base: &str| {
            let rotation = Rotation { size, period: period.map(Duration::from_secs), count };
            Names::new(base.into(), rotation).err()
        };
        assert_eq!(refused(None, None, Some(1), "a"), Some(NameError::Count));
        assert_eq!(refused(Some(1), Some(1), Some(1), "a"), Some(NameError::Both));
        assert_eq!(refused(None, Some(1), None, "a%!"), Some(NameError::Format));
        assert_eq!(refused(Some(1), None, None, "a%!"), None);
    }
}
