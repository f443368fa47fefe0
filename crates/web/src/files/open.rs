//! An open regular file and what identifies its content.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use rustix::fs::{FileType, Stat, Timespec, fstat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::condition::Validators;
use crate::date::http_date;
use crate::memory::Memory;

/// What tells one version of a file from another, as far as a file system lets that be seen.
///
/// The kernel's own count of changes (STATX_CHANGE_COOKIE) is not shown to programs (`cp_statx` in Linux's `fs/stat.c`),
/// so that times have to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Octets.
    pub(crate) size: u64,
    /// Modification time: seconds and nanoseconds since the epoch.
    pub(crate) modified: (i64, u32),
    /// Change time, which moves with each write too, and which nobody can put back.
    pub(crate) changed: (i64, u32),
    pub(crate) age: Age,
}

/// What else may be true of a file, of which nothing shows in its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Age {
    /// It changed so short a time before it was opened that another change may have the same times. Nothing that is read
    /// of it is kept. The number tells such openings apart.
    Fresh(i64),
    /// It changed within [`RECENT`]: a write that changes many pages may be under way still, as its times are set before
    /// the first. What is read of it is kept apart, and so no longer used once it has settled.
    Recent,
    /// Neither.
    Settled,
}

/// Twice the longest tick of Linux's clock (100 Hz), in which file systems without finer times count (before Linux 6.13
/// all of them).
const TICK: Duration = Duration::from_millis(20);

/// How long a change is recent, and what file systems that have whole seconds only, or every other (FAT), count in.
const RECENT: Duration = Duration::from_secs(2);

impl Age {
    /// The age at `now` of a change made at `changed`, in seconds and nanoseconds since the epoch. A change
    /// in the future has no age, because the next one will have another time.
    fn new(changed: (i64, u32), now: Timespec) -> Self {
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        let now = nanoseconds(now.tv_sec, now.tv_nsec);
        let since = now.abs_diff(nanoseconds(changed.0, i64::from(changed.1)));
        let granularity = if changed.1 == 0 { RECENT } else { TICK };
        if u128::from(since) <= granularity.as_nanos() {
            Self::Fresh(opening())
        } else if u128::from(since) <= RECENT.as_nanos() {
            Self::Recent
        } else {
            Self::Settled
        }
    }

    /// Whether what is read may be cached.
    pub(crate) fn is_kept(self) -> bool {
        !matches!(self, Self::Fresh(_))
    }

    /// How long an opened file may be trusted before it is looked up again.
    pub(crate) fn is_good_for(self) -> Duration {
        match self {
            Self::Fresh(_) => TICK,
            Self::Recent => RECENT,
            Self::Settled => Duration::MAX,
        }
    }
}

/// The number of an opening: the time in nanoseconds, also of those before a restart.
fn opening() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec)
}

impl Identity {
    fn new(stat: &Stat, now: Timespec) -> Self {
        let time = |seconds, nanoseconds| (seconds, u32::try_from(nanoseconds).unwrap_or(0));
        let changed = time(stat.st_ctime, stat.st_ctime_nsec);
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: time(stat.st_mtime, stat.st_mtime_nsec),
            changed,
            age: Age::new(changed, now),
        }
    }
}

/// What moves a file's change time while its content stays: links to it, its owner and its permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attributes {
    links: u64,
    mode: u32,
    owner: (u32, u32),
}

impl Attributes {
    fn new(stat: &Stat) -> Self {
        Self { links: stat.st_nlink, mode: stat.st_mode, owner: (stat.st_uid, stat.st_gid) }
    }
}

/// What a path turned out to be.
#[derive(Debug)]
pub(crate) enum Opened {
    /// A regular file.
    File(OpenFile),
    /// A directory.
    Directory,
    /// A FIFO, socket or device; never served.
    Special,
}

/// A regular file, open for reading, with its validators as header values.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) fd: OwnedFd,
    pub(crate) identity: Identity,
    attributes: Attributes,
    pub(crate) etag: HeaderValue,
    /// None while a change could leave it unchanged.
    pub(crate) last_modified: Option<HeaderValue>,
    /// See [`Root`](super::root::Root).
    pub(crate) nowait: Arc<AtomicBool>,
    _counted: Counted,
}

/// Counts a file as open.
#[derive(Debug)]
struct Counted(Arc<Memory>);

impl Counted {
    fn new(memory: &Arc<Memory>) -> Self {
        memory.add_file();
        Self(Arc::clone(memory))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.remove_file();
    }
}

impl OpenFile {
    /// Inspects an opened path, and counts it in `memory` if it is a file.
    pub(crate) fn inspect(
        fd: OwnedFd,
        nowait: &Arc<AtomicBool>,
        memory: &Arc<Memory>,
    ) -> Result<Opened, Errno> {
        let stat = fstat(&fd)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Ok(Opened::Directory),
            _ => return Ok(Opened::Special),
        }
        // The clock that files are stamped by.
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let identity = Identity::new(&stat, now);
        let modified = Age::new(identity.modified, now);
        let etag = Bytes::from(etag(&identity, modified));
        let date = || http_date(u64::try_from(identity.modified.0).unwrap_or(0));
        Ok(Opened::File(Self {
            fd,
            identity,
            attributes: Attributes::new(&stat),
            etag: HeaderValue::from_maybe_shared(etag).unwrap_or_else(|_| HeaderValue::from_static("\"\"")),
            last_modified: (modified == Age::Settled).then(date),
            nowait: Arc::clone(nowait),
            _counted: Counted::new(memory),
        }))
    }

    /// Whether the open file still has the content that its identity names. It does not if its change time
    /// has moved without explanation: somebody has written and restored the modification time. Moving a file
    /// away while it is served looks the same and is treated likewise.
    pub(crate) fn is_unchanged(&self) -> Result<bool, Errno> {
        // Who looks while a link is taken off may see the new time and the old count, and both the second time.
        for _ in 0..2 {
            let stat = fstat(&self.fd)?;
            let now = Identity { age: self.identity.age, ..Identity::new(&stat, Timespec::default()) };
            if now == self.identity {
                return Ok(true);
            }
            if (Identity { changed: self.identity.changed, ..now }) != self.identity {
                return Ok(false);
            }
            if Attributes::new(&stat) != self.attributes {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn validators(&self) -> Validators<'_> {
        Validators {
            etag: &self.etag,
            last_modified: self.last_modified.as_ref(),
            modified: self.identity.modified.0.max(0),
        }
    }
}

/// nginx's ETag: modification time in seconds and size, both in hex. As long as a change could leave it as it is, it is
/// weak and has nanoseconds (RFC 9110, 8.8.1), or what no other opening has; it is another once the file has settled.
fn etag(identity: &Identity, modified: Age) -> String {
    let ((seconds, nanoseconds), size) = (identity.modified, identity.size);
    match modified {
        Age::Settled => format!("\"{seconds:x}-{size:x}\""),
        Age::Recent => format!("W/\"{seconds:x}.{nanoseconds:x}-{size:x}\""),
        Age::Fresh(now) => format!("W/\"{seconds:x}.{nanoseconds:x}-{size:x}.{now:x}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGED: (i64, u32) = (784_111_777, 500_000_000);

    /// The age of that change so many milliseconds later.
    fn age(changed: (i64, u32), later: i64) -> Age {
        let now = changed.0 * 1000 + i64::from(changed.1) / 1_000_000 + later;
        Age::new(
            changed,
            Timespec { tv_sec: now.div_euclid(1000), tv_nsec: now.rem_euclid(1000) * 1_000_000 },
        )
    }

    #[test]
    fn a_change_is_fresh_then_recent_then_settled() {
        for later in [-20, 0, 10, 20] {
            assert!(matches!(age(CHANGED, later), Age::Fresh(_)), "{later} ms");
        }
        for later in [-2000, 21, 1000, 2000] {
            assert_eq!(age(CHANGED, later), Age::Recent, "{later} ms");
        }
        for later in [-2001, 2001, 1 << 40] {
            assert_eq!(age(CHANGED, later), Age::Settled, "{later} ms");
        }
        let whole_second = (784_111_777, 0);
        assert!(matches!(age(whole_second, 2000), Age::Fresh(_)), "the next second may be the same to it");
        assert_eq!(age(whole_second, 2001), Age::Settled);
        assert_eq!(Age::new((i64::MIN, 1), Timespec { tv_sec: i64::MAX, tv_nsec: 0 }), Age::Settled);
    }

    #[test]
    fn an_etag_that_may_come_again_is_weak_and_not_the_later_one() {
        let age = Age::Settled;
        let identity = Identity { device: 1, inode: 2, size: 14, modified: CHANGED, changed: CHANGED, age };
        assert_eq!(etag(&identity, Age::Settled), "\"2ebc98a1-e\"");
        assert_eq!(etag(&identity, Age::Recent), "W/\"2ebc98a1.1dcd6500-e\"");
        assert_eq!(etag(&identity, Age::Fresh(255)), "W/\"2ebc98a1.1dcd6500-e.ff\"");
    }
}
