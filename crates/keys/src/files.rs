//! Files as they are written: as a whole or not at all.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

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

/// Puts other contents in a file's place by renaming. Mode and owner stay.
///
/// # Errors
/// Names the file, which is as it was.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let beside = beside(path);
    let write = || {
        let before = std::fs::metadata(path)?;
        // What a killed process left is no obstacle.
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
        std::fs::rename(&beside, path)?;
        File::open(path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))?
            .sync_all()
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&beside);
        named(path, &error)
    })
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
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
        replace(&path, b"three").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"three");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert!(replace(&folder.path().join("none"), b"").unwrap_err().contains("none: "));
        assert!(!folder.path().join("none.new").exists());
    }
}
