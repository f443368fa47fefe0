//! Names of unix sockets in the file system, which outlive a process that is killed.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Why a path is not free to be bound.
#[derive(Debug)]
pub enum Occupied {
    /// What is there is not a socket.
    NotASocket,
    /// A process listens there.
    InUse,
    /// The socket of a process that is gone cannot be removed.
    Stale(io::Error),
    /// The path, or whether a process listens there, cannot be told.
    Unknown(io::Error),
}

/// Removes the socket of type `kind` that a process left at `path` when it was killed: nobody listens there. Anything else stays.
///
/// # Errors
/// The path is not free, and why.
pub fn remove_stale(path: &Path, kind: SocketType) -> Result<(), Occupied> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Occupied::Unknown(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(Occupied::NotASocket),
        Ok(_) => {}
    }
    match connect(path, kind) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(Occupied::Stale),
        Err(Errno::NOENT) => Ok(()),
        // A full backlog; a socket of another type (unix(7)).
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(Occupied::InUse),
        Err(errno) => Err(Occupied::Unknown(errno.into())),
    }
}

/// Without waiting for a place in the backlog.
fn connect(path: &Path, kind: SocketType) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    #[test]
    fn only_what_a_dead_process_left_is_removed() {
        let folder = std::env::temp_dir().join(format!("expressway-unix-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("a.sock");
        let free = || remove_stale(&path, SocketType::STREAM);
        assert!(free().is_ok(), "nothing is there");
        let live = UnixListener::bind(&path).unwrap();
        assert!(matches!(free(), Err(Occupied::InUse)));
        drop(live);
        assert!(free().is_ok() && !path.exists());
        std::fs::write(&path, "somebody's").unwrap();
        assert!(matches!(free(), Err(Occupied::NotASocket)));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's");
        std::fs::remove_file(&path).unwrap();
        let _other = UnixDatagram::bind(&path).unwrap();
        assert!(matches!(free(), Err(Occupied::InUse)), "of another type");
        let below = path.join("b");
        assert!(matches!(remove_stale(&below, SocketType::STREAM), Err(Occupied::Unknown(_))));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
