//! Files with secrets. They are opened without blocking, bounded in size, and refused if others have rights to them.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Who may have rights to a file with a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its owner.
    Owner,
    /// Its owner and its group.
    Group,
}

impl Access {
    /// Checks the permission bits of a file's mode.
    ///
    /// # Errors
    /// What is wrong, and what to do, without the file's name.
    pub fn check(self, mode: u32) -> Result<(), String> {
        let mode = mode & 0o777;
        match self {
            Self::Owner if mode & 0o077 != 0 => Err(format!(
                "can be accessed by others than its owner (mode {mode:03o}): run chmod 600 on it"
            )),
            Self::Group if mode & 0o007 != 0 => {
                Err(format!("can be accessed by others (mode {mode:03o}): run chmod o= on it"))
            }
            Self::Owner | Self::Group => Ok(()),
        }
    }
}

/// Opens a plain file, and returns its permission bits.
fn open(file: &Path) -> io::Result<(File, u32)> {
    // Opening a pipe would wait for a writer (fifo(7)), and a terminal could become the process's own (open(2)).
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(file)?;
    // Of what was opened, not of what is there by now.
    let found = opened.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("not a plain file"));
    }
    Ok((opened, found.mode() & 0o777))
}

/// Reads a plain file of at most `most` bytes, and returns it with its permission bits.
///
/// # Errors
/// If it cannot be opened or read, or is no plain file; [`ErrorKind::FileTooLarge`] if it is longer.
pub fn read(file: &Path, most: u64) -> io::Result<(Vec<u8>, u32)> {
    let (opened, mode) = open(file)?;
    let mut bytes = Vec::new();
    opened.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than {most} bytes")));
    }
    Ok((bytes, mode))
}

/// Reads a text of at most `most` bytes that nobody but `access` has rights to.
///
/// # Errors
/// What is wrong, and what to do, without the file's name.
pub fn read_text(file: &Path, most: u64, access: Access) -> Result<String, String> {
    let (bytes, mode) = read(file, most).map_err(|error| format!("cannot be read: {error}"))?;
    access.check(mode)?;
    String::from_utf8(bytes).map_err(|_| "is not text in UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn with_mode(file: &Path, mode: u32) {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn nothing_but_plain_files_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        // Nobody will ever write there.
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for path in [&fifo, folder.path(), Path::new("/dev/null")] {
            let error = read_text(path, 10, Access::Owner).unwrap_err();
            assert_eq!(error, "cannot be read: not a plain file", "{}", path.display());
        }
        let missing = read(&folder.path().join("missing"), 10).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn rights_decide() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, "text").unwrap();
        for (mode, owner, group) in [
            (0o600, true, true),
            (0o400, true, true),
            (0o640, false, true),
            (0o660, false, true),
            (0o604, false, false),
            (0o602, false, false),
            (0o644, false, false),
        ] {
            with_mode(&file, mode);
            for (access, allowed) in [(Access::Owner, owner), (Access::Group, group)] {
                match read_text(&file, 10, access) {
                    Ok(text) => assert!(allowed && text == "text", "{mode:o} {access:?}"),
                    Err(error) => {
                        assert!(!allowed && error.contains(&format!("(mode {mode:o})")), "{error}");
                    }
                }
            }
        }
        // A link has the rights of what it leads to.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(read_text(&link, 10, Access::Group).unwrap_err().contains("(mode 644): run chmod o= on it"));
    }

    #[test]
    fn lengths_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, "0123456789").unwrap();
        assert_eq!(read(&file, 10).unwrap().0, b"0123456789");
        let error = read(&file, 9).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::FileTooLarge, "more than 9 bytes")
        );
        std::fs::write(&file, [0xff]).unwrap();
        with_mode(&file, 0o600);
        assert!(read_text(&file, 9, Access::Owner).unwrap_err().contains("not text"));
    }
}
