//! Named network namespaces: listing, entering.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::LabError;

/// Where `ip netns` keeps them.
const DIRECTORY: &str = "/run/netns";

/// The names of all network namespaces that `ip netns` knows, sorted.
pub(crate) fn list() -> Result<Vec<String>, LabError> {
    let entries = match std::fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(LabError::io(DIRECTORY)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(LabError::io(DIRECTORY))?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Runs `work` on a new thread that is in the namespace, and returns what it returns.
///
/// Sockets belong to the namespace that they were made in: they may leave the closure and keep working.
/// Only the thread moves; the caller and the rest of the process stay where they are.
pub(crate) fn run<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
    let path = PathBuf::from(DIRECTORY).join(namespace);
    let file = File::open(&path).map_err(LabError::io(path.display().to_string()))?;
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| LabError::io(format!("setns {}", path.display()))(error.into()))?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
