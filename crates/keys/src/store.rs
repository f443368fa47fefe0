//! The file that has the document, read again when it changes.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use expressway_settings::secret::{self, Access};

use crate::Refusal;
use crate::document::Document;
use crate::signature::Signers;

/// Bytes of a file at most; a document has about 1,300.
pub(crate) const LARGEST: u64 = 16 << 10;

/// How often it is read though it looks the same: two writes within a tick of the file system's clock look like one.
const ANYWAY: Duration = Duration::from_secs(60);

/// What a file looks like from outside: device, inode, size, times of change in nanoseconds.
type Look = Option<(u64, u64, u64, (i64, i64), (i64, i64))>;

/// A document's file, and the last good document that was in it.
#[derive(Debug)]
pub struct Store {
    file: PathBuf,
    signers: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    document: Arc<Document>,
    look: Look,
    read: Instant,
    taken: u64,
    refused: [u64; Refusal::REASONS.len()],
    /// What is wrong with the file as it is now.
    problem: Option<Refusal>,
}

/// What a store has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of the document in use.
    pub version: u64,
    /// The file, as it was last read, is the document in use.
    pub is_good: bool,
    /// Documents taken since the start, the first one included.
    pub taken: u64,
    /// Readings that were refused, in the order of [`Refusal::REASONS`].
    pub refused: [u64; Refusal::REASONS.len()],
}

impl Store {
    /// Follows `file`, whose documents those in `signers` have signed.
    ///
    /// # Errors
    /// As [`check`].
    pub fn open(file: &Path, signers: &Path, now: Instant) -> Result<Self, String> {
        let look = look(file);
        let document = check(file, signers)?;
        warn_if_from_the_future(&document);
        let state = State {
            document: Arc::new(document),
            look,
            read: now,
            taken: 1,
            refused: [0; Refusal::REASONS.len()],
            problem: None,
        };
        Ok(Self { file: file.to_owned(), signers: signers.to_owned(), state: Mutex::new(state) })
    }

    /// The document in use.
    pub fn document(&self) -> Arc<Document> {
        self.lock().document.clone()
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Looks at the file, and reads it if it has changed, or if `is_asked`. A document is told when another was in use
    /// before, a problem when it is another one than before.
    ///
    /// # Errors
    /// Names the file and what is wrong with it, or with that of the signers; once, unless `is_asked`. The document in use stays.
    pub fn follow(&self, now: Instant, is_asked: bool) -> Result<Option<Arc<Document>>, String> {
        let mut state = self.lock();
        let look = look(&self.file);
        if !is_asked && look == state.look && now.saturating_duration_since(state.read) < ANYWAY {
            return Ok(None);
        }
        // Before it is read: what changes meanwhile is read again.
        (state.look, state.read) = (look, now);
        let signers =
            Signers::read(&self.signers).map_err(|problem| Refusal::Signers(named(&self.signers, problem)));
        let found = signers
            .and_then(|signers| read(&self.file, &signers))
            .and_then(|document| newer(document, &state.document));
        match found {
            Ok(None) => {
                state.problem = None;
                Ok(None)
            }
            Ok(Some(document)) => {
                state.problem = None;
                state.taken += 1;
                state.document = Arc::new(document);
                Ok(Some(state.document.clone()))
            }
            Err(refusal) => {
                state.refused[refusal.index()] += 1;
                if state.problem.as_ref() == Some(&refusal) && !is_asked {
                    return Ok(None);
                }
                let told = named(&self.file, &refusal);
                state.problem = Some(refusal);
                Err(told)
            }
        }
    }

    /// As [`Store::follow`], with all that is to be said of it in the log.
    pub fn keep_up(&self, is_asked: bool) -> Option<Arc<Document>> {
        match self.follow(Instant::now(), is_asked) {
            Ok(Some(document)) => {
                tracing::info!(
                    file = %self.file.display(), version = document.version, current = document.current.id(), "new shared keys"
                );
                warn_if_from_the_future(&document);
                Some(document)
            }
            Ok(None) => None,
            Err(problem) => {
                tracing::error!("keeping version {} of the shared keys: {problem}", self.document().version);
                None
            }
        }
    }

    /// What it has done so far.
    pub fn report(&self) -> Report {
        let state = self.lock();
        Report {
            version: state.document.version,
            is_good: state.problem.is_none(),
            taken: state.taken,
            refused: state.refused,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a document that those in the file `signers` have signed.
///
/// # Errors
/// Names the file and what is wrong with it.
pub fn check(file: &Path, signers: &Path) -> Result<Document, String> {
    let known = Signers::read(signers).map_err(|problem| named(signers, problem))?;
    read(file, &known).map_err(|refusal| named(file, refusal))
}

/// Reads a document that `signers` have signed.
///
/// # Errors
/// All but [`Refusal::Signers`] and [`Refusal::Older`].
pub fn read(file: &Path, signers: &Signers) -> Result<Document, Refusal> {
    let (bytes, mode) = open(file)?;
    Access::Group.check(mode).map_err(Refusal::Permissions)?;
    Document::parse(&bytes, signers)
}

/// A document to use after `used`, if it is another.
fn newer(document: Document, used: &Document) -> Result<Option<Document>, Refusal> {
    match document == *used {
        true => Ok(None),
        false if document.version > used.version => Ok(Some(document)),
        false => Err(Refusal::Older { used: used.version, found: document.version }),
    }
}

/// A plain file's bytes, of which there may be [`LARGEST`], and the rights to it.
pub(crate) fn open(file: &Path) -> Result<(Vec<u8>, u32), Refusal> {
    secret::read(file, LARGEST).map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => Refusal::Format(error.to_string()),
        _ => Refusal::Unreadable(error.to_string()),
    })
}

/// A signer whose clock is ahead makes documents that others' cannot follow for as long.
fn warn_if_from_the_future(document: &Document) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if document.version > now + 3600 {
        let ahead = document.version - now;
        tracing::warn!(
            "the version of the shared keys is {ahead} s ahead of this machine's clock: check the clocks"
        );
    }
}

fn look(file: &Path) -> Look {
    let found = std::fs::metadata(file).ok()?;
    let modified = (found.mtime(), found.mtime_nsec());
    Some((found.dev(), found.ino(), found.size(), modified, (found.ctime(), found.ctime_nsec())))
}

fn named(file: &Path, problem: impl std::fmt::Display) -> String {
    format!("{}: {problem}", file.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::signature::Signer;

    struct Bed {
        folder: tempfile::TempDir,
        signer: Signer,
    }

    impl Bed {
        fn new() -> Self {
            let bed = Self { folder: tempfile::tempdir().unwrap(), signer: Signer::random().unwrap() };
            std::fs::write(bed.signers(), bed.signer.public_pem().unwrap()).unwrap();
            bed
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join("shared.keys")
        }

        fn signers(&self) -> PathBuf {
            self.folder.path().join("signer.pub")
        }

        /// As `mv` puts a file in another's place.
        fn put(&self, bytes: &[u8], mode: u32) {
            let beside = self.folder.path().join("beside");
            std::fs::write(&beside, bytes).unwrap();
            std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(mode)).unwrap();
            std::fs::rename(beside, self.file()).unwrap();
        }

        fn publish(&self, document: &Document) {
            self.put(document.signed(&self.signer).unwrap().as_bytes(), 0o640);
        }
    }

    #[test]
    fn a_new_document_is_taken_and_a_bad_one_is_not() {
        let bed = Bed::new();
        let first = Document::new(1000).unwrap();
        let (second, third) = (first.rotated(2000).unwrap(), first.rotated(1500).unwrap());
        bed.publish(&first);
        let now = Instant::now();
        let store = Store::open(&bed.file(), &bed.signers(), now).unwrap();
        assert_eq!(store.follow(now, false), Ok(None));
        bed.publish(&second);
        assert_eq!(store.follow(now, false), Ok(Some(Arc::new(second.clone()))));
        assert_eq!(store.follow(now, true), Ok(None), "the same again");
        let text = second.rotated(3000).unwrap().signed(&bed.signer).unwrap();
        let stranger = second.rotated(3000).unwrap().signed(&Signer::random().unwrap()).unwrap();
        let older = first.signed(&bed.signer).unwrap();
        let same = Document { version: 2000, ..third };
        let same = same.signed(&bed.signer).unwrap();
        for (bytes, mode, reason, words) in [
            (stranger.as_bytes(), 0o600, "signature", "none of the signers"),
            (&text.as_bytes()[..text.len() / 2], 0o600, "format", "cut off"),
            (text.as_bytes(), 0o644, "permissions", "run chmod o= on it"),
            (older.as_bytes(), 0o600, "older", "version 1000 is older than 2000"),
            (same.as_bytes(), 0o600, "older", "version 2000 is in use with other keys"),
            (&[b'#'; 20_000], 0o600, "format", "more than 16384 bytes"),
        ] {
            let before = store.report();
            bed.put(bytes, mode);
            let error = store.follow(now, false).unwrap_err();
            assert!(
                error.starts_with(&format!("{}: ", bed.file().display())) && error.contains(words),
                "{error}"
            );
            assert_eq!(store.follow(now, false), Ok(None), "told once");
            assert_eq!(*store.document(), second, "the last good one stays");
            let report = store.report();
            let index = Refusal::REASONS.iter().position(|one| *one == reason).unwrap();
            assert_eq!(report.refused[index], before.refused[index] + 1, "{reason}");
            assert!(!report.is_good);
        }
        std::fs::remove_file(bed.file()).unwrap();
        assert!(store.follow(now, false).unwrap_err().contains("cannot be read"));
        std::fs::create_dir(bed.file()).unwrap();
        assert!(store.follow(now, false).unwrap_err().contains("not a plain file"));
        std::fs::remove_dir(bed.file()).unwrap();
        // Nobody will ever write there.
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, bed.file(), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(
            store.follow(now, true),
            Err(format!("{}: cannot be read: not a plain file", bed.file().display()))
        );
        std::fs::remove_file(bed.file()).unwrap();
        bed.put(text.as_bytes(), 0o600);
        assert_eq!(store.follow(now, false).unwrap().unwrap().version, 3000, "and a good one is taken again");
        let report = store.report();
        assert_eq!((report.version, report.is_good, report.taken), (3000, true, 3));
        assert_eq!(report.refused, [3, 1, 2, 1, 0, 2]);
    }

    #[test]
    fn a_file_that_looks_the_same_is_read_now_and_then() {
        let bed = Bed::new();
        let first = Document::new(1000).unwrap();
        bed.publish(&first);
        let now = Instant::now();
        let store = Store::open(&bed.file(), &bed.signers(), now).unwrap();
        bed.publish(&first.rotated(1001).unwrap());
        store.lock().look = look(&bed.file());
        assert_eq!(store.follow(now, false), Ok(None));
        assert_eq!(store.follow(now + ANYWAY, false).unwrap().unwrap().version, 1001);
    }

    #[test]
    fn another_signer_takes_over_by_its_public_key_beside_the_first() {
        let bed = Bed::new();
        let first = Document::new(1000).unwrap();
        bed.publish(&first);
        let now = Instant::now();
        let store = Store::open(&bed.file(), &bed.signers(), now).unwrap();
        let heir = Signer::random().unwrap();
        let second = first.rotated(2000).unwrap().signed(&heir).unwrap();
        bed.put(second.as_bytes(), 0o600);
        assert!(store.follow(now, false).unwrap_err().contains("none of the signers"));
        let both = [bed.signer.public_pem().unwrap(), heir.public_pem().unwrap()].concat();
        std::fs::write(bed.signers(), both).unwrap();
        assert_eq!(store.follow(now, true).unwrap().unwrap().version, 2000);
        std::fs::write(bed.signers(), "").unwrap();
        let error = store.follow(now, true).unwrap_err();
        assert!(error.contains("signer.pub: no Ed25519 public key"), "{error}");
        assert_eq!((store.document().version, store.report().refused[4]), (2000, 1));
        assert!(!store.report().is_good);
    }

    #[test]
    fn without_a_good_document_nothing_is_followed() {
        let bed = Bed::new();
        let open = || Store::open(&bed.file(), &bed.signers(), Instant::now()).map(|_| ());
        assert!(open().unwrap_err().contains("shared.keys: cannot be read"));
        bed.put(b"format = 1\n", 0o600);
        assert!(open().unwrap_err().contains("the last line is not a signature"));
        std::fs::remove_file(bed.signers()).unwrap();
        assert!(open().unwrap_err().contains("signer.pub: cannot be read"));
    }
}
