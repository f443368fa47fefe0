//! Follows a TLS key log (`SSLKEYLOGFILE`): what others append to it becomes decryption secrets of a capture.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The longest line that is one: a label, 32 octets of random and at most 64 of secret, in hexadecimal.
const LINE: usize = 512;

/// Octets read at a time, so that a turn stays short.
const READ: usize = 64 << 10;

/// A key log, from its end on.
#[derive(Debug)]
pub struct KeyLog {
    path: PathBuf,
    open: Option<Open>,
    /// A line that has no end yet. Empty while one that is too long is skipped.
    partial: Vec<u8>,
    skipping: bool,
}

#[derive(Debug)]
struct Open {
    file: File,
    identity: (u64, u64),
    position: u64,
}

impl KeyLog {
    /// Follows the file from its end on. One that does not exist yet is followed when it does, from its beginning.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn follow(path: &Path) -> io::Result<Self> {
        let mut log = Self { path: path.to_owned(), open: None, partial: Vec::new(), skipping: false };
        if log.look()?
            && let Some(open) = &mut log.open
        {
            open.position = open.file.seek(SeekFrom::End(0))?;
        }
        Ok(log)
    }

    /// Appends new whole lines to `out`, those that are lines of a key log. True if there may be more.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        if !self.look()? {
            return Ok(false);
        }
        let Some(open) = &mut self.open else { return Ok(false) };
        let mut buffer = Vec::new();
        let read = (&mut open.file).take(READ as u64).read_to_end(&mut buffer)?;
        open.position += read as u64;
        for piece in buffer.split_inclusive(|byte| *byte == b'\n') {
            self.take(piece, out);
        }
        Ok(read == READ)
    }

    /// Opens the file, again if it is another one now or was cut. False if there is none.
    fn look(&mut self) -> io::Result<bool> {
        let absent = |error: io::Error| match error.kind() {
            ErrorKind::NotFound => Ok(false),
            _ => Err(error),
        };
        let identity = |found: &Metadata| (found.dev(), found.ino());
        let found = match std::fs::metadata(&self.path) {
            Ok(found) => found,
            Err(error) => return absent(error),
        };
        let is_same = |open: &Open| open.identity == identity(&found) && found.len() >= open.position;
        if !self.open.as_ref().is_some_and(is_same) {
            // Who replaces it by a pipe does not hold up the capture.
            let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&self.path);
            let file = match opened {
                Ok(file) => file,
                Err(error) => return absent(error),
            };
            let found = file.metadata()?;
            if !found.is_file() {
                self.open = None;
                return Ok(false);
            }
            self.open = Some(Open { file, identity: identity(&found), position: 0 });
            (self.partial, self.skipping) = (Vec::new(), false);
        }
        Ok(true)
    }

    fn take(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        if self.partial.len() + piece.len() > LINE {
            self.skipping = true;
            self.partial.clear();
        }
        if !self.skipping {
            self.partial.extend_from_slice(piece);
        }
        if piece.ends_with(b"\n") {
            if is_secret(self.partial.trim_ascii_end()) {
                out.extend_from_slice(&self.partial);
            }
            self.partial.clear();
            self.skipping = false;
        }
    }
}

/// Whether a line is one of a key log: a label, the client's random, a secret.
fn is_secret(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(label), Some(random), Some(secret), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return false;
    };
    let label_byte = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    let hexadecimal = |bytes: &[u8]| bytes.len().is_multiple_of(2) && bytes.iter().all(u8::is_ascii_hexdigit);
    (1..=64).contains(&label.len())
        && label.iter().all(label_byte)
        && random.len() == 64
        && hexadecimal(random)
        && (32..=256).contains(&secret.len())
        && hexadecimal(secret)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn line(label: &str) -> String {
        format!("{label} {} {}\n", "ab".repeat(32), "0C".repeat(32))
    }

    fn read(log: &mut KeyLog) -> String {
        let mut out = Vec::new();
        while log.read(&mut out).unwrap() {}
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_is_appended_comes_in_whole_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, line("BEFORE")).unwrap();
        let mut log = KeyLog::follow(&path).unwrap();
        assert_eq!(read(&mut log), "");
        let mut file = File::options().append(true).open(&path).unwrap();
        let secret = line("CLIENT_TRAFFIC_SECRET_0");
        file.write_all(&secret.as_bytes()[..50]).unwrap();
        assert_eq!(read(&mut log), "");
        file.write_all(&secret.as_bytes()[50..]).unwrap();
        file.write_all(b"# a remark\nnot a secret at all\n").unwrap();
        file.write_all(line("EXPORTER_SECRET").as_bytes()).unwrap();
        assert_eq!(read(&mut log), format!("{secret}{}", line("EXPORTER_SECRET")));
        assert_eq!(read(&mut log), "");
    }

    #[test]
    fn a_file_may_come_later_be_cut_and_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let mut log = KeyLog::follow(&path).unwrap();
        assert_eq!(read(&mut log), "");
        std::fs::write(&path, line("ONE")).unwrap();
        assert_eq!(read(&mut log), line("ONE"));
        std::fs::write(&path, "").unwrap();
        assert_eq!(read(&mut log), "");
        std::fs::write(&path, line("TWO")).unwrap();
        assert_eq!(read(&mut log), line("TWO"));
        std::fs::write(folder.path().join("new"), [line("THREE"), line("FOUR")].concat()).unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!(read(&mut log), [line("THREE"), line("FOUR")].concat());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(&mut log), "");
    }

    #[test]
    fn a_line_without_end_is_skipped_and_memory_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let mut log = KeyLog::follow(&path).unwrap();
        let text = format!("{}\n{}", "A".repeat(3 * READ + 5), line("AFTER"));
        std::fs::write(&path, text).unwrap();
        let mut out = Vec::new();
        while log.read(&mut out).unwrap() {
            assert!(log.partial.len() <= LINE);
        }
        assert_eq!(String::from_utf8(out).unwrap(), line("AFTER"));
    }
}
