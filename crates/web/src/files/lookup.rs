//! What a path means: a file with its precompressed siblings, a directory, or an error.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use http::StatusCode;
use http::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG, HeaderMap, HeaderValue,
    LAST_MODIFIED, VARY,
};
use rustix::io::Errno;

use super::open::{OpenFile, Opened};
use super::root::Root;
use super::{Encoding, FilesConfig};
use crate::log_limit::LogLimit;
use crate::media_type::media_type;
use crate::memory::Memory;

/// A path that can be answered.
#[derive(Debug)]
pub(crate) enum Found {
    /// A file.
    Resource(Resource),
    /// A directory without its trailing slash: the path to redirect to.
    Redirect(Vec<u8>),
}

/// A file as the client may get it.
#[derive(Debug)]
pub(crate) struct Resource {
    /// The file itself; missing if only precompressed siblings exist.
    pub(crate) plain: Option<Representation>,
    /// Its precompressed siblings in order of preference.
    pub(crate) coded: Vec<(Encoding, Representation)>,
}

/// One representation and the header fields of its 200 response; `date` is still to be set.
#[derive(Debug)]
pub(crate) struct Representation {
    pub(crate) file: Arc<OpenFile>,
    /// Whether it may be had in ranges. Not if it is coded, as in nginx: a range of the coded octets is of
    /// use only to a client that holds the rest of exactly them.
    pub(crate) ranges: bool,
    pub(crate) headers: HeaderMap,
}

/// Errors that a file system should not have.
static UNOPENED: LogLimit = LogLimit::new();

/// Why a path cannot be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupError {
    /// The kernel's directory cache does not know; a thread that may block has to ask.
    WouldBlock,
    /// No file descriptors are left.
    Exhausted,
    /// Answer with this status.
    Status(StatusCode),
}

impl From<Errno> for LookupError {
    /// nginx's mapping, with 404 where it answers 500: a socket or a device without a driver, and names that
    /// the file system rejects, such as invalid UTF-8.
    fn from(error: Errno) -> Self {
        Self::Status(match error {
            Errno::AGAIN => return Self::WouldBlock,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => return Self::Exhausted,
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => {
                StatusCode::NOT_FOUND
            }
            Errno::NXIO | Errno::NODEV => StatusCode::NOT_FOUND,
            Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::XDEV => StatusCode::FORBIDDEN,
            _ => {
                if let Some(unsaid) = UNOPENED.is_due() {
                    tracing::warn!(%error, unsaid, "opening a file failed");
                }
                StatusCode::INTERNAL_SERVER_ERROR
            }
        })
    }
}

/// A site's directory tree and how it is to be read.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: Root,
    pub(crate) config: FilesConfig,
    pub(crate) default_type: HeaderValue,
    /// Where open files are counted.
    pub(crate) memory: Arc<Memory>,
    /// Requests that are held.
    pub(crate) held: AtomicUsize,
}

impl Tree {
    /// Looks `path` up (in normal form). `cached` as in [`Root::open_file`].
    pub(crate) fn look_up(&self, path: &[u8], cached: bool) -> Result<Found, LookupError> {
        if !self.config.hidden && is_hidden(path) {
            return Err(LookupError::Status(StatusCode::NOT_FOUND));
        }
        if path.ends_with(b"/") { self.look_up_index(path, cached) } else { self.look_up_file(path, cached) }
    }

    fn look_up_file(&self, path: &[u8], cached: bool) -> Result<Found, LookupError> {
        let coded = self.siblings(path, cached)?;
        match self.inspect(path, cached) {
            Ok(Opened::File(file)) => Ok(self.resource(path, Some(file), coded)),
            Ok(Opened::Directory) => Ok(Found::Redirect([path, b"/"].concat())),
            Ok(Opened::Special) => Err(LookupError::Status(StatusCode::NOT_FOUND)),
            Err(Errno::NOENT) if !coded.is_empty() => Ok(self.resource(path, None, coded)),
            Err(error) => Err(error.into()),
        }
    }

    /// The first index file that exists, else 403 for a directory and 404 for none.
    fn look_up_index(&self, path: &[u8], cached: bool) -> Result<Found, LookupError> {
        for index in &self.config.index {
            let file = [path, index.as_bytes()].concat();
            match self.inspect(&file, cached) {
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return self.look_up_file(&file, cached),
            }
        }
        self.root.test_directory(path, cached)?;
        Err(LookupError::Status(StatusCode::FORBIDDEN))
    }

    fn inspect(&self, path: &[u8], cached: bool) -> Result<Opened, Errno> {
        OpenFile::inspect(self.root.open_file(path, cached)?, &self.root.nowait, &self.memory)
    }

    /// The precompressed siblings that exist. One that cannot be opened counts as not there.
    fn siblings(&self, path: &[u8], cached: bool) -> Result<Vec<(Encoding, OpenFile)>, LookupError> {
        let mut siblings = Vec::new();
        for &encoding in &self.config.precompressed {
            match self.inspect(&[path, encoding.suffix().as_bytes()].concat(), cached) {
                Ok(Opened::File(file)) => siblings.push((encoding, file)),
                Ok(_) => {}
                Err(Errno::AGAIN) => return Err(LookupError::WouldBlock),
                Err(Errno::MFILE | Errno::NFILE) => return Err(LookupError::Exhausted),
                Err(_) => {}
            }
        }
        Ok(siblings)
    }

    fn resource(&self, path: &[u8], plain: Option<OpenFile>, coded: Vec<(Encoding, OpenFile)>) -> Found {
        let media_type = media_type(path).unwrap_or_else(|| self.default_type.clone());
        let varies = !coded.is_empty();
        let represent = |file, encoding| self.representation(file, encoding, media_type.clone(), varies);
        Found::Resource(Resource {
            plain: plain.map(|file| represent(file, None)),
            coded: coded
                .into_iter()
                .map(|(encoding, file)| (encoding, represent(file, Some(encoding))))
                .collect(),
        })
    }

    fn representation(
        &self,
        file: OpenFile,
        encoding: Option<Encoding>,
        media_type: HeaderValue,
        varies: bool,
    ) -> Representation {
        let mut headers = HeaderMap::with_capacity(9 + self.config.headers.len());
        // A place for the date, so that setting it in a copy never makes the copy grow.
        headers.insert(DATE, HeaderValue::from_static(""));
        headers.insert(CONTENT_TYPE, media_type);
        headers.insert(CONTENT_LENGTH, file.identity.size.into());
        if let Some(last_modified) = &file.last_modified {
            headers.insert(LAST_MODIFIED, last_modified.clone());
        }
        headers.insert(ETAG, file.etag.clone());
        let ranges = encoding.is_none() && self.config.max_ranges > 0;
        if ranges {
            headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        }
        if let Some(encoding) = encoding {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.as_str()));
        }
        if varies {
            headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        for (name, value) in &self.config.headers {
            headers.append(name, value.clone());
        }
        Representation { file: Arc::new(file), ranges, headers }
    }
}

impl Found {
    /// How long it may be answered with before the path is looked up again.
    pub(crate) fn is_good_for(&self) -> Duration {
        let Self::Resource(resource) = self else { return Duration::MAX };
        let coded = resource.coded.iter().map(|(_, representation)| representation);
        let times = resource.plain.iter().chain(coded).map(|one| one.file.identity.age.is_good_for());
        times.min().unwrap_or(Duration::MAX)
    }
}

/// Whether a segment begins with a dot, `/.well-known/` (RFC 8615) aside.
fn is_hidden(path: &[u8]) -> bool {
    let mut segments = path.split(|&b| b == b'/').skip(1);
    let first = segments.next().unwrap_or_default();
    (first.starts_with(b".") && first != b".well-known") || segments.any(|segment| segment.starts_with(b"."))
}

impl Resource {
    /// File descriptors that it holds.
    pub(crate) fn descriptors(&self) -> usize {
        usize::from(self.plain.is_some()) + self.coded.len()
    }

    /// The representation in `encoding`.
    pub(crate) fn coded(&self, encoding: Encoding) -> Option<&Representation> {
        self.coded.iter().find(|(coding, _)| *coding == encoding).map(|(_, representation)| representation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_file_can_have_is_not_found() {
        for error in [Errno::NAMETOOLONG, Errno::INVAL, Errno::ILSEQ, Errno::NOTDIR] {
            assert_eq!(LookupError::from(error), LookupError::Status(StatusCode::NOT_FOUND), "{error}");
        }
    }

    #[test]
    fn hidden_segments() {
        for path in ["/.git", "/a/.b", "/.a/b", "/.well-known/.x", "/a/.well-known/x"] {
            assert!(is_hidden(path.as_bytes()), "{path}");
        }
        for path in ["/", "/a.b", "/a/b.", "/.well-known/acme", "/.well-known"] {
            assert!(!is_hidden(path.as_bytes()), "{path}");
        }
    }
}
