//! A socket option that no safe wrapper has.
#![allow(unreachable_pub)] // A module of a test binary.
#![allow(unsafe_code)] // `setsockopt` with an option that rustix does not know.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Turns transmit checksums of a socket off (`SO_NO_CHECK`).
pub fn turn_off_checksums(fd: BorrowedFd<'_>) {
    let on = 1i32;
    // SAFETY: `on` lives through the call and its true size is given.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, (&raw const on).cast(), 4)
    };
    assert_eq!(result, 0);
}
