//! Questions to a device by ethtool: the number of its queues.
#![allow(unsafe_code)] // SIOCETHTOOL passes a pointer to a structure; no safe wrapper exists.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// `SIOCETHTOOL` (`linux/sockios.h`).
const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// `ETHTOOL_GCHANNELS` (`linux/ethtool.h`).
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_channels` (`linux/ethtool.h`).
#[repr(C)]
#[derive(Default)]
struct EthtoolChannels {
    cmd: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// The queues of a device that are in use now, and the most that it could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// RX queues in use.
    pub rx: u32,
    /// TX queues in use.
    pub tx: u32,
    /// RX queues possible.
    pub max_rx: u32,
    /// TX queues possible.
    pub max_tx: u32,
}

/// Asks for the queues of interface `name` in the calling thread's network namespace.
///
/// # Errors
/// `EOPNOTSUPP` when the driver does not tell, which mostly means one queue (see
/// [`Link::rx_queues`](super::Link)); `ENODEV` for an unknown interface; `InvalidInput` for a name longer than
/// 15 bytes.
pub fn channels(name: &str) -> io::Result<Channels> {
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut answer = EthtoolChannels { cmd: ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
    // SAFETY: `ifreq` is a name and a union of integers and pointers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut answer).cast();
    // SAFETY: `request` and `answer` live through the call; the kernel reads the command from `answer` and
    // writes one `ethtool_channels` there, whose layout the type has.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Channels {
        rx: answer.rx + answer.combined,
        tx: answer.tx + answer.combined,
        max_rx: answer.max_rx + answer.max_combined,
        max_tx: answer.max_tx + answer.max_combined,
    })
}
