//! An open regular file and what identifies its content.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use http::HeaderValue;
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;

use crate::condition::Validators;
use crate::date::http_date;
use crate::memory::Memory;

/// What tells one version of a file from another. Not the change time: a rename over the file or a `chmod`
/// moves it while the content stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Octets.
    pub(crate) size: u64,
    /// Modification time: seconds and nanoseconds since the epoch.
    pub(crate) modified: (i64, u32),
}

impl Identity {
    fn new(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        }
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
    pub(crate) etag: HeaderValue,
    pub(crate) last_modified: HeaderValue,
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
    /// Looks at what was opened, and counts it in `memory` if it is a file. The ETag is nginx's: modification time in seconds and size, both in hex.
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
        let identity = Identity::new(&stat);
        let seconds = identity.modified.0;
        let etag = Bytes::from(format!("\"{:x}-{:x}\"", seconds, identity.size));
        Ok(Opened::File(Self {
            fd,
            identity,
            etag: HeaderValue::from_maybe_shared(etag).unwrap_or_else(|_| HeaderValue::from_static("\"\"")),
            last_modified: http_date(u64::try_from(seconds).unwrap_or(0)),
            nowait: Arc::clone(nowait),
            _counted: Counted::new(memory),
        }))
    }

    /// Whether the open file still has the content that its identity names.
    pub(crate) fn is_unchanged(&self) -> Result<bool, Errno> {
        Ok(Identity::new(&fstat(&self.fd)?) == self.identity)
    }

    pub(crate) fn validators(&self) -> Validators<'_> {
        Validators {
            etag: &self.etag,
            last_modified: &self.last_modified,
            modified: self.identity.modified.0.max(0),
        }
    }
}
