//! Files in memory, whole and as single ranges.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;

use bytes::Bytes;
use http::StatusCode;

/// Files that are kept; a benchmark has a few.
const MAX_FILES: usize = 64;

/// A folder whose files are read once.
pub(crate) struct Files {
    root: PathBuf,
    known: RefCell<HashMap<String, Bytes>>,
}

/// What a request gets.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    pub(crate) content_range: Option<String>,
}

impl Files {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self { root, known: RefCell::new(HashMap::new()) }
    }

    /// A path is one file name: the folder is flat.
    pub(crate) fn answer(&self, path: &str, range: Option<&str>) -> Answer {
        let name = path.trim_start_matches('/');
        let Some(file) = self.file(name) else {
            return Answer { status: StatusCode::NOT_FOUND, body: Bytes::new(), content_range: None };
        };
        let length = file.len();
        match range.and_then(single_range) {
            None => Answer { status: StatusCode::OK, body: file, content_range: None },
            Some((first, last)) if first < length && first <= last => {
                let end = last.saturating_add(1).min(length);
                Answer {
                    status: StatusCode::PARTIAL_CONTENT,
                    body: file.slice(first..end),
                    content_range: Some(format!("bytes {first}-{}/{length}", end - 1)),
                }
            }
            Some(_) => Answer {
                status: StatusCode::RANGE_NOT_SATISFIABLE,
                body: Bytes::new(),
                content_range: Some(format!("bytes */{length}")),
            },
        }
    }

    fn file(&self, name: &str) -> Option<Bytes> {
        if name.is_empty() || name.contains('/') || name == ".." {
            return None;
        }
        if let Some(known) = self.known.borrow().get(name) {
            return Some(known.clone());
        }
        let file = Bytes::from(std::fs::read(self.root.join(name)).ok()?);
        let mut known = self.known.borrow_mut();
        if known.len() < MAX_FILES {
            known.insert(name.to_owned(), file.clone());
        }
        Some(file)
    }
}

/// `bytes=FIRST-LAST`; other forms are answered by the whole file, as RFC 9110, section 14.2 allows.
fn single_range(range: &str) -> Option<(usize, usize)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_given_whole_by_range_or_not_at_all() {
        let folder = std::env::temp_dir().join(format!("expressway-quinn-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("a.bin"), b"0123456789").unwrap();
        let files = Files::new(folder.clone());
        let asked = |path: &str, range: Option<&str>| {
            let answer = files.answer(path, range);
            (answer.status.as_u16(), answer.body, answer.content_range)
        };
        assert_eq!(asked("/a.bin", None), (200, Bytes::from_static(b"0123456789"), None));
        let part = (206, Bytes::from_static(b"234"), Some("bytes 2-4/10".to_owned()));
        assert_eq!(asked("/a.bin", Some("bytes=2-4")), part);
        assert_eq!(asked("/a.bin", Some("bytes=8-99")).1, Bytes::from_static(b"89"));
        assert_eq!(asked("/a.bin", Some("bytes=10-11")).0, 416);
        assert_eq!(asked("/a.bin", Some("bytes=-3")).0, 200);
        assert_eq!((asked("/b.bin", None).0, asked("/../a.bin", None).0), (404, 404));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
