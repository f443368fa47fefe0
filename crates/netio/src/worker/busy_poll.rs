//! The busy-poll parameters of an epoll instance: `EPIOCSPARAMS` and `EPIOCGPARAMS` (Linux 6.9,
//! `include/uapi/linux/eventpoll.h`).
#![allow(unsafe_code)] // Two ioctls with a structure; no safe wrapper exists.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::wait::BusyPoll;

/// `_IOW(0x8A, 0x01, struct epoll_params)`.
const EPIOCSPARAMS: libc::c_ulong = 0x4008_8a01;
/// `_IOR(0x8A, 0x02, struct epoll_params)`.
#[cfg(test)]
const EPIOCGPARAMS: libc::c_ulong = 0x8008_8a02;

/// `struct epoll_params`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct EpollParams {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    pad: u8,
}

const _: () = assert!(size_of::<EpollParams>() == 8);

/// Makes `epoll_wait` poll the device of its sockets before it sleeps, and keep the device's interrupts off while
/// packets come, where the NAPI context is configured so.
///
/// # Errors
/// ENOTTY before Linux 6.9; EPERM for a budget above 8 without CAP_NET_ADMIN.
pub(super) fn set(epoll: BorrowedFd<'_>, poll: BusyPoll) -> io::Result<()> {
    let params = EpollParams {
        busy_poll_usecs: poll.microseconds() as u32,
        busy_poll_budget: poll.budget,
        prefer_busy_poll: 1,
        pad: 0,
    };
    // SAFETY: the request reads one `epoll_params`, which lives through the call.
    let result = unsafe { libc::ioctl(epoll.as_raw_fd(), EPIOCSPARAMS as _, &raw const params) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The parameters in force: microseconds, budget, preference.
#[cfg(test)]
pub(super) fn read(epoll: BorrowedFd<'_>) -> io::Result<(u32, u16, bool)> {
    let mut params = EpollParams::default();
    // SAFETY: the request writes one `epoll_params`, which lives through the call.
    let result = unsafe { libc::ioctl(epoll.as_raw_fd(), EPIOCGPARAMS as _, &raw mut params) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((params.busy_poll_usecs, params.busy_poll_budget, params.prefer_busy_poll != 0))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::event::epoll;

    use super::*;

    #[test]
    fn the_kernel_takes_the_parameters_or_says_that_it_has_none() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        // A budget of 8 takes no privilege.
        let poll = BusyPoll { time: Duration::from_micros(30), budget: 8 };
        match set(epoll.as_fd(), poll) {
            Ok(()) => assert_eq!(read(epoll.as_fd()).unwrap(), (30, 8, true)),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "{error}"),
        }
    }
}
