//! Listening sockets: what they are for, and binding them.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use expressway_netio::unix::{self, Occupied};
use expressway_web::Handler;
use http::HeaderValue;
use ipnet::IpNet;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};

/// Connections that may wait to be accepted; the kernel has a limit of its own (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Where a listener is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket. One that is there already is replaced.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What a listener's connections speak.
#[derive(Clone)]
pub enum Role {
    /// HTTP/1.1 and HTTP/2 over TLS, answered by the [`Setup`](crate::Setup)'s handler. The value is that of `alt-svc`
    /// on all its responses (RFC 7838).
    Tls(Option<HeaderValue>),
    /// HTTP/1.1 without TLS, answered by the [`Setup`](crate::Setup)'s handler.
    Plain,
    /// HTTP/1.1 without TLS, answered by another handler, such as [`Redirect`](crate::Redirect).
    Other(Arc<dyn Handler>),
}

impl fmt::Debug for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls(_) => "Tls",
            Self::Plain => "Plain",
            Self::Other(_) => "Other",
        })
    }
}

/// A listener as it is asked for.
#[derive(Debug, Clone)]
pub struct Listen {
    /// Where.
    pub address: Address,
    /// For what.
    pub role: Role,
    /// Those who say in a PROXY header (versions 1 and 2) whom they speak for, and have to; on a Unix socket everybody.
    /// `None`: nobody does.
    pub proxy: Option<Vec<IpNet>>,
}

/// The sockets of a listener, one for each worker.
#[derive(Debug)]
pub struct Listener {
    pub(crate) listen: Listen,
    pub(crate) sockets: Vec<Socket>,
}

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Binds the sockets, for which ports below 1024 may take a privilege. `freebind`: also to addresses that the machine
    /// does not have yet.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn bind(listen: Listen, workers: usize, freebind: bool) -> io::Result<Self> {
        let sockets = match &listen.address {
            Address::Tcp(address) => {
                let bound: io::Result<Vec<Socket>> =
                    (0..workers).map(|_| Ok(Socket::Tcp(bind_tcp(*address, freebind)?))).collect();
                bound?
            }
            Address::Unix(path) => {
                unix::remove_stale(path, SocketType::STREAM).map_err(|occupied| match occupied {
                    Occupied::NotASocket | Occupied::InUse => io::ErrorKind::AddrInUse.into(),
                    Occupied::Stale(error) | Occupied::Unknown(error) => error,
                })?;
                let socket = UnixListener::bind(path)?;
                // Who may connect is said by the folder that it lies in.
                std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
                socket.set_nonblocking(true)?;
                let shared: io::Result<Vec<Socket>> =
                    (0..workers).map(|_| Ok(Socket::Unix(socket.try_clone()?))).collect();
                shared?
            }
        };
        Ok(Self { listen, sockets })
    }

    /// Takes the sockets of a listener of another process, from [`Listener::duplicate`]; what it is for may have changed.
    ///
    /// # Errors
    /// There are not as many as workers, or they are no listening sockets of that kind.
    pub fn adopt(listen: Listen, workers: usize, sockets: Vec<OwnedFd>) -> io::Result<Self> {
        if sockets.len() != workers {
            let problem = format!("{} sockets for {workers} workers", sockets.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let adopt = |socket: OwnedFd| {
            if !sockopt::socket_acceptconn(&socket)? {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a listening socket"));
            }
            Ok(match listen.address {
                Address::Tcp(_) => Socket::Tcp(socket.into()),
                Address::Unix(_) => Socket::Unix(socket.into()),
            })
        };
        let sockets = sockets.into_iter().map(adopt).collect::<io::Result<_>>()?;
        Ok(Self { listen, sockets })
    }

    /// Its sockets once more, for another process.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn duplicate(&self) -> io::Result<Vec<OwnedFd>> {
        let again = |socket: &Socket| match socket {
            Socket::Tcp(socket) => socket.as_fd().try_clone_to_owned(),
            Socket::Unix(socket) => socket.as_fd().try_clone_to_owned(),
        };
        self.sockets.iter().map(again).collect()
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.listen.address
    }

    /// The address that its first socket got, which tells the port where 0 was asked for.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match self.sockets.first()? {
            Socket::Tcp(socket) => socket.local_addr().ok(),
            Socket::Unix(_) => None,
        }
    }
}

/// A listening socket among others of the same address (SO_REUSEPORT): the kernel spreads connections over them.
fn bind_tcp(address: SocketAddr, freebind: bool) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if freebind {
        sockopt::set_ip_freebind(&socket, true)?;
    }
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}
