//! Listening sockets: what they are for, and binding them.

use std::fmt;
use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use expressway_web::Handler;
use http::HeaderValue;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt};

/// Connections that may wait to be accepted; the kernel has a limit of its own (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Addresses with the same first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// It has `address`, be it as IPv4 or mapped into IPv6.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address.to_canonical() {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, true),
            IpAddr::V6(address) => (address.to_bits(), false),
        };
        let ((own, own_family), (other, family)) = (bits(self.address), bits(address));
        let different = own ^ other;
        own_family == family && different.leading_zeros() >= u32::from(self.length)
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither an address nor a prefix such as 10.0.0.0/8");
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Ok(most), |length| length.parse::<u8>().map_err(|_| wrong()))?;
        if length > most {
            return Err(wrong());
        }
        Ok(Self { address, length })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

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
    pub proxy: Option<Vec<Prefix>>,
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
                match std::os::unix::net::UnixStream::connect(path) {
                    Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
                    // Left behind by a process that is gone.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        std::fs::remove_file(path)?;
                    }
                    Err(_) => {}
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_the_addresses_that_begin_like_it() {
        let has = |prefix: &str, address: &str| {
            prefix.parse::<Prefix>().unwrap().contains(address.parse().unwrap())
        };
        assert!(has("10.0.0.0/8", "10.255.1.2") && !has("10.0.0.0/8", "11.0.0.1"));
        assert!(has("10.0.0.0/8", "::ffff:10.1.1.1") && !has("::/0", "10.1.1.1"));
        assert!(has("0.0.0.0/0", "203.0.113.9") && has("192.0.2.1", "192.0.2.1"));
        assert!(!has("192.0.2.1", "192.0.2.2"));
        assert!(has("2001:db8::/32", "2001:db8:ffff::1") && !has("2001:db8::/32", "2001:db9::1"));
        for wrong in ["", "x", "10.0.0.0/33", "::/129", "10.0.0.0/-1", "10.0.0.0/"] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }
}
