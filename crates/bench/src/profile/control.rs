//! Tells `perf record` to begin, and learns that it has (`--control` in perf-record(1)): two FIFOs.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{BenchError, io_error};

/// How long it may take to begin, and how often it is looked after meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The two FIFOs; dropping it removes them.
pub(super) struct Control {
    command: Fifo,
    answer: Fifo,
}

struct Fifo {
    path: PathBuf,
    file: File,
}

impl Control {
    /// Makes them beside `svg`.
    pub(super) fn make(svg: &Path) -> Result<Self, BenchError> {
        Ok(Self { command: Fifo::make(svg, "command")?, answer: Fifo::make(svg, "answer")? })
    }

    /// The value of `--control`.
    pub(super) fn argument(&self) -> String {
        format!("fifo:{},{}", self.command.path.display(), self.answer.path.display())
    }

    /// Has it begin, and returns when it has.
    ///
    /// # Errors
    /// When it has ended instead, or has not begun in a minute.
    pub(super) fn begin(mut self, perf: &mut Child) -> Result<(), BenchError> {
        let failed = |problem: String| BenchError::Missing(format!("perf record: {problem}"));
        self.command.file.write_all(b"enable\n").map_err(io_error("perf record"))?;
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = perf.try_wait().map_err(io_error("perf record"))? {
                return Err(failed(format!("ended before it began: {status}")));
            }
            let mut answer = [PollFd::new(&self.answer.file, PollFlags::IN)];
            let ready = poll(&mut answer, Some(&LOOK)).map_err(|error| io_error("poll")(error.into()))?;
            if ready > 0 {
                // `ack`, which it says to a command that it has carried out.
                let mut said = [0; 16];
                let length = self.answer.file.read(&mut said).map_err(io_error("perf record"))?;
                return if said[..length].starts_with(b"ack") {
                    Ok(())
                } else {
                    Err(failed(format!("answered `{}`", said[..length].escape_ascii())))
                };
            }
            if Instant::now() > until {
                return Err(failed(format!("has not begun in {} s", PATIENCE.as_secs())));
            }
        }
    }
}

impl Fifo {
    fn make(svg: &Path, extension: &str) -> Result<Self, BenchError> {
        let path = svg.with_extension(extension);
        let what = || io_error(path.display().to_string());
        // Left by a run that was killed.
        let _ = std::fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .map_err(|error| what()(error.into()))?;
        // Opened both ways it does not wait for who opens the other end.
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(what())?;
        Ok(Self { path, file })
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn begin(script: &str) -> Result<(), BenchError> {
        let folder = tempfile::tempdir().unwrap();
        let control = Control::make(&folder.path().join("a.svg")).unwrap();
        let argument = control.argument();
        let (command, answer) = argument.strip_prefix("fifo:").unwrap().split_once(',').unwrap();
        let mut child =
            Command::new("sh").args(["-c", script, "sh", command, answer]).spawn().expect("sh is everywhere");
        let result = control.begin(&mut child);
        child.wait().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
        result
    }

    #[test]
    fn it_begins_when_it_says_so() {
        begin("read word <\"$1\"; [ \"$word\" = enable ] && printf 'ack\\n\\0' >\"$2\"").unwrap();
    }

    #[test]
    fn one_that_ends_instead_is_no_beginning() {
        let error = begin("exit 3").unwrap_err().to_string();
        assert!(error.contains("ended before it began") && error.contains('3'), "{error}");
        let error = begin("printf 'what?' >\"$2\"; sleep 0.3").unwrap_err().to_string();
        assert!(error.contains("answered `what?`"), "{error}");
    }
}
