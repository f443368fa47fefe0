//! The words of `[io]`.

use expressway_netio::Wait;
use expressway_netio::udp::SendMode;
use expressway_netio::wait::{BusyPoll, Spin};
use expressway_settings::named;

/// How packets move: `[io] mode` and `--io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// Whatever the host does best, chosen at start and reported; may step down.
    #[default]
    Auto,
    /// AF_XDP both ways, zero-copy or an error.
    ZeroCopy,
    /// AF_XDP both ways on a native XDP program, copy mode.
    Copy,
    /// AF_XDP receive, kernel GSO transmit.
    Hybrid,
    /// AF_XDP both ways on a generic XDP program (any driver, copy mode).
    Generic,
    /// Kernel UDP both ways.
    Udp,
}

impl IoMode {
    /// All modes by the name that the configuration and `--io` use.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("auto", Self::Auto),
        ("zerocopy", Self::ZeroCopy),
        ("copy", Self::Copy),
        ("hybrid", Self::Hybrid),
        ("generic", Self::Generic),
        ("udp", Self::Udp),
    ];
}

/// How the XDP program is attached: `[io] attach`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attach {
    /// In the driver, or in the stack for mode `generic`.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// In the stack: any driver.
    Generic,
    /// In the device, where a driver has that.
    Offload,
}

impl Attach {
    /// All ways by name.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("auto", Self::Auto),
        ("native", Self::Native),
        ("generic", Self::Generic),
        ("offload", Self::Offload),
    ];
}

/// How the kernel path sends: `[io] udp_send`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UdpSend {
    /// UDP generic segmentation offload, several messages a sendmmsg call.
    #[default]
    Gso,
    /// One datagram per message, several messages per call.
    Sendmmsg,
    /// One datagram a call.
    Sendmsg,
}

impl UdpSend {
    /// All ways by name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("gso", Self::Gso), ("sendmmsg", Self::Sendmmsg), ("sendmsg", Self::Sendmsg)];
}

impl From<UdpSend> for SendMode {
    fn from(send: UdpSend) -> Self {
        match send {
            UdpSend::Gso => Self::Gso,
            UdpSend::Sendmmsg => Self::Sendmmsg,
            UdpSend::Sendmsg => Self::Sendmsg,
        }
    }
}

/// Whether the XDP program shares its interface by a libxdp dispatcher: `[io] dispatcher`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dispatcher {
    /// When there is one already; else the program is attached by itself.
    #[default]
    Auto,
    /// Always: created if there is none, so that others can join.
    Always,
    /// Never: a dispatcher is a foreign program.
    Never,
}

impl Dispatcher {
    /// All by name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("always", Self::Always), ("never", Self::Never)];
}

/// How a worker waits for packets: `[io] wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitStrategy {
    /// Sleep until the device interrupts.
    #[default]
    Interrupt,
    /// Poll the device for a while before sleeping.
    BusyPoll,
    /// Never sleep.
    Spin,
}

impl WaitStrategy {
    /// All strategies by name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("interrupt", Self::Interrupt), ("busy-poll", Self::BusyPoll), ("spin", Self::Spin)];
}

impl From<WaitStrategy> for Wait {
    /// The strategy with its default times.
    fn from(strategy: WaitStrategy) -> Self {
        match strategy {
            WaitStrategy::Interrupt => Self::Interrupt,
            WaitStrategy::BusyPoll => Self::BusyPoll(BusyPoll::default()),
            WaitStrategy::Spin => Self::Spin(Spin::default()),
        }
    }
}

named!(IoMode);
named!(Attach);
named!(UdpSend);
named!(Dispatcher);
named!(WaitStrategy);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_print_as_they_parse() {
        for (name, mode) in IoMode::NAMES {
            assert_eq!(name.parse(), Ok(mode));
            assert_eq!(mode.to_string(), name);
        }
        assert!("zero-copy".parse::<IoMode>().unwrap_err().contains("zerocopy"));
    }
}
