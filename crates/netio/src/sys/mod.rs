//! System calls and memory, on which every backend is built.
//!
//! Integer socket options, mapped memory, read-only views of other processes' memory, and errors with the names that
//! manuals use. Nothing is decided here.

#![allow(unsafe_code)] // Socket options have no safe wrapper for arbitrary names.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

#[cfg(all(test, not(loom)))]
pub(crate) mod abi_test;
mod error;
pub(crate) mod mapping;
pub(crate) mod view;

pub use error::IoError;
pub(crate) use error::describe;

/// Sets a socket option that takes an `int`.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: `value` lives through the call and its true size is given.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads a socket option that is an `int`.
pub(crate) fn option(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: both pointers are to live locals, `length` is the true size of `value`.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
