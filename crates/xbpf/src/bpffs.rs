//! The BPF file system: where dispatchers and their components are pinned, and the locks beside them.
//!
//! ```text
//!   /sys/fs/bpf/                          or $LIBXDP_BPFFS
//!   ├── xdp/                              libxdp's; changes need its flock
//!   │   └── dispatch-IFINDEX-DISPATCHER/
//!   │       ├── prog0-prog  prog0-link    by slot: the component, and its link to the dispatcher
//!   │       └── prog1-prog  prog1-link …
//!   └── expressway/
//!       ├── PROGRAM/                      flocked by the component's process while it lives: one that can
//!       │                                 be locked belongs to a killed process
//!       ├── NAME-NAMESPACE-IFINDEX/       likewise, of a program that outlives its process
//!       │   └── link                      keeps it on the interface
//!       └── NAME-NAMESPACE-tables/        likewise, of maps that do
//! ```

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

use crate::sys;

/// `BPF_FS_MAGIC` (`include/uapi/linux/magic.h`).
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// How long another program may hold libxdp's lock: it loads programs under it, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The directories used here.
#[derive(Clone, Debug)]
pub(crate) struct BpfFs {
    root: PathBuf,
}

/// A held lock; dropped, or at the end of the process, it is released.
#[derive(Debug)]
pub(crate) struct Lock {
    _directory: OwnedFd,
}

impl BpfFs {
    /// `$LIBXDP_BPFFS`, or `/sys/fs/bpf`, which must be a BPF file system.
    pub(crate) fn open() -> io::Result<Self> {
        let root = std::env::var_os("LIBXDP_BPFFS").unwrap_or_else(|| "/sys/fs/bpf".into());
        let root = PathBuf::from(root);
        let kind = rustix::fs::statfs(&root)?.f_type;
        if kind as u64 & 0xffff_ffff != BPF_FS_MAGIC {
            let path = root.display();
            let problem = format!("{path} is not a BPF file system: `mount -t bpf bpf {path}`");
            return Err(io::Error::other(problem));
        }
        Ok(Self { root })
    }

    /// Takes libxdp's lock.
    pub(crate) fn lock(&self) -> io::Result<Lock> {
        let directory = self.root.join("xdp");
        make(&directory)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(lock) = try_lock(&directory)? {
                return Ok(lock);
            }
            if Instant::now() > deadline {
                let problem = format!("{} is still locked by another program", directory.display());
                return Err(io::Error::other(problem));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Where the components of a dispatcher are pinned.
    pub(crate) fn dispatcher(&self, ifindex: u32, id: u32) -> PathBuf {
        self.root.join("xdp").join(format!("dispatch-{ifindex}-{id}"))
    }

    /// The directories of all dispatchers of an interface index, those of interfaces that are gone included.
    pub(crate) fn dispatchers(&self, ifindex: u32) -> Vec<PathBuf> {
        let prefix = format!("dispatch-{ifindex}-");
        let of_index = |path: &PathBuf| {
            path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(&prefix))
        };
        let entries = fs::read_dir(self.root.join("xdp")).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(of_index).collect()
    }

    /// Marks a component, by its program's ID, or a pinned link as this process's until the lock is dropped.
    pub(crate) fn own(&self, owned: &str) -> io::Result<Lock> {
        let directory = self.owner(owned);
        make(&self.root.join("expressway"))?;
        make(&directory)?;
        try_lock(&directory)?
            .ok_or_else(|| io::Error::other(format!("{} is locked already", directory.display())))
    }

    /// Whether a component's process has ended. If so, removes what it left here.
    pub(crate) fn is_orphan(&self, owned: &str) -> bool {
        let orphan = match try_lock(&self.owner(owned)) {
            Ok(lock) => lock.is_some(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if orphan {
            self.disown(owned);
        }
        orphan
    }

    /// The names below a prefix that stand for links, whoever owns them.
    pub(crate) fn links(&self, prefix: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join("expressway")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with(prefix) && self.link(name).exists()).collect()
    }

    /// Removes the directory of what is gone.
    pub(crate) fn disown(&self, owned: &str) {
        let _ = fs::remove_dir(self.owner(owned));
    }

    /// Where the link that [`BpfFs::own`] made this process's is pinned.
    pub(crate) fn link(&self, owned: &str) -> PathBuf {
        self.owner(owned).join("link")
    }

    /// The directory that [`BpfFs::own`] made this process's.
    pub(crate) fn owned(&self, owned: &str) -> PathBuf {
        self.owner(owned)
    }

    fn owner(&self, owned: &str) -> PathBuf {
        self.root.join("expressway").join(owned)
    }
}

/// The pins of a slot: program, link.
pub(crate) fn pins(directory: &Path, slot: usize) -> [PathBuf; 2] {
    ["prog", "link"].map(|what| directory.join(format!("prog{slot}-{what}")))
}

/// Pins components and links, in order of their slots; all or nothing.
pub(crate) fn pin<'a>(
    directory: &Path,
    slots: impl Iterator<Item = [std::os::fd::BorrowedFd<'a>; 2]>,
) -> io::Result<()> {
    make(directory)?;
    for (slot, objects) in slots.enumerate() {
        for (path, object) in pins(directory, slot).iter().zip(objects) {
            if let Err(error) = sys::pin(object, path) {
                unpin(directory);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Removes a dispatcher's directory and what is pinned in it.
pub(crate) fn unpin(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
    if let Err(error) = fs::remove_dir(directory) {
        tracing::debug!(directory = %directory.display(), %error, "not removed");
    }
}

fn make(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// `None` if another process holds it.
fn try_lock(directory: &Path) -> io::Result<Option<Lock>> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = open(directory, flags, Mode::empty())?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Lock { _directory: directory })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
