//! The socket of an admin listener: a TCP address, or a name in the file system, which is removed with it.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use expressway_netio::unix::{self, Occupied};
use expressway_settings::admin::{Address, Section};
use nix::unistd::Group;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
#[error("{address}: {problem}")]
pub struct ListenError {
    address: Address,
    problem: String,
}

/// A bound socket.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    name: Option<SocketFile>,
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Binds what `section` asks for. A socket that a dead process left is replaced.
    ///
    /// # Errors
    /// The address is taken or cannot be had, or the name is another process's or no socket's.
    pub fn bind(section: &Section) -> Result<Self, ListenError> {
        let address = section.listen.get_ref().clone();
        let failed = |problem: String| ListenError { address: address.clone(), problem };
        match &address {
            Address::Tcp(tcp) => {
                let socket = TcpListener::bind(tcp).map_err(|error| failed(error.to_string()))?;
                socket.set_nonblocking(true).map_err(|error| failed(error.to_string()))?;
                let bound = socket.local_addr().map_err(|error| failed(error.to_string()))?;
                Ok(Self { address: Address::Tcp(bound), socket: Socket::Tcp(socket), name: None })
            }
            Address::Unix(path) => {
                let mode = section.socket_mode.as_ref().map_or(Section::SOCKET_MODE, |mode| *mode.get_ref());
                let group = section.socket_group.as_ref().map(|group| group.get_ref().as_str());
                let (socket, name) = bind_unix(path, mode, group).map_err(failed)?;
                Ok(Self { address, socket: Socket::Unix(socket), name: Some(name) })
            }
        }
    }

    /// Takes the socket of another process, from [`Listener::duplicate`], if it is what `section` asks for: its rights and group are
    /// those that it got when it was bound. Its name stays that process's until [`super::Admin::take_name`], so that nothing is removed
    /// if nothing comes of this one.
    ///
    /// # Errors
    /// It is no socket that listens.
    pub fn adopt(section: &Section, socket: OwnedFd) -> Result<Self, ListenError> {
        let address = section.listen.get_ref().clone();
        let failed = |problem: String| ListenError { address: address.clone(), problem };
        if !net::sockopt::socket_acceptconn(&socket).map_err(|errno| failed(errno.to_string()))? {
            return Err(failed("the previous process's socket is not listening".into()));
        }
        match &address {
            Address::Tcp(_) => {
                let socket = TcpListener::from(socket);
                let bound = socket.local_addr().map_err(|error| failed(error.to_string()))?;
                Ok(Self { address: Address::Tcp(bound), socket: Socket::Tcp(socket), name: None })
            }
            Address::Unix(_) => Ok(Self { address, socket: Socket::Unix(socket.into()), name: None }),
        }
    }

    /// The socket once more, for another process.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        match &self.socket {
            Socket::Tcp(socket) => socket.as_fd().try_clone_to_owned(),
            Socket::Unix(socket) => socket.as_fd().try_clone_to_owned(),
        }
    }

    /// Where it is; of port 0, which port that is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What accepts connections, and the socket's name, for as long as it is to have it.
    pub(super) fn into_parts(self) -> io::Result<(Acceptor, Option<SocketFile>)> {
        let acceptor = match self.socket {
            Socket::Tcp(socket) => Acceptor::Tcp(tokio::net::TcpListener::from_std(socket)?),
            Socket::Unix(socket) => Acceptor::Unix(tokio::net::UnixListener::from_std(socket)?),
        };
        Ok((acceptor, self.name))
    }
}

/// A connection's bytes.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Accepts connections.
pub(super) enum Acceptor {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Acceptor {
    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(socket) => Box::new(socket.accept().await?.0),
            Self::Unix(socket) => Box::new(socket.accept().await?.0),
        })
    }
}

/// A socket's name in the file system. Dropped, it is removed, unless it is another's by then. It goes before the socket, which keeps
/// its inode from being another's.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: inode(path)? })
    }

    /// Forgets the name, which stays.
    pub(super) fn leave(mut self) {
        // No file has it.
        self.inode = (0, 0);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = inode(&self.path).is_ok_and(|found| found == self.inode);
        // Who has given up the right to remove it leaves it to the next start.
        if is_ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "cannot remove the admin socket's file");
        }
    }
}

/// The device and number of what has the name.
fn inode(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

fn bind_unix(path: &Path, mode: u32, group: Option<&str>) -> Result<(UnixListener, SocketFile), String> {
    let group = group.map(group_id).transpose()?;
    let address = SocketAddrUnix::new(path).map_err(|errno| errno.to_string())?;
    clear(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|errno| errno.to_string())?;
    net::bind(&socket, &address).map_err(|errno| {
        let advice = match errno {
            Errno::NOENT => "; the directory must exist",
            Errno::ACCESS | Errno::PERM | Errno::ROFS => "; the directory must be writable by this user",
            _ => "",
        };
        format!("{errno}{advice}")
    })?;
    // From here on what fails takes the name with it. Nobody can connect before `listen`.
    let name = SocketFile::of(path).map_err(|error| error.to_string())?;
    if let Some(group) = group {
        lchown(path, None, Some(group)).map_err(|error| {
            format!("giving it to group {group}: {error}; start as root, or as a member of that group")
        })?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(|error| format!("chmod: {error}"))?;
    net::listen(&socket, BACKLOG).map_err(|errno| errno.to_string())?;
    Ok((socket.into(), name))
}

fn group_id(group: &str) -> Result<u32, String> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    match Group::from_name(group) {
        Ok(Some(found)) => Ok(found.gid.as_raw()),
        Ok(None) => Err(format!("no such group: `{group}`")),
        Err(errno) => Err(format!("group `{group}`: {errno}")),
    }
}

/// Removes what a dead process left at `path`.
fn clear(path: &Path) -> Result<(), String> {
    unix::remove_stale(path, SocketType::STREAM).map_err(|occupied| match occupied {
        Occupied::NotASocket => "exists and is not a socket: choose another path, or remove it".into(),
        Occupied::InUse => "another process is listening there: stop it, or choose another path".into(),
        Occupied::Stale(error) => {
            format!("a dead process left this socket, and it cannot be removed: {error}")
        }
        Occupied::Unknown(error) => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(path: &Path) -> Section {
        Section::at(Address::Unix(path.to_owned()))
    }

    #[test]
    fn a_dead_sockets_name_is_taken_and_a_live_ones_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "what a killed process leaves");
        let first = Listener::bind(&section(&path)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
        let error = Listener::bind(&section(&path)).unwrap_err().to_string();
        assert!(error.contains("another process is listening there"), "{error}");
        assert!(error.starts_with(&format!("unix:{}: ", path.display())), "{error}");
        drop(first);
        assert!(!path.exists(), "its name outlived it");
    }

    #[test]
    fn what_is_no_stream_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        std::fs::write(&path, "somebody's").unwrap();
        let error = Listener::bind(&section(&path)).unwrap_err().to_string();
        assert!(error.contains("not a socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's");
        std::fs::remove_file(&path).unwrap();
        // An agent's, say.
        let _other = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let error = Listener::bind(&section(&path)).unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
        let error = Listener::bind(&section(&folder.path().join("none/a"))).unwrap_err().to_string();
        assert!(error.contains("the directory must exist"), "{error}");
    }

    #[test]
    fn a_successors_name_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let first = Listener::bind(&section(&path)).unwrap();
        // As an operator would, who takes the name from a process that hangs.
        std::fs::remove_file(&path).unwrap();
        let second = Listener::bind(&section(&path)).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn rights_are_those_that_are_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let own = rustix::process::getgid().as_raw();
        let mut wanted = section(&path);
        wanted.socket_mode = Some(toml::Spanned::new(0..0, 0o606));
        wanted.socket_group = Some(toml::Spanned::new(0..0, own.to_string()));
        let listener = Listener::bind(&wanted).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o777, found.gid()), (0o606, own));
        drop(listener);
        wanted.socket_group = Some(toml::Spanned::new(0..0, "no such group".into()));
        let error = Listener::bind(&wanted).unwrap_err().to_string();
        assert!(error.contains("no such group: `no such group`"), "{error}");
        assert!(!path.exists());
    }
}
