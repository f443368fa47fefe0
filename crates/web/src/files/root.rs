//! The root directory of a site: the only way from a path to the file system.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;

use super::Symlinks;

/// `openat2` reports EAGAIN when a rename elsewhere races with a `..` or a link under RESOLVE_BENEATH
/// (openat2(2)); a handful of retries has always been enough there, this many is proof of an attack.
const RACE_RETRIES: usize = 32;

/// An open root directory.
#[derive(Debug)]
pub(crate) struct Root {
    /// Distinguishes roots in cache keys; never reused within the process.
    pub(crate) id: u64,
    directory: OwnedFd,
    resolve: ResolveFlags,
    /// Cleared for good when the file system cannot do RWF_NOWAIT (some overlays and network file systems).
    pub(crate) nowait: Arc<AtomicBool>,
    /// The kernel knows RESOLVE_CACHED (Linux 5.12). Found out at the start: later, EINVAL may be what a file system says
    /// of a name, which any client can ask for.
    cached: bool,
}

impl Root {
    /// Opens `path`, which may itself lead through symbolic links.
    pub(crate) fn open(path: &Path, symlinks: Symlinks) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let directory = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let resolve = match symlinks {
            Symlinks::Deny => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
            Symlinks::Beneath => ResolveFlags::BENEATH,
            Symlinks::Follow => ResolveFlags::empty(),
        };
        let mut root = Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            directory,
            resolve: resolve | ResolveFlags::NO_MAGICLINKS,
            nowait: Arc::new(AtomicBool::new(true)),
            cached: true,
        };
        root.cached =
            !matches!(root.open_beneath(b"/", OFlags::PATH, ResolveFlags::CACHED), Err(Errno::INVAL));
        match root.open_beneath(b"/", OFlags::PATH, ResolveFlags::empty()) {
            Err(Errno::NOSYS) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "openat2 is not available: needs Linux 5.6 or newer and a seccomp filter that allows it",
            )),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(root),
        }
    }

    /// Opens `path` (normalised, beginning with `/`) for reading. With `cached`, only from the kernel's
    /// directory cache: `AGAIN` means that a thread that may block has to do it.
    ///
    /// O_NONBLOCK keeps a FIFO from waiting for a writer; O_NOCTTY a terminal from becoming ours.
    pub(crate) fn open_file(&self, path: &[u8], cached: bool) -> Result<OwnedFd, Errno> {
        self.open_with(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, cached)
    }

    /// Whether `path`, which ends with `/`, is a directory.
    pub(crate) fn test_directory(&self, path: &[u8], cached: bool) -> Result<(), Errno> {
        self.open_with(path, OFlags::PATH | OFlags::DIRECTORY, cached).map(drop)
    }

    fn open_with(&self, path: &[u8], flags: OFlags, cached: bool) -> Result<OwnedFd, Errno> {
        if !cached {
            for _ in 0..RACE_RETRIES {
                match self.open_beneath(path, flags, ResolveFlags::empty()) {
                    Err(Errno::AGAIN) => std::thread::yield_now(),
                    result => return result,
                }
            }
            return Err(Errno::LOOP);
        }
        if !self.cached {
            return Err(Errno::AGAIN);
        }
        self.open_beneath(path, flags, ResolveFlags::CACHED)
    }

    fn open_beneath(&self, path: &[u8], flags: OFlags, extra: ResolveFlags) -> Result<OwnedFd, Errno> {
        debug_assert!(path.starts_with(b"/"));
        let relative = match &path[1..] {
            b"" => b".",
            relative => relative,
        };
        loop {
            let flags = flags | OFlags::CLOEXEC;
            match openat2(&self.directory, relative, flags, Mode::empty(), self.resolve | extra) {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }
}
