//! Interface information from the kernel: index, MTU, up or down, and notification of changes.
//!
//! One netlink socket that is subscribed to link changes wakes a worker when an interface goes down, comes back or
//! disappears. The content of the messages is ignored: after any message, the owner requests the state of its few
//! interfaces again, so a lost message (ENOBUFS) does no harm. (XSKs themselves do not report this: `xsk_poll` in
//! `net/xdp/xsk.c` never returns EPOLLERR.)

#![allow(unsafe_code)] // ioctl with an `ifreq`.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{self, RecvFlags};

use super::config::{Fitted, XskConfig};
use super::error::OpenError;
use crate::route::{NetlinkSource, NetlinkUse};

/// Whether packets can pass an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// Set up, and with a carrier.
    Up,
    /// Set down, or without a carrier.
    Down,
    /// There is no interface of that index any more.
    Gone,
}

/// A socket to ask about the interfaces of the network namespace that it was opened in.
#[derive(Debug)]
pub(crate) struct Interfaces {
    socket: OwnedFd,
}

/// Where a binding is to be opened.
pub(crate) struct BindTarget {
    /// The interface's network namespace, to be asked for more.
    pub(crate) interfaces: Interfaces,
    /// Index of the interface.
    pub(crate) ifindex: u32,
    /// Its MTU.
    pub(crate) mtu: u32,
    /// What is bound there.
    pub(crate) fitted: Fitted,
}

impl BindTarget {
    /// Checks a configuration, finds its interface in the network namespace of `source`, and fits it to that.
    ///
    /// # Errors
    /// [`OpenError::Config`] and [`OpenError::Interface`].
    pub(crate) fn find(config: &XskConfig, source: &dyn NetlinkSource) -> Result<Self, OpenError> {
        config.validate()?;
        let named = |source| OpenError::Interface { interface: config.interface.clone(), source };
        let interfaces = Interfaces::open(source).map_err(named)?;
        let ifindex = interfaces.index(&config.interface).map_err(named)?;
        let mtu = interfaces.mtu(ifindex).map_err(named)?;
        Ok(Self { interfaces, ifindex, mtu, fitted: config.fit(mtu) })
    }
}

impl Interfaces {
    /// Opens the socket, subscribed to link changes.
    pub(crate) fn open(source: &dyn NetlinkSource) -> io::Result<Self> {
        Ok(Self { socket: source.open(NetlinkUse::Links)? })
    }

    /// Index of the interface called `name`.
    pub(crate) fn index(&self, name: &str) -> io::Result<u32> {
        let mut request = named(name.as_bytes())?;
        self.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: SIOCGIFINDEX has filled this member.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        u32::try_from(index).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// MTU of an interface in bytes.
    pub(crate) fn mtu(&self, index: u32) -> io::Result<u32> {
        let mut request = self.by_index(index)?;
        self.ioctl(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: SIOCGIFMTU has filled this member.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        u32::try_from(mtu).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Whether packets can pass the interface of that index.
    pub(crate) fn state(&self, index: u32) -> LinkState {
        let flags = self.by_index(index).and_then(|mut request| {
            self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
            // SAFETY: SIOCGIFFLAGS has filled this member.
            Ok(i32::from(unsafe { request.ifr_ifru.ifru_flags }))
        });
        match flags {
            Ok(flags) if flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0 => LinkState::Up,
            Ok(_) => LinkState::Down,
            Err(_) => LinkState::Gone,
        }
    }

    /// Reads away the notices that wait. True if there were any.
    pub(crate) fn drain(&self) -> bool {
        let mut buffer = [0u8; 4096];
        let mut changed = false;
        // Bounded: links that flap faster than this are looked at again next turn.
        for _ in 0..64 {
            match net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(rustix::io::Errno::AGAIN) => break,
                // ENOBUFS: notices were lost, which is a notice too.
                Ok(_) | Err(_) => changed = true,
            }
        }
        changed
    }

    /// A request that names the interface of that index: the name can change while the program runs.
    fn by_index(&self, index: u32) -> io::Result<libc::ifreq> {
        let mut request = named(b"")?;
        request.ifr_ifru.ifru_ifindex = i32::try_from(index).map_err(|_| no_device())?;
        self.ioctl(libc::SIOCGIFNAME, &mut request)?;
        let bytes = request.ifr_name.map(|character| character as u8);
        let name = CStr::from_bytes_until_nul(&bytes).map_err(|_| no_device())?;
        named(name.to_bytes())
    }

    fn ioctl(&self, request: libc::c_ulong, argument: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: the requests used here read and write one `ifreq`.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), request as _, std::ptr::from_mut(argument)) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Interfaces {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An `ifreq` for a name of at most 15 bytes.
fn named(name: &[u8]) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is a plain C structure: all zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() || name.contains(&0) {
        return Err(no_device());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name) {
        *place = *byte as libc::c_char;
    }
    Ok(request)
}

fn no_device() -> io::Error {
    io::Error::from_raw_os_error(libc::ENODEV)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there_and_nonsense_is_not() {
        let interfaces = Interfaces::open(&crate::route::OwnNamespace).unwrap();
        let loopback = interfaces.index("lo").unwrap();
        assert!(interfaces.mtu(loopback).unwrap() >= 1280);
        assert_ne!(interfaces.state(loopback), LinkState::Gone);
        assert_eq!(interfaces.state(0x7fff_fff0), LinkState::Gone);
        assert!(interfaces.index("no-such-if0").is_err());
        assert!(interfaces.index("a-name-longer-than-an-ifreq").is_err());
    }
}
