//! Membership in a feed's multicast group, maintained while interfaces come and go.
//!
//! The kernel drops a membership together with its interface. The group is therefore joined again every second: if the
//! membership still exists, the kernel answers EADDRINUSE, at the cost of one system call.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::net::netdevice;

mod sys;

/// How often the membership is looked after.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// A group to be a member of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The group.
    pub group: IpAddr,
    /// The interface by name; without one the route to the group decides.
    pub interface: Option<String>,
    /// Only datagrams of these sources are asked of the network (source-specific: IGMPv3, MLDv2); empty: all.
    pub sources: Vec<IpAddr>,
}

/// What looking after a membership came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It stands as it stood.
    Already,
    /// It had gone, and stands again.
    Anew,
}

/// Keeps a [`Membership`] on one socket.
pub struct Keeper {
    wanted: Membership,
    index: u32,
    lost: bool,
}

impl Keeper {
    /// Joins.
    ///
    /// # Errors
    /// An interface that does not exist, no route to the group, no room for another membership.
    pub fn join(wanted: Membership, fd: BorrowedFd<'_>) -> io::Result<Self> {
        sys::own_groups_only(fd, wanted.group)?;
        let mut keeper = Self { wanted, index: 0, lost: false };
        keeper.keep(fd)?;
        Ok(keeper)
    }

    /// The group.
    pub fn group(&self) -> IpAddr {
        self.wanted.group
    }

    /// Rejoins if the membership is lost. Logs failure once.
    pub fn look_after(&mut self, fd: BorrowedFd<'_>) -> Joined {
        let group = self.wanted.group;
        match self.keep(fd) {
            Ok(joined) => {
                if self.lost || joined == Joined::Anew {
                    tracing::info!(%group, "multicast group rejoined");
                }
                self.lost = false;
                joined
            }
            Err(error) => {
                if !self.lost {
                    tracing::warn!(%group, %error, "multicast group lost; it will be rejoined when its interface is back");
                }
                self.lost = true;
                Joined::Already
            }
        }
    }

    /// Rejoins if the membership is lost, without logging.
    ///
    /// # Errors
    /// Those of [`Keeper::join`].
    pub fn keep(&mut self, fd: BorrowedFd<'_>) -> io::Result<Joined> {
        let index = match &self.wanted.interface {
            Some(name) => netdevice::name_to_index(fd, name)?,
            None => 0,
        };
        if self.index != 0 && index != self.index {
            // The socket still counts the membership on the interface that is no more.
            let _ = sys::group(fd, self.index, self.wanted.group, false);
        }
        let mut joined = Joined::Already;
        let results: Vec<io::Result<()>> = match &self.wanted.sources[..] {
            [] => vec![sys::group(fd, index, self.wanted.group, true)],
            sources => sources
                .iter()
                .map(|source| sys::source_group(fd, index, self.wanted.group, *source))
                .collect(),
        };
        for result in results {
            match result {
                Ok(()) => joined = Joined::Anew,
                // IPv4 answers EADDRINUSE for a group and EADDRNOTAVAIL for a source that was joined before
                // (`ip_mc_join_group`, `ip_mc_source` in net/ipv4/igmp.c); IPv6 alike (net/ipv6/mcast.c).
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EADDRINUSE))
                        || (self.index == index
                            && !self.wanted.sources.is_empty()
                            && error.raw_os_error() == Some(libc::EADDRNOTAVAIL)) => {}
                Err(error) => return Err(error),
            }
        }
        self.index = index;
        Ok(joined)
    }
}

/// Lets nothing be delivered to a socket but of groups that it has joined itself, also before it joins the first;
/// by default a socket that is bound to a group gets what others have joined.
///
/// # Errors
/// The kernel's answer: no socket of the group's family.
pub fn own_groups_only(fd: BorrowedFd<'_>, group: IpAddr) -> io::Result<()> {
    sys::own_groups_only(fd, group)
}
