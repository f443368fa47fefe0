//! Fetched lists on disk, for a start while their servers cannot be reached. A file contains the list as it was
//! received, after lines that describe it; it is replaced as a whole, by renaming. Its modification time is when the
//! list was last known to be current.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use expressway_xbpf::GuardPrefix;

use super::fetch::{Url, Validators};
use crate::guard::list;

/// What files begin with.
const FIRST: &str = "# A list that expressway guard has fetched. Do not edit.";
const FROM: &str = "# from: ";
const TAG: &str = "# etag: ";
const MODIFIED: &str = "# last-modified: ";

/// Octets of a line of the head.
const LINE: u64 = 1024;

/// A list that is there.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) entries: Vec<GuardPrefix>,
    pub(super) validators: Validators,
    pub(super) checked: SystemTime,
}

/// FNV-1a: the same in every version of this program. Two URLs with one value would take turns.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn path(folder: &Path, url: &Url) -> PathBuf {
    folder.join(format!("list-{:016x}", hash(&url.to_string())))
}

/// The list of a URL, if there is one; what is damaged is left out, with a warning.
pub(super) fn load(folder: &Path, url: &Url) -> Option<Stored> {
    let path = path(folder, url);
    match read(&path, url) {
        Ok(stored) => Some(stored),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!("{}: saved list not used: {error}", path.display());
            None
        }
    }
}

fn read(path: &Path, url: &Url) -> io::Result<Stored> {
    let file = File::open(path)?;
    let checked = file.metadata()?.modified()?;
    let mut reader = BufReader::new(file);
    let mut validators = Validators::default();
    let mut line = || {
        let mut line = String::new();
        io::Read::take(&mut reader, LINE).read_line(&mut line)?;
        Ok::<_, io::Error>(line.trim_end().to_owned())
    };
    let wrong = |problem: &str| Err(io::Error::new(io::ErrorKind::InvalidData, problem.to_owned()));
    if line()? != FIRST {
        return wrong("not a file that expressway wrote");
    }
    if line()?.strip_prefix(FROM) != Some(&url.to_string()) {
        return wrong("of another URL");
    }
    let value =
        |line: String, name: &str| line.strip_prefix(name).map(str::to_owned).filter(|text| !text.is_empty());
    validators.etag = value(line()?, TAG);
    validators.last_modified = value(line()?, MODIFIED);
    reader.rewind()?;
    let entries = list::parse(&mut reader, path).map_err(io::Error::other)?;
    Ok(Stored { entries, validators, checked })
}

/// Keeps a list in the place of the one before.
pub(super) fn save(folder: &Path, url: &Url, body: &[u8], validators: &Validators) -> io::Result<()> {
    let path = path(folder, url);
    let head = format!(
        "{FIRST}\n{FROM}{url}\n{TAG}{}\n{MODIFIED}{}\n",
        validators.etag.as_deref().unwrap_or_default(),
        validators.last_modified.as_deref().unwrap_or_default()
    );
    replace(&path, &[head.as_bytes(), body])
}

/// Writes a file whole, or leaves the one before. The folder is made if it is not there.
pub(in crate::guard) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // One that a killed process left is not written through: it may be a link.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let result = File::options().write(true).create_new(true).mode(0o600).open(&new).and_then(|mut file| {
        for part in parts {
            file.write_all(part)?;
        }
        file.sync_all()
    });
    if let Err(error) = result.and_then(|()| std::fs::rename(&new, path)) {
        let _ = std::fs::remove_file(&new);
        return Err(error);
    }
    // The name too.
    File::open(folder)?.sync_all()
}

/// The list is known to be current.
pub(super) fn touch(folder: &Path, url: &Url) -> io::Result<()> {
    File::options().write(true).open(path(folder, url))?.set_modified(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("expressway-store-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn what_is_kept_is_had_again() {
        let folder = folder("again");
        let url: Url = "https://lists.example/a".parse().unwrap();
        let other: Url = "https://lists.example/b".parse().unwrap();
        assert!(load(&folder, &url).is_none());
        let validators = Validators { etag: Some("\"x\"".into()), last_modified: None };
        save(&folder, &url, b"# mine\n192.0.2.0/24\n", &validators).unwrap();
        let stored = load(&folder, &url).unwrap();
        assert_eq!((stored.entries.len(), &stored.validators), (1, &validators));
        assert!(load(&folder, &other).is_none());
        save(&folder, &url, b"", &Validators::default()).unwrap();
        assert_eq!(load(&folder, &url).unwrap().validators, Validators::default());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "no other file stays");
        // Of another URL, or damaged.
        std::fs::rename(path(&folder, &url), path(&folder, &other)).unwrap();
        assert!(load(&folder, &other).is_none());
        save(&folder, &url, b"192.0.2.0/24\nhere\n", &validators).unwrap();
        assert!(load(&folder, &url).is_none());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
