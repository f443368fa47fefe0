//! What TCP says of a connection, which `rustix` has no safe form of. Nothing is decided here.
#![allow(unsafe_code)] // The option gives a struct that rustix does not know.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// What statistics show of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpInfo {
    pub(super) rtt: Duration,
    pub(super) retransmits: u64,
    pub(super) unsent_bytes: u64,
}

/// `TCP_INFO` (`linux/tcp.h`).
pub(super) fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    // Behind libc's `tcp_info`, which ends at `tcpi_total_retrans` (104 bytes): pacing_rate and its maximum,
    // bytes_acked and bytes_received (8 each), segs_out and segs_in (4 each), notsent_bytes.
    const RTT: usize = 68;
    const TOTAL_RETRANS: usize = 100;
    const NOTSENT_BYTES: usize = 144;
    let mut info = [0u32; 64];
    let mut length = size_of::<[u32; 64]>() as libc::socklen_t;
    // SAFETY: both pointers are to live locals, `length` is the true size of `info`, in which any bytes are values.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let word = |offset: usize| info[offset / 4];
    Ok(TcpInfo {
        rtt: Duration::from_micros(word(RTT).into()),
        retransmits: word(TOTAL_RETRANS).into(),
        unsent_bytes: word(NOTSENT_BYTES).into(),
    })
}
