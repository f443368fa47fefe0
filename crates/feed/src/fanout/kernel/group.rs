//! The multicast group whose datagrams the kernel clones, and its sockets.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use expressway_xbpf::{Error, FanoutPrograms};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::super::service::FanoutError;
use expressway_netio::udp::group::{Joined, Keeper, Membership, own_groups_only};

/// Private groups tried, if others have them on the same port.
const ATTEMPTS: usize = 16;

/// The group.
pub(super) struct Group {
    address: SocketAddr,
    membership: Membership,
    private: bool,
    /// Bound to a private group before anybody else may be.
    first: Option<OwnedFd>,
}

/// A socket of the group, with its membership.
pub(super) struct GroupSocket {
    socket: OwnedFd,
    keeper: Keeper,
    pub(super) cookie: u64,
}

impl Group {
    /// That of a multicast feed.
    pub(super) fn of_feed(feed: SocketAddr, membership: Membership) -> Result<Self, FanoutError> {
        Ok(Self { address: feed, membership, private: false, first: None })
    }

    /// A group that nobody on this machine uses on this port, for a unicast feed.
    pub(super) fn private(feed: SocketAddr, membership: Membership) -> Result<Self, FanoutError> {
        let mut last = Errno::ADDRINUSE;
        for _ in 0..ATTEMPTS {
            let address = SocketAddr::new(random(feed.ip()), feed.port());
            match bound(address, false) {
                Ok(first) => {
                    let membership = Membership { group: address.ip(), ..membership };
                    return Ok(Self { address, membership, private: true, first: Some(first) });
                }
                Err(error) => last = error,
            }
        }
        Err(FanoutError::NotInKernel(format!(
            "no private multicast group available on port {}: {last}",
            feed.port()
        )))
    }

    pub(super) fn address(&self) -> IpAddr {
        self.address.ip()
    }

    pub(super) fn is_private(&self) -> bool {
        self.private
    }

    /// A socket of the group that receives nothing yet: `install` puts it to use, then it joins.
    pub(super) fn socket(
        &mut self,
        programs: &FanoutPrograms,
        install: impl FnOnce(BorrowedFd<'_>, u64) -> Result<(), Error>,
    ) -> Result<GroupSocket, FanoutError> {
        let failed = |what: &'static str| {
            move |errno: Errno| FanoutError::NotInKernel(format!("socket of the group: {what}: {errno}"))
        };
        let socket = match self.first.take() {
            Some(first) => {
                // From now on others may bind to it too: the subscribers' sockets.
                sockopt::set_socket_reuseaddr(&first, true).map_err(failed("SO_REUSEADDR"))?;
                first
            }
            None => bound(self.address, true).map_err(failed("bind"))?,
        };
        let cookie = sockopt::socket_cookie(&socket).map_err(failed("SO_COOKIE"))?;
        let joined = install(socket.as_fd(), cookie).map_err(FanoutError::from).and_then(|()| {
            Keeper::join(self.membership.clone(), socket.as_fd())
                .map_err(|source| FanoutError::Join { membership: self.membership.clone(), source })
        });
        match joined {
            Ok(keeper) => Ok(GroupSocket { socket, keeper, cookie }),
            Err(error) => {
                programs.end(cookie);
                Err(error)
            }
        }
    }
}

impl GroupSocket {
    /// Rejoins if the membership is lost, and logs it.
    pub(super) fn look_after(&mut self) -> Joined {
        self.keeper.look_after(self.socket.as_fd())
    }

    /// Rejoins if the membership is lost.
    pub(super) fn keep(&mut self) -> io::Result<Joined> {
        self.keeper.keep(self.socket.as_fd())
    }

    /// Ends what `programs` do with it. Its membership ends with it.
    pub(super) fn end(self, programs: &FanoutPrograms) {
        programs.end(self.cookie);
    }
}

/// A UDP socket that is bound to a group and gets nothing before it joins.
fn bound(address: SocketAddr, shared: bool) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    own_groups_only(socket.as_fd(), address.ip())
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL))?;
    sockopt::set_socket_reuseaddr(&socket, shared)?;
    net::bind(&socket, &address)?;
    Ok(socket)
}

/// A multicast address of this site, which no router passes on: of 239.255.0.0/16 (RFC 2365, section 6.1), or
/// transient with site-local scope (RFC 4291, section 2.7).
pub(super) fn random(like: IpAddr) -> IpAddr {
    // Each `RandomState` has keys of its own.
    let random = RandomState::new().build_hasher().finish().to_be_bytes();
    let [a, b, c, d, e, f, g, h] = random;
    match like {
        IpAddr::V4(_) => Ipv4Addr::new(239, 255, a, b).into(),
        IpAddr::V6(_) => Ipv6Addr::from([0xff, 0x15, 0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h]).into(),
    }
}
