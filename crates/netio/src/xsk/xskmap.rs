//! Puts a socket into an XSKMAP and takes it out, by the bpf(2) system call itself.

#![allow(unsafe_code)] // The bpf system call.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `BPF_MAP_UPDATE_ELEM` (`include/uapi/linux/bpf.h`, `enum bpf_cmd`).
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
/// `BPF_MAP_DELETE_ELEM`.
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;

/// The member of `union bpf_attr` that the element commands use.
#[repr(C, align(8))]
struct ElementAttr {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

const _: () = assert!(size_of::<ElementAttr>() == 32);

/// Makes packets that the program redirects to `key` go to `socket`.
pub(super) fn insert(map: BorrowedFd<'_>, key: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd() as u32;
    element(BPF_MAP_UPDATE_ELEM, map, &key, Some(&value))
}

/// Makes packets for `key` pass to the kernel's stack (with a program that falls back to XDP_PASS).
pub(super) fn remove(map: BorrowedFd<'_>, key: u32) -> io::Result<()> {
    element(BPF_MAP_DELETE_ELEM, map, &key, None)
}

fn element(command: libc::c_long, map: BorrowedFd<'_>, key: &u32, value: Option<&u32>) -> io::Result<()> {
    let attr = ElementAttr {
        map_fd: map.as_raw_fd() as u32,
        padding: 0,
        key: std::ptr::from_ref(key) as u64,
        value: value.map_or(0, |value| std::ptr::from_ref(value) as u64),
        flags: 0,
    };
    // SAFETY: the attribute is as long as said; key and value are the four bytes that an XSKMAP has, and
    // outlive the call. The kernel checks that the descriptor is of a map and bounds all it reads by the
    // sizes that the map was made with; a map of larger entries would be read beyond these, so the type is
    // the caller's to get right, which costs at worst stray bytes in a map of the caller's own.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(&attr), size_of::<ElementAttr>()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
