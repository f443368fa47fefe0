//! Files as they are written: as a whole or not at all.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Makes a folder that others may not look into, if it is not there.
///
/// # Errors
/// Names the folder.
pub fn folder(path: &Path) -> Result<(), String> {
    DirBuilder::new().recursive(true).mode(0o750).create(path).map_err(|error| named(path, &error))
}

/// Writes a file that must not be there yet.
///
/// # Errors
/// Names the file.
pub fn create(path: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    let written = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).and_then(|file| {
        let filled = fill(file, bytes, mode);
        if filled.is_err() {
            let _ = std::fs::remove_file(path);
        }
        filled
    });
    written.map_err(|error| named(path, &error))
}

/// Who replaces files of a folder, one after another. Others wait until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Lock {
    _folder: File,
}

/// Waits until nobody else replaces files beside this one.
///
/// # Errors
/// Names the file.
pub fn lock(path: &Path) -> Result<Lock, String> {
    let locked = || {
        let folder = File::open(parent(path))?;
        // On the folder: another file has the file's name afterwards.
        while let Err(error) = flock(&folder, FlockOperation::LockExclusive) {
            if error != rustix::io::Errno::INTR {
                return Err(error.into());
            }
        }
        Ok(Lock { _folder: folder })
    };
    locked().map_err(|error| named(path, &error))
}

/// Puts other contents in a file's place by renaming. Mode and owner stay. Whoever makes the contents from those before has a
/// [`lock`] meanwhile. If there is a warning, the file is the new one, but a crash of the machine may bring the former back.
///
/// # Errors
/// Names the file, which is as it was.
pub fn replace(path: &Path, bytes: &[u8], _lock: &Lock) -> Result<Option<String>, String> {
    let beside = beside(path);
    let write = || {
        let before = std::fs::metadata(path)?;
        // What a killed process left that had the same ID is no obstacle.
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        let new = file.metadata()?;
        if (new.uid(), new.gid()) != (before.uid(), before.gid()) {
            fchown(&file, Some(before.uid()), Some(before.gid()))?;
        }
        fill(file, bytes, before.mode() & 0o777)?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        named(path, &error)
    })?;
    let synced = File::open(parent(path)).and_then(|folder| folder.sync_all());
    Ok(synced.err().map(|error| {
        let problem = "was replaced, but its directory cannot be synced: a crash may bring the old file back";
        format!("{}: {problem}: {error}", path.display())
    }))
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name that no other process takes.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    name.into()
}

/// Whatever the umask says, the mode is this.
fn fill(mut file: File, bytes: &[u8], mode: u32) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn named(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        super::folder(path.parent().unwrap()).unwrap();
        create(&path, b"one", 0o640).unwrap();
        assert!(create(&path, b"two", 0o640).unwrap_err().contains("exists"));
        std::fs::write(beside(&path), "left over").unwrap();
        let held = lock(&path).unwrap();
        assert_eq!(replace(&path, b"three", &held), Ok(None));
        assert_eq!(std::fs::read(&path).unwrap(), b"three");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let none = folder.path().join("none");
        assert!(replace(&none, b"", &held).unwrap_err().contains("none: "));
        assert!(!beside(&none).exists());
        assert!(lock(&none.join("x")).unwrap_err().contains("none/x: "));
    }

    #[test]
    fn who_replaces_a_file_waits_for_whoever_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("count");
        create(&path, b"0", 0o600).unwrap();
        let add = || {
            for _ in 0..10 {
                let held = lock(&path).unwrap();
                let before: u32 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
                std::thread::yield_now();
                replace(&path, (before + 1).to_string().as_bytes(), &held).unwrap();
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(add))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "40");
    }
}
