//! Reads text files line by line, in bounded memory, with the number of the line for errors.

use std::io::{BufRead, Read};
use std::path::Path;

use expressway_settings::{ConfigError, SourceFile};

/// The lines of a file, each of a bounded length.
pub(super) struct Lines<'a> {
    reader: &'a mut dyn BufRead,
    /// Its name, for errors.
    file: &'a Path,
    /// Bytes of a line at most, its end included.
    most: u64,
    line: Vec<u8>,
    number: usize,
}

/// A line.
pub(super) struct Line<'a> {
    pub(super) text: &'a str,
    /// Whether it has an end, which a line that is still being written has not.
    pub(super) is_complete: bool,
    file: &'a Path,
    number: usize,
}

impl<'a> Lines<'a> {
    pub(super) fn new(reader: &'a mut dyn BufRead, file: &'a Path, most: u64) -> Self {
        Self { reader, file, most, line: Vec::new(), number: 0 }
    }

    /// The next line; `None` at the end of the file.
    ///
    /// # Errors
    /// A line that is too long, or not UTF-8, or a file that cannot be read.
    pub(super) fn next(&mut self) -> Result<Option<Line<'_>>, ConfigError> {
        self.line.clear();
        let read = Read::take(&mut *self.reader, self.most).read_until(b'\n', &mut self.line);
        if read.map_err(|error| unreadable(self.file, &error))? == 0 {
            return Ok(None);
        }
        self.number += 1;
        let is_complete = self.line.last() == Some(&b'\n');
        if !is_complete && self.line.len() as u64 == self.most {
            return Err(at(self.file, self.number, format!("longer than {} bytes", self.most)));
        }
        let text = std::str::from_utf8(&self.line).map_err(|_| at(self.file, self.number, "not UTF-8"))?;
        Ok(Some(Line { text, is_complete, file: self.file, number: self.number }))
    }
}

impl Line<'_> {
    /// An error about it.
    pub(super) fn error(&self, problem: impl Into<String>) -> ConfigError {
        at(self.file, self.number, problem)
    }
}

/// An error about a file that cannot be read.
pub(super) fn unreadable(file: &Path, error: &std::io::Error) -> ConfigError {
    SourceFile::whole(file, format!("cannot be read: {error}"))
}

fn at(file: &Path, line: usize, problem: impl Into<String>) -> ConfigError {
    ConfigError { file: file.to_owned(), line, key: String::new(), problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(mut text: &[u8], most: u64) -> Result<Vec<(String, bool)>, ConfigError> {
        let mut lines = Lines::new(&mut text, Path::new("f"), most);
        let mut found = Vec::new();
        while let Some(line) = lines.next()? {
            found.push((line.text.trim_end().to_owned(), line.is_complete));
        }
        Ok(found)
    }

    #[test]
    fn lines_have_bounds_and_numbers() {
        let one = |text: &str, is_complete| (text.to_owned(), is_complete);
        assert_eq!(all(b"", 4).unwrap(), []);
        assert_eq!(all(b"abc\n\nd", 4).unwrap(), [one("abc", true), one("", true), one("d", false)]);
        let error = all(b"a\nabcd\n", 4).unwrap_err();
        assert_eq!((error.line, error.problem.as_str()), (2, "longer than 4 bytes"));
        let error = all(&[b'a', b'\n', 0xff, b'\n'], 4).unwrap_err();
        assert_eq!((error.line, error.problem.as_str()), (2, "not UTF-8"));
    }
}
