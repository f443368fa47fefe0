//! The socket options of multicast groups, for which `rustix` has no safe functions. Nothing is decided here.
#![allow(unsafe_code)] // These options take structs that rustix does not know.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `MCAST_JOIN_GROUP`, `MCAST_JOIN_SOURCE_GROUP` and `MCAST_LEAVE_GROUP` (RFC 3678, section 5.1); interface 0 lets
/// the route to the group decide.
pub(super) fn group(fd: BorrowedFd<'_>, interface: u32, group: IpAddr, join: bool) -> io::Result<()> {
    let request = libc::group_req { gr_interface: interface, gr_group: storage(group) };
    let option = if join { libc::MCAST_JOIN_GROUP } else { libc::MCAST_LEAVE_GROUP };
    set(fd, level(group), option, &request)
}

/// Joins the group for datagrams of one source.
pub(super) fn source_group(
    fd: BorrowedFd<'_>,
    interface: u32,
    group: IpAddr,
    source: IpAddr,
) -> io::Result<()> {
    let request = libc::group_source_req {
        gsr_interface: interface,
        gsr_group: storage(group),
        gsr_source: storage(source),
    };
    set(fd, level(group), libc::MCAST_JOIN_SOURCE_GROUP, &request)
}

/// Only what this socket itself has joined is delivered to it, not what others on this machine have.
pub(super) fn own_groups_only(fd: BorrowedFd<'_>, group: IpAddr) -> io::Result<()> {
    /// `linux/in6.h`; libc has no constant for it.
    const IPV6_MULTICAST_ALL: i32 = 29;
    let option = if group.is_ipv4() { libc::IP_MULTICAST_ALL } else { IPV6_MULTICAST_ALL };
    set(fd, level(group), option, &0i32)
}

fn level(group: IpAddr) -> i32 {
    if group.is_ipv4() { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 }
}

fn set<T: Copy>(fd: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: `value` lives through the call and its true size is given; the kernel only reads it.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn storage(address: IpAddr) -> libc::sockaddr_storage {
    // SAFETY: `sockaddr_storage` is integers, for which zero is a value.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    match SocketAddr::new(address, 0) {
        SocketAddr::V4(v4) => {
            // SAFETY: as above.
            let mut name: libc::sockaddr_in = unsafe { zeroed() };
            name.sin_family = libc::AF_INET as libc::sa_family_t;
            name.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            // SAFETY: `sockaddr_storage` is larger than and aligned for every socket address.
            unsafe { std::ptr::write((&raw mut storage).cast(), name) };
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let mut name: libc::sockaddr_in6 = unsafe { zeroed() };
            name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            name.sin6_addr.s6_addr = v6.ip().octets();
            // SAFETY: as above.
            unsafe { std::ptr::write((&raw mut storage).cast(), name) };
        }
    }
    storage
}
