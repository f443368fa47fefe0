//! Why an AF_XDP binding could not be opened, and what to do about it.

use std::io;

use super::config::BindMode;
use crate::readers::ReaderAccessError;
use crate::sys::describe;

/// Opening a binding failed. Every message names the object, the error and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A value of the configuration is out of its range.
    #[error("AF_XDP {field} = {value}: {must}")]
    Config {
        /// Field of [`super::XskConfig`] or [`super::UmemConfig`].
        field: &'static str,
        /// What it was set to.
        value: u64,
        /// What it must be.
        must: &'static str,
    },
    /// There is no such interface in the network namespace of the calling thread.
    #[error(
        "interface {interface}: {}; `ip link` lists the interfaces of this network namespace",
        describe(source)
    )]
    Interface {
        /// Name as configured.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A system call failed on the way to a bound socket.
    #[error("{interface} queue {queue}: AF_XDP {step}: {}{advice}", describe(source))]
    Socket {
        /// Interface.
        interface: String,
        /// Receive and transmit queue of the interface.
        queue: u32,
        /// The step that failed, for instance `bind in zero-copy mode`.
        step: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What to do, after a separator; empty if nothing is known.
        advice: &'static str,
    },
    /// A UMEM of its own could not be made.
    #[error(
        "AF_XDP UMEM of {frames} frames of {frame_size} bytes: {}; out of memory or file descriptors",
        describe(source)
    )]
    Memory {
        /// Frames asked for.
        frames: u32,
        /// Bytes of each.
        frame_size: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The process that binds sockets for this one did not.
    #[error("{interface} queue {queue}: {reason}")]
    Refused {
        /// Interface.
        interface: String,
        /// Queue.
        queue: u32,
        /// What it said, or that it is gone.
        reason: String,
        /// Asking again may help.
        transient: bool,
    },
    /// Readers could not be let in.
    #[error("{interface} queue {queue}: {source}")]
    Lend {
        /// Interface.
        interface: String,
        /// Queue.
        queue: u32,
        /// What is wrong.
        source: ReaderAccessError,
    },
    /// Bind succeeded, but not in the mode that was asked for.
    #[error(
        "{interface} queue {queue}: AF_XDP bind asked for {asked} and the kernel gave {obtained}: \
         set the mode to `auto` to accept that"
    )]
    Mode {
        /// Interface.
        interface: String,
        /// Queue.
        queue: u32,
        /// Mode asked for.
        asked: BindMode,
        /// Mode read back.
        obtained: super::ObtainedMode,
    },
}

impl OpenError {
    /// True if another AF_XDP socket, of this process or another, holds the queue.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Socket { source, .. } if source.raw_os_error() == Some(libc::EBUSY))
    }
}

/// A socket of a UMEM cannot send any more, or not now.
#[derive(Debug, thiserror::Error)]
#[error("{interface} queue {queue}: AF_XDP sending: {}{advice}", describe(source))]
pub struct SendError {
    /// Interface.
    pub interface: String,
    /// Queue.
    pub queue: u32,
    /// What the kernel said: ENETDOWN while the link is down, ENXIO when the interface is gone.
    pub source: io::Error,
    pub(super) advice: &'static str,
}

/// A step on the way to a bound socket, for [`OpenError::Socket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Memory,
    Register,
    Ring,
    Bind(BindMode),
    BindShared,
    Options,
    Wait,
    Map,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "socket",
            Self::Memory => "mapping the UMEM",
            Self::Register => "registering the UMEM",
            Self::Ring => "setting up the rings",
            Self::Bind(BindMode::ZeroCopy) => "bind in zero-copy mode",
            Self::Bind(BindMode::Copy) => "bind in copy mode",
            Self::Bind(BindMode::Auto) => "bind",
            Self::BindShared => "bind on a shared UMEM",
            Self::Options => "socket option",
            Self::Wait => "enabling busy polling",
            Self::Map => "inserting into the XSKMAP",
        }
    }

    fn advice(self, errno: i32, multi_buffer: bool) -> &'static str {
        match (self, errno) {
            (Self::Create, libc::EPERM | libc::EACCES) => "; needs CAP_NET_RAW: run as root or grant it",
            (Self::Create, libc::EAFNOSUPPORT) => "; this kernel is built without CONFIG_XDP_SOCKETS",
            (Self::Memory, _) => "; not enough memory: lower the ring sizes or the frame size",
            (Self::Register, libc::ENOBUFS | libc::ENOMEM | libc::EPERM) => {
                "; locked memory is limited: raise RLIMIT_MEMLOCK (`ulimit -l`) or lower the ring sizes"
            }
            (Self::Register, libc::EINVAL) => "; the frame size must not exceed the page size",
            (Self::Bind(BindMode::ZeroCopy), libc::EOPNOTSUPP | libc::EINVAL) if multi_buffer => {
                "; the driver does not support zero-copy for packets larger than a frame: lower the interface's MTU, \
                 enlarge the frames, or use copy mode"
            }
            (Self::Bind(BindMode::ZeroCopy), libc::EOPNOTSUPP) => {
                "; the driver does not support zero-copy AF_XDP: use mode copy or auto"
            }
            (Self::BindShared, libc::EOPNOTSUPP) => {
                "; the UMEM's first socket is in zero-copy mode, unsupported by this driver: bind the first in copy mode"
            }
            (Self::Bind(_) | Self::BindShared, libc::EBUSY) => {
                "; another AF_XDP socket holds this queue: stop that program or choose another queue"
            }
            (Self::BindShared, libc::EINVAL) => {
                "; the interface has no such queue (`ethtool -l` shows the current channels), or the kernel is older than 5.10"
            }
            (Self::Bind(_), libc::EINVAL) => {
                "; the interface has no such queue (`ethtool -l` shows the current channels), or the kernel is older than 6.6 \
                 and the MTU needs several frames a packet"
            }
            (Self::Bind(_) | Self::BindShared, libc::ENETDOWN) => {
                "; set the interface up (`ip link set ... up`)"
            }
            (Self::Bind(_) | Self::BindShared, libc::ENODEV) => "; the interface was removed",
            (Self::Map, libc::EPERM) => "; needs CAP_BPF and a map that is not frozen",
            (Self::Map, libc::E2BIG) => "; the queue number exceeds the map's entries",
            (Self::Map, libc::EINVAL | libc::EOPNOTSUPP | libc::EBADF) => "; the descriptor is not an XSKMAP",
            _ => "",
        }
    }

    /// The error of this step.
    pub(super) fn failed(
        self,
        interface: &str,
        queue: u32,
        multi_buffer: bool,
        source: io::Error,
    ) -> OpenError {
        let advice = self.advice(source.raw_os_error().unwrap_or(0), multi_buffer);
        OpenError::Socket { interface: interface.to_owned(), queue, step: self.name(), source, advice }
    }
}
