//! Runs the programs that a lab drives. If one fails, the error names the command.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::LabError;

/// The Debian package that ships `program`.
fn package(program: &str) -> &'static str {
    if program == "ethtool" { "ethtool" } else { "iproute2" }
}

/// Runs `program` with `args`, a list separated by blanks, and returns its standard output.
///
/// No argument contains a blank: names are checked, and the rest are numbers and addresses.
pub(crate) fn run(program: &'static str, args: &str) -> Result<String, LabError> {
    let output = command(program, args).output().map_err(missing(program))?;
    finish(program, args, &output)
}

/// Like [`run`], with `input` on the program's standard input.
pub(crate) fn run_with_input(program: &'static str, args: &str, input: &str) -> Result<String, LabError> {
    let child =
        command(program, args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(missing(program))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ended without reading says why on its standard error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(missing(program))?;
    finish(program, args, &output)
}

fn command(program: &str, args: &str) -> Command {
    tracing::debug!(command = format!("{program} {args}"), "lab");
    let mut command = Command::new(program);
    command.args(args.split_whitespace());
    command
}

fn missing(program: &'static str) -> impl FnOnce(std::io::Error) -> LabError {
    move |source| LabError::MissingProgram { program, package: package(program), source }
}

fn finish(program: &str, args: &str, output: &Output) -> Result<String, LabError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failure(format!("{program} {args}"), output))
}

fn failure(command: String, output: &Output) -> LabError {
    let text = [&output.stderr[..], &output.stdout[..]].concat();
    let text = String::from_utf8_lossy(&text);
    let words: Vec<&str> = text.split_whitespace().collect();
    LabError::Command { command, status: output.status.to_string(), output: words.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_command_status_and_output() {
        let message = run("ip", "link show no-such-link").unwrap_err().to_string();
        assert!(message.contains("`ip link show no-such-link` failed"), "{message}");
        assert!(message.contains("does not exist"), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let message = run("ip-of-nowhere", "x").unwrap_err().to_string();
        assert!(message.contains("apt-get install iproute2"), "{message}");
    }
}
