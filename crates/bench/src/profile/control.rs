//! Starts recording in `perf record`, and learns that it has started: commands go to its standard input, answers
//! come from its standard output.

use std::io::{Read, Write};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{BenchError, io_error};

/// The value of `--control` for [`begin`] (perf-record(1); Linux 5.10 has it).
pub(super) const ARGUMENT: &str = "fd:0,1";

/// How long it may take to begin: it may have to be read from a slow disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// Has it begin, and returns when it has. `perf` has pipes for standard input and output.
///
/// # Errors
/// When it ends instead, says something else, or has not begun in a minute.
pub(super) fn begin(perf: &mut Child) -> Result<(), BenchError> {
    let failed = |problem: String| BenchError::Missing(format!("perf record: {problem}"));
    let (Some(command), Some(answer)) = (&mut perf.stdin, &mut perf.stdout) else {
        return Err(failed("has no pipes".into()));
    };
    // Refused by one that has ended, of which its output tells.
    let _ = command.write_all(b"enable\n");
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut readable = [PollFd::new(answer, PollFlags::IN)];
        match poll(&mut readable, Timespec::try_from(left).ok().as_ref()) {
            Ok(0) => return Err(failed(format!("has not started within {} s", PATIENCE.as_secs()))),
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io_error("poll")(error.into())),
        }
    }
    // `ack`, which it says to a command that it has carried out.
    let mut said = [0; 16];
    let length = answer.read(&mut said).map_err(io_error("perf record"))?;
    match &said[..length] {
        [] => {
            let status = perf.wait().map_err(io_error("perf record"))?;
            Err(failed(format!("exited before it started: {status}")))
        }
        [b'a', b'c', b'k', ..] => Ok(()),
        other => Err(failed(format!("answered `{}`", other.escape_ascii()))),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn begin_of(script: &str) -> Result<(), BenchError> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().expect("sh is everywhere");
        let result = begin(&mut child);
        child.wait().unwrap();
        result
    }

    #[test]
    fn it_begins_when_it_says_so() {
        begin_of("read word; [ \"$word\" = enable ] && printf 'ack\\n\\0'").unwrap();
    }

    #[test]
    fn one_that_ends_or_says_something_else_has_not_begun() {
        let error = begin_of("exit 3").unwrap_err().to_string();
        assert!(error.contains("exited before it started") && error.contains('3'), "{error}");
        let error = begin_of("echo what?").unwrap_err().to_string();
        assert!(error.contains("answered `what?"), "{error}");
    }
}
