//! What a shard sleeps on: an epoll instance and its timer.
//!
//! ```text
//!   waits ─┬─ descriptors of packet I/O        rebuilt when those change; a datagram wakes through one instance
//!          ├─ inbox
//!          ├─ an interval timer            set once: a timeout per wait would set and cancel a timer each time
//!          └─ subscribers ─── their sockets    queried only if one of them has an event, which is rare
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use expressway_netio::IoError;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// Marks what the feed and other threads wake by.
pub(super) const FEED: u64 = 0;
/// Marks the sockets of subscribers.
pub(super) const SUBSCRIBERS: u64 = 1;
/// Marks the timer.
pub(super) const INTERVAL_OVER: u64 = 2;

/// A timer that is readable when an interval of [`expressway_netio::udp::group::INTERVAL`] is over.
pub(super) fn interval() -> Result<OwnedFd, IoError> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed("timerfd_create"))?;
    let every = expressway_netio::udp::group::INTERVAL;
    let time = Timespec { tv_sec: every.as_secs() as i64, tv_nsec: every.subsec_nanos().into() };
    let every = Itimerspec { it_interval: time, it_value: time };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every).map_err(failed("timerfd_settime"))?;
    Ok(timer)
}

/// An epoll instance over inbox, subscribers, the interval's timer and what `feed` visits.
pub(super) fn waits(
    inbox: impl AsFd,
    subscribers: &OwnedFd,
    interval: &OwnedFd,
    feed: impl FnOnce(&mut dyn FnMut(BorrowedFd<'_>)),
) -> Result<OwnedFd, IoError> {
    let waits = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?;
    let add =
        |fd: BorrowedFd<'_>, data, flags| epoll::add(&waits, fd, epoll::EventData::new_u64(data), flags);
    let level = epoll::EventFlags::IN;
    let mut result = add(inbox.as_fd(), FEED, level | epoll::EventFlags::ET)
        .and_then(|()| add(subscribers.as_fd(), SUBSCRIBERS, level))
        .and_then(|()| add(interval.as_fd(), INTERVAL_OVER, level));
    feed(&mut |fd| {
        if result.is_ok() {
            result = add(fd, FEED, level);
        }
    });
    result.map_err(failed("epoll_ctl"))?;
    Ok(waits)
}

/// An error that names the call.
pub(super) fn failed(what: &'static str) -> impl Fn(Errno) -> IoError {
    move |error| IoError::Socket { what: format!("fan-out: {what}"), source: error.into() }
}
