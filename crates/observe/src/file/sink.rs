//! Where the bytes of a capture go.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{NameError, block};

/// Where a capture goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Output,
    /// A file, or several; a pipe too.
    File(PathBuf),
}

/// Why a capture cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Its names are not possible.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A file cannot be made.
    #[error("{}: {source}", path.display())]
    Create {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be written. What was written before is whole.
    #[error("{name}: {source}; everything written before is valid")]
    Write {
        /// Which.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The file of secrets cannot be read.
    #[error("key log: {0}")]
    Secrets(io::Error),
}

impl FileError {
    /// Whether it is a pipe whose reader has gone: Wireshark was closed.
    #[must_use]
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Write { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// A file or a stream that takes whole blocks.
#[derive(Debug)]
pub(super) struct Sink {
    to: Box<dyn Open>,
    name: String,
    /// Octets of whole blocks in it.
    written: u64,
}

/// What a sink writes to.
trait Open: Write + Send + std::fmt::Debug {
    /// Cuts off what is behind the whole blocks.
    fn cut(&mut self, length: u64);
}

impl Open for File {
    fn cut(&mut self, length: u64) {
        // A pipe cannot be cut, and its reader has gone. Of a file, the next reader tells that it was cut short.
        let _ = self.set_len(length);
        // What is written next stands behind the whole blocks, and not behind a hole.
        let _ = self.seek(SeekFrom::Start(length));
    }
}

/// Standard output, which belongs to others too and is not cut.
#[derive(Debug)]
struct Output(File);

impl Write for Output {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.0.write(octets)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Open for Output {
    fn cut(&mut self, _length: u64) {}
}

impl Sink {
    /// Standard output, with no buffer that would cut blocks at line ends.
    pub(super) fn output() -> Result<Self, FileError> {
        let name = "standard output".to_owned();
        match io::stdout().as_fd().try_clone_to_owned() {
            Ok(output) => Ok(Self { to: Box::new(Output(output.into())), name, written: 0 }),
            Err(source) => Err(FileError::Write { name, source }),
        }
    }

    /// Makes the file, or empties it. `secret`: nobody but its owner may read it, so a file that was there is replaced: others
    /// may own it or have it open.
    pub(super) fn create(path: &Path, secret: bool) -> Result<Self, FileError> {
        let failed = |source| FileError::Create { path: path.to_owned(), source };
        let mode = if secret { 0o600 } else { 0o666 };
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(mode);
        if secret {
            options.custom_flags(libc::O_NOFOLLOW);
            match std::fs::symlink_metadata(path) {
                // A pipe or device is written to as it is.
                Ok(found) if !found.is_file() && !found.is_symlink() => {}
                found => {
                    if found.is_ok() {
                        std::fs::remove_file(path).map_err(failed)?;
                    }
                    options.create_new(true);
                }
            }
        }
        let file = options.open(path).map_err(failed)?;
        Ok(Self { to: Box::new(file), name: path.display().to_string(), written: 0 })
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Writes blocks, whole, and empties the buffer. With an error, says how many packets of them the file has.
    pub(super) fn write(&mut self, blocks: &mut Vec<u8>) -> Result<(), (FileError, u64)> {
        let mut done = 0;
        let result = loop {
            if done == blocks.len() {
                break self.to.flush();
            }
            match self.to.write(&blocks[done..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        let (whole, packets) = block::whole(&blocks[..done]);
        self.written += whole as u64;
        if result.is_err() {
            self.to.cut(self.written);
        }
        blocks.clear();
        result.map_err(|source| (FileError::Write { name: self.name.clone(), source }, packets))
    }
}
