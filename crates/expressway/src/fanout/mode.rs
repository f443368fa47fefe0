//! Who forwards: this process or the kernel.

use expressway_netio::route::RouteMirror;

use crate::args::{Fanout as Arguments, FanoutMode};
use crate::fail::Failure;

/// Who forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// This process.
    User,
    /// BPF programs.
    Kernel,
}

impl Mode {
    /// The word for ready lines and statistics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Kernel => "kernel",
        }
    }

    /// That of a running fan-out.
    pub(super) fn of(in_kernel: bool) -> Self {
        if in_kernel { Self::Kernel } else { Self::User }
    }
}

/// What was asked for; `auto` says why it chose.
///
/// The cost of a delivery is the send and the ACKs that it causes, wherever it is made. The kernel's way makes one for
/// each datagram and subscriber, and a clone and a UDP receive besides; this process makes one for all that has come since
/// the last. What the kernel's way saves is waking a process, once a datagram: that shows with one subscriber, and is lost
/// among the sends of eight. Which is cheaper thus depends on how many will subscribe and how the feed comes, which no
/// measurement at start can know; `expressway bench` has both beside each other.
pub(super) fn choose(asked: FanoutMode) -> Mode {
    match asked {
        FanoutMode::User => Mode::User,
        FanoutMode::Kernel => Mode::Kernel,
        FanoutMode::Auto => {
            tracing::info!(
                "mode user: it sends what has come together by one send, while the kernel sends each datagram by \
                 itself, which saves with a single subscriber only; `expressway bench fanout-even fanout-bursts` \
                 compares them on this machine"
            );
            Mode::User
        }
    }
}

/// The interface that the kernel takes the feed at: the one named, or for a unicast feed the one that has the address.
pub(super) fn interface(arguments: &Arguments) -> Result<Option<String>, Failure> {
    let address = arguments.udp.ip();
    if arguments.interface.is_some() || address.is_multicast() || address.is_unspecified() {
        return Ok(arguments.interface.clone());
    }
    let mirror = RouteMirror::start().map_err(Failure::run_time)?;
    Ok(mirror.snapshot().interface_of(address).map(|link| link.name.clone()))
}
