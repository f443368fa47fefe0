//! System calls about connections and threads for which `rustix` has no safe form. Nothing is decided here.
#![allow(unsafe_code)] // Options, a request and system calls that rustix does not know.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Connection details for statistics.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpInfo {
    pub(super) rtt: Duration,
    pub(super) retransmits: u64,
    pub(super) unsent_bytes: u64,
    /// As in `include/net/tcp_states.h`.
    pub(super) state: u8,
    pub(super) acknowledged_bytes: u64,
}

/// `TCP_INFO` (`linux/tcp.h`).
pub(super) fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    // Behind libc's `tcp_info`, which ends at `tcpi_total_retrans` (104 bytes): pacing_rate and its maximum,
    // bytes_acked and bytes_received (8 each), segs_out and segs_in (4 each), notsent_bytes.
    const RTT: usize = 68;
    const TOTAL_RETRANS: usize = 100;
    const BYTES_ACKED: usize = 120;
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
    // The words of a long one are in the machine's order.
    let two_words = |offset: usize| {
        let [a, b, c, d] = word(offset).to_ne_bytes();
        let [e, f, g, h] = word(offset + 4).to_ne_bytes();
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    };
    Ok(TcpInfo {
        rtt: Duration::from_micros(word(RTT).into()),
        retransmits: word(TOTAL_RETRANS).into(),
        unsent_bytes: word(NOTSENT_BYTES).into(),
        state: info[0].to_ne_bytes()[0],
        acknowledged_bytes: two_words(BYTES_ACKED),
    })
}

/// Bytes that a connection has taken and that are not acknowledged yet, sent or not (`SIOCOUTQ`, tcp(7)).
pub(super) fn unacknowledged_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one `int`, which is what the pointer is to.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { Ok(u64::try_from(bytes).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// Has the processor fetch what a value is made of, as far as it has an instruction for that.
pub(super) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..size_of::<T>()).step_by(64) {
        let line = std::ptr::from_ref(value).cast::<i8>().wrapping_add(offset);
        // SAFETY: a prefetch reads nothing, whatever the address.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// What the kernel calls the network namespace of a socket (`SO_NETNS_COOKIE`, Linux 5.14).
pub(super) fn netns_cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    /// `asm-generic/socket.h`; libc has no constant for it.
    const SO_NETNS_COOKIE: i32 = 71;
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: both pointers are to live locals, and `length` is the true size of `cookie`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// This thread's time slice when others want its core too: a hint that needs no privilege (`sched_runtime`
/// of sched_setattr(2), Linux 6.12; older kernels ignore it). The shorter, the sooner its next turn; zero is
/// the default. A thread with a real-time policy is left unchanged.
pub(super) fn set_slice(slice: Duration) -> io::Result<()> {
    let mut attributes = scheduling()?;
    if !matches!(attributes.sched_policy.cast_signed(), libc::SCHED_OTHER | libc::SCHED_BATCH) {
        return Ok(());
    }
    attributes.sched_runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: 0 is the calling thread, and `attributes` is a whole struct that names its size.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How this thread is scheduled.
fn scheduling() -> io::Result<libc::sched_attr> {
    const SIZE: usize = size_of::<libc::sched_attr>();
    // SAFETY: `sched_attr` is integers, for which zero is a value.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: 0 is the calling thread; the kernel writes at most `SIZE` bytes, which is the struct's true size.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, SIZE, 0) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    attributes.size = SIZE as u32;
    Ok(attributes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_given_the_slice_that_it_asks_for_and_stays_as_it_was() {
        let before = scheduling().unwrap();
        set_slice(Duration::from_micros(100)).unwrap();
        let after = scheduling().unwrap();
        // Before Linux 6.12 there are no slices.
        assert!(matches!(after.sched_runtime, 100_000 | 0), "{}", after.sched_runtime);
        assert_eq!(
            (after.sched_policy, after.sched_nice, after.sched_flags),
            (before.sched_policy, before.sched_nice, before.sched_flags)
        );
    }
}
