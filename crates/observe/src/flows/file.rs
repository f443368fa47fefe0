//! Samples in a file: a header line, then one sample per line, in JSON.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use super::sample::Sample;

/// The first line.
const MAGIC: &str = r#"{"expressway":"flows","version":1}"#;
/// Bytes of a line at most: a full table with much to spare.
const LINE: u64 = 64 << 20;

/// Why a recording can't be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file system's answer.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is another file.
    #[error("{}: not a recording of `expressway top --record`", .0.display())]
    Foreign(PathBuf),
    /// A line is no sample.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
}

/// Writes samples, up to a size.
#[derive(Debug)]
pub struct Recorder {
    path: PathBuf,
    out: BufWriter<File>,
    left: u64,
}

impl Recorder {
    /// Creates the file, or empties it. It grows to `limit` bytes at most.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn create(path: &Path, limit: u64) -> Result<Self, FileError> {
        let failed = |source| FileError::Io { path: path.to_owned(), source };
        let mut out = BufWriter::new(File::create(path).map_err(failed)?);
        writeln!(out, "{MAGIC}").map_err(failed)?;
        Ok(Self { path: path.to_owned(), out, left: limit.saturating_sub(MAGIC.len() as u64 + 1) })
    }

    /// Adds a sample; false, without it, once the file is full.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn add(&mut self, sample: &Sample) -> Result<bool, FileError> {
        let failed = |source| FileError::Io { path: self.path.clone(), source };
        let line = serde_json::to_vec(sample).map_err(|error| failed(error.into()))?;
        let size = line.len() as u64 + 1;
        if size > self.left || size > LINE {
            self.left = 0;
            return Ok(false);
        }
        self.left -= size;
        self.out
            .write_all(&line)
            .and_then(|()| self.out.write_all(b"\n"))
            .and_then(|()| self.out.flush())
            .map_err(failed)?;
        Ok(true)
    }
}

/// Reads samples one by one.
#[derive(Debug)]
pub struct Recording<R = BufReader<File>> {
    path: PathBuf,
    input: R,
    line: u64,
}

impl Recording {
    /// Opens the file.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Io { path: path.to_owned(), source };
        Self::new(path, BufReader::new(File::open(path).map_err(failed)?))
    }
}

impl<R: BufRead> Recording<R> {
    /// Reads from `input`, which is called `path` in errors.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn new(path: &Path, input: R) -> Result<Self, FileError> {
        let mut recording = Self { path: path.to_owned(), input, line: 0 };
        match recording.line() {
            Ok(Some(line)) if line == MAGIC.as_bytes() => Ok(recording),
            Err(error @ FileError::Io { .. }) => Err(error),
            _ => Err(FileError::Foreign(recording.path)),
        }
    }

    /// The next sample; `None` at the end. A last line that was cut short by the end of its writer is none.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn next_sample(&mut self) -> Result<Option<Sample>, FileError> {
        let Some(line) = self.line()? else { return Ok(None) };
        serde_json::from_slice(&line).map(Some).map_err(|error| self.problem(&error.to_string()))
    }

    fn problem(&self, problem: &str) -> FileError {
        FileError::Line { path: self.path.clone(), line: self.line, problem: problem.to_owned() }
    }

    fn line(&mut self) -> Result<Option<Vec<u8>>, FileError> {
        let mut line = Vec::new();
        self.line += 1;
        let read = (&mut self.input).take(LINE).read_until(b'\n', &mut line);
        read.map_err(|source| FileError::Io { path: self.path.clone(), source })?;
        match line.pop() {
            Some(b'\n') => Ok(Some(line)),
            Some(_) if line.len() as u64 + 1 >= LINE => Err(self.problem("too long")),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recording(bytes: &[u8]) -> Result<Recording<&[u8]>, FileError> {
        Recording::new(Path::new("x"), bytes)
    }

    #[test]
    fn what_is_no_recording_is_told() {
        assert!(matches!(recording(b""), Err(FileError::Foreign(_))));
        assert!(matches!(recording(b"{}\n"), Err(FileError::Foreign(_))));
        let bad = format!("{MAGIC}\n[]\n");
        assert!(matches!(
            recording(bad.as_bytes()).unwrap().next_sample(),
            Err(FileError::Line { line: 2, .. })
        ));
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_samples_or_an_error(bytes: Vec<u8>) {
            let bytes = [MAGIC.as_bytes(), b"\n", &bytes].concat();
            let mut recording = recording(&bytes).unwrap();
            while let Ok(Some(_)) = recording.next_sample() {}
        }

        #[test]
        fn a_recording_cut_anywhere_gives_whole_samples(cut in 0usize..2000) {
            let sample = Sample { interface: "eth0".to_owned(), time: 5, ..Sample::default() };
            let line = serde_json::to_string(&sample).unwrap();
            let bytes = format!("{MAGIC}\n{line}\n{line}\n").into_bytes();
            let cut = &bytes[..cut.min(bytes.len())];
            if let Ok(mut recording) = recording(cut) {
                while let Some(found) = recording.next_sample().unwrap() {
                    prop_assert_eq!(&found, &sample);
                }
            }
        }
    }
}
