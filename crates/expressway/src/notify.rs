//! What a service manager is told (sd_notify(3)): nothing where `NOTIFY_SOCKET` names nobody who listens.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::fail::Failure;

/// Tells the variables in `state`, one a line: `READY=1`, `STOPPING=1`, `MAINPID=…`.
pub(crate) fn say(state: &str) {
    if let Some(name) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&name, state)
    {
        tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET): {}", state.replace('\n', ", "));
    }
}

/// The command is ready: prints `lines`, which say so, and tells the manager.
pub(crate) fn ready(lines: &str) -> Result<(), Failure> {
    crate::print(lines)?;
    say("READY=1");
    Ok(())
}

fn send(name: &OsString, state: &str) -> std::io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("expressway test {}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, name) in [(by_path, path.into_os_string()), (by_name, format!("@{name}").into())] {
            send(&name, "READY=1").unwrap();
            let mut buffer = [0; 32];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
        assert!(send(&folder.path().join("nobody").into_os_string(), "READY=1").is_err());
    }
}
