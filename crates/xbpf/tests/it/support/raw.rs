//! A packet socket: sends frames as they are, right or wrong.
#![allow(unsafe_code, reason = "rustix has no sockaddr_ll")]

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::netns::index_of;

/// Sends frames out of one interface.
pub(crate) struct RawSender {
    socket: OwnedFd,
    address: libc::sockaddr_ll,
}

impl RawSender {
    /// A sender on `device` of the calling thread's namespace.
    pub(crate) fn new(device: &str) -> Self {
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
        // SAFETY: all zeroes is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index_of(device) as i32;
        Self { socket, address }
    }

    pub(crate) fn send(&self, frame: &[u8]) {
        // SAFETY: frame and address are valid for the call, with their sizes beside them.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const self.address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }
}
