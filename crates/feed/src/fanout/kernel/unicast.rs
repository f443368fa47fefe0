//! How a unicast feed comes in: on one interface, its destination is rewritten to a private multicast group.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use expressway_xbpf::FanoutPrograms;
use rustix::net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType, netdevice};

use super::super::service::FanoutError;

/// Datagrams taken from the plain socket at a time.
const UNFORWARDED: u64 = 64;

/// How a unicast feed comes in.
pub(super) struct Unicast {
    interface: String,
    index: u32,
    /// What is not turned into multicast arrives here, and keeps the address taken.
    plain: OwnedFd,
}

impl Unicast {
    /// Binds the feed's address and rewrites what arrives for it at `interface` to the private group.
    pub(super) fn open(
        feed: SocketAddr,
        interface: &str,
        programs: &mut FanoutPrograms,
    ) -> Result<Self, FanoutError> {
        let family = if feed.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let plain = net::socket_with(family, SocketType::DGRAM, flags, None)
            .and_then(|plain| net::bind(&plain, &feed).map(|()| plain))
            .map_err(|error| FanoutError::NotInKernel(format!("udp {feed}: {error}")))?;
        let index = netdevice::name_to_index(&plain, interface)
            .map_err(|error| FanoutError::NotInKernel(format!("interface {interface}: {error}")))?;
        programs.turn(index)?;
        Ok(Self { interface: interface.to_owned(), index, plain })
    }

    /// Attaches to the interface again after it has disappeared and come back. True if it did.
    pub(super) fn look_after(&mut self, programs: &mut FanoutPrograms) -> bool {
        let Ok(index) = netdevice::name_to_index(&self.plain, &self.interface) else { return false };
        if programs.is_turning(index) {
            return false;
        }
        match programs.turn(index) {
            Ok(()) => {
                tracing::info!(interface = self.interface, "the feed's interface is back");
                self.index = index;
                true
            }
            Err(error) => {
                if self.index != index {
                    tracing::warn!(interface = self.interface, %error, "the feed's interface is back, but the feed cannot be picked up");
                    self.index = index;
                }
                false
            }
        }
    }

    /// The plain socket, which is readable when something was not turned.
    pub(super) fn plain(&self) -> BorrowedFd<'_> {
        self.plain.as_fd()
    }

    /// Discards datagrams that were not rewritten, and returns their number.
    pub(super) fn drop_unforwarded(&self) -> u64 {
        let mut dropped = 0;
        while dropped < UNFORWARDED && net::recv(&self.plain, &mut [0u8; 1], RecvFlags::DONTWAIT).is_ok() {
            dropped += 1;
        }
        dropped
    }
}
