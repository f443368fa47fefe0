//! Errors of packet I/O, and how errors of the kernel are written.

use std::io;

/// Why packet I/O failed. Losing one packet is no error but a counter; these stop a socket or a backend.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// A system call failed on a socket.
    #[error("{what}: {source}")]
    Socket {
        /// The socket and the call, for instance `udp 192.0.2.1:443: sendmmsg`.
        what: String,
        /// The error that the kernel gave.
        source: io::Error,
    },
    /// The interface behind a socket has gone.
    #[error("interface {interface} (index {ifindex}) is gone; the kernel socket serves its addresses")]
    InterfaceGone {
        /// Name as it was at start.
        interface: String,
        /// Kernel index as it was at start.
        ifindex: u32,
    },
}

/// The error with the symbolic name that manuals use.
pub(crate) fn describe(error: &io::Error) -> String {
    let name = match error.raw_os_error() {
        Some(libc::EPERM) => "EPERM",
        Some(libc::EACCES) => "EACCES",
        Some(libc::EBUSY) => "EBUSY",
        Some(libc::EINVAL) => "EINVAL",
        Some(libc::ENODEV) => "ENODEV",
        Some(libc::ENOBUFS) => "ENOBUFS",
        Some(libc::ENOMEM) => "ENOMEM",
        Some(libc::ENETDOWN) => "ENETDOWN",
        Some(libc::ENXIO) => "ENXIO",
        Some(libc::ENOENT) => "ENOENT",
        Some(libc::EADDRINUSE) => "EADDRINUSE",
        Some(libc::ECONNREFUSED) => "ECONNREFUSED",
        Some(libc::EOPNOTSUPP) => "EOPNOTSUPP",
        Some(libc::EAFNOSUPPORT) => "EAFNOSUPPORT",
        _ => return error.to_string(),
    };
    format!("{name}, {error}")
}
