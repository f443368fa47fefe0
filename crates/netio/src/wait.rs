//! How a worker waits for packets, and what this requires of its sockets and its epoll instance.
//!
//! | strategy | while nothing comes | wakes by |
//! |---|---|---|
//! | [`Wait::Interrupt`] | the thread sleeps, the device interrupts | the driver's interrupt, softirq, wake-up |
//! | [`Wait::BusyPoll`] | the thread polls the device inside `epoll_wait`, then sleeps | its own poll, or as above |
//! | [`Wait::Spin`] | the thread looks at the rings without a system call | its own look |
//!
//! Busy polling works by NAPI: the kernel polls the receive queue of a socket, which it knows by the socket's NAPI ID.
//! With a device without one (veth, tap) there is nothing to poll, and the strategy is in effect [`Wait::Interrupt`];
//! `napi_id` shows this. This module does not change device settings ([`crate::netdev`]).

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::sys::{self, IoError};

/// `SO_PREFER_BUSY_POLL` (`asm-generic/socket.h`, Linux 5.11).
pub(crate) const SO_PREFER_BUSY_POLL: i32 = 69;
/// `SO_BUSY_POLL_BUDGET` (`asm-generic/socket.h`, Linux 5.11).
pub(crate) const SO_BUSY_POLL_BUDGET: i32 = 70;

/// How a worker waits when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Sleeps until a descriptor is readable. Costs nothing while idle.
    #[default]
    Interrupt,
    /// Polls the device from `epoll_wait` for a while before it sleeps.
    BusyPoll(BusyPoll),
    /// Never sleeps: takes a whole core, idle or not.
    Spin(Spin),
}

/// Parameters of [`Wait::BusyPoll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// How long one `epoll_wait` polls the device before it sleeps; whole microseconds count.
    pub time: Duration,
    /// Packets that one poll of the device may take, 8 to 64 (`NAPI_POLL_WEIGHT`).
    pub budget: u16,
}

impl Default for BusyPoll {
    fn default() -> Self {
        // 50 µs is what `net.core.busy_poll` is usually set to; 64 is a driver's own budget, and a batch here.
        Self { time: Duration::from_micros(50), budget: 64 }
    }
}

impl BusyPoll {
    /// The time in microseconds, as the kernel's options take it.
    pub(crate) fn microseconds(self) -> i32 {
        i32::try_from(self.time.as_micros()).unwrap_or(i32::MAX)
    }
}

/// Parameters of [`Wait::Spin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spin {
    /// How long the kernel sockets behind AF_XDP go unasked at most while nothing comes: asking takes a system
    /// call, during which a packet in the rings waits. Kernel UDP alone is asked each time. A driver that wants to be
    /// woken without a packet having come is woken as often.
    pub kernel_interval: Duration,
}

impl Default for Spin {
    fn default() -> Self {
        // A call takes about half a microsecond: a fortieth of the time.
        Self { kernel_interval: Duration::from_micros(20) }
    }
}

/// Sets what `wait` asks of one socket; `what` names it in the error. `prefer` says whether polling may stand in for
/// interrupts and wake-ups altogether. For a zero-copy AF_XDP socket it must not: with SO_PREFER_BUSY_POLL `sendto`
/// no longer wakes the driver (`xsk_no_wakeup` in `net/xdp/xsk.c`, Linux 6.18), and polling reaches the NAPI context
/// of the receive queue alone. A driver with another one for transmission (virtio_net) then sends nothing.
///
/// A socket that somebody with privilege prepared for the same takes none to be prepared again.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN, which busy polling takes; ENOPROTOOPT or EOPNOTSUPP from a kernel without it.
pub(crate) fn prepare_socket(
    fd: BorrowedFd<'_>,
    wait: Wait,
    prefer: bool,
    what: &str,
) -> Result<(), IoError> {
    let Wait::BusyPoll(poll) = wait else { return Ok(()) };
    // To set it takes privilege even where it is set; the others may be set to what they are, or to less.
    let is_set = prefer && sys::option(fd, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL).is_ok_and(|set| set == 1);
    let options = [
        (SO_PREFER_BUSY_POLL, i32::from(prefer), "SO_PREFER_BUSY_POLL"),
        (libc::SO_BUSY_POLL, poll.microseconds(), "SO_BUSY_POLL"),
        (SO_BUSY_POLL_BUDGET, i32::from(poll.budget), "SO_BUSY_POLL_BUDGET"),
    ];
    for (name, value, option) in options.into_iter().skip(usize::from(is_set)) {
        sys::set_option(fd, libc::SOL_SOCKET, name, value).map_err(|source| IoError::Socket {
            what: format!("{what}: {option} = {value} (busy polling needs CAP_NET_ADMIN and Linux 5.11)"),
            source,
        })?;
    }
    Ok(())
}

/// The id of the NAPI context that a socket's packets come by. An AF_XDP socket has it from bind on (Linux 6.13), a
/// UDP socket from its first packet on. `None` where the device has none.
pub(crate) fn napi_id(fd: BorrowedFd<'_>) -> Option<u32> {
    let id = sys::option(fd, libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID).ok()?;
    u32::try_from(id).ok().filter(|id| *id != 0)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_socket_without_packets_has_no_napi() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(napi_id(socket.as_fd()), None);
    }

    #[test]
    fn interrupt_and_spin_leave_sockets_alone() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for wait in [Wait::Interrupt, Wait::Spin(Spin::default())] {
            prepare_socket(socket.as_fd(), wait, true, "udp").unwrap();
            assert_eq!(sys::option(socket.as_fd(), libc::SOL_SOCKET, SO_PREFER_BUSY_POLL).unwrap(), 0);
        }
    }

    #[test]
    fn what_is_set_is_read_back() {
        if !rustix::process::geteuid().is_root() {
            let required =
                std::env::var_os("EXPRESSWAY_REQUIRE_ROOT_TESTS").is_some_and(|value| value == "1");
            assert!(!required, "EXPRESSWAY_REQUIRE_ROOT_TESTS=1 but this is not root");
            eprintln!("skipped: needs root (CAP_NET_ADMIN)");
            return;
        }
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let poll = BusyPoll { time: Duration::from_micros(70), budget: 16 };
        prepare_socket(socket.as_fd(), Wait::BusyPoll(poll), true, "udp").unwrap();
        let read = |name| sys::option(socket.as_fd(), libc::SOL_SOCKET, name).unwrap();
        // The budget cannot be read (`sk_getsockopt` in `net/core/sock.c`).
        assert_eq!([read(SO_PREFER_BUSY_POLL), read(libc::SO_BUSY_POLL)], [1, 70]);
    }
}
