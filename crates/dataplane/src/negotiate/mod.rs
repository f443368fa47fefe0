//! How packets move over a queue of an interface: which methods exist, what each costs, and which one is chosen.
//!
//! Receiving and sending are chosen separately. This module only decides, from facts and measurements that it is given;
//! `open` opens and tests.
//!
//! * [`plan`] says what is attached, bound and tried for a mode.
//! * [`Costs`] orders the methods of sending: by capability, or by measurement where the order is uncertain.
//! * [`StepDown`] is the record of a method that was not obtained.
//!
//! The measurement is taken on the device itself, because a veth or dummy in our own namespace would measure another
//! driver. It sends at most 512 UDP datagrams by each method, from the interface's own MAC to itself (no switch
//! forwards them), in four turns of at most 50 ms, and takes the CPU time of the sending thread. It is therefore only
//! used where that thread bears the cost: copy mode against GSO in software or sendmmsg. Zero-copy spends its CPU time
//! in interrupts; it and segmentation in the device are far enough from the rest to be ordered by capability. A
//! difference below 25 % counts as none. The cache's key is driver, firmware, kernel, processor, features, attach mode
//! and MTU. A confined server keeps no cache, because it must not replace files. A server with an agent does not
//! measure, because the interface may be in the agent's namespace.
//!
//! The order by capability follows cost. Sending, which is most of a gateway's work, is cheapest with GSO segmented in
//! the device, then AF_XDP zero-copy, then GSO segmented in software, then AF_XDP copy, then sendmmsg. Receiving is
//! cheaper with AF_XDP in either mode. On a gateway the gain from kernel UDP to hybrid is small, within the noise of
//! our machine for large bodies (BENCHMARKS.md). For short trains of small datagrams, GSO in software and AF_XDP copy
//! cost the same. They differ otherwise because GSO needs datagrams of one length, which is why quiche is patched to
//! fill packets.

mod cache;
mod costs;
mod step_down;

use std::fmt;

use expressway_netio::device::{DeviceFacts, TX_CHECKSUM, TX_CHECKSUM_V4, UDP_SEGMENTATION};
use expressway_netio::xsk::{BindMode, ObtainedMode};
use expressway_xbpf::AttachMode;

use crate::config::{Attach, IoMode, UdpSend};
pub(crate) use cache::{Cache, key};
pub use costs::Costs;
pub use step_down::StepDown;

/// How a queue receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// AF_XDP zero-copy.
    ZeroCopy,
    /// AF_XDP copy.
    Copy,
    /// Kernel sockets.
    Kernel,
}

impl From<ObtainedMode> for Receive {
    fn from(mode: ObtainedMode) -> Self {
        match mode {
            ObtainedMode::ZeroCopy => Self::ZeroCopy,
            ObtainedMode::Copy => Self::Copy,
        }
    }
}

impl fmt::Display for Receive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroCopy => "zerocopy",
            Self::Copy => "copy",
            Self::Kernel => "kernel",
        })
    }
}

/// How what would leave by a queue is sent, cheapest first (see ARCHITECTURE.md, "Choosing a mode").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transmit {
    /// GSO messages of kernel sockets, segmented by the device.
    GsoDevice,
    /// AF_XDP zero-copy.
    ZeroCopy,
    /// GSO messages of kernel sockets, segmented in software.
    GsoSoftware,
    /// AF_XDP copy.
    Copy,
    /// Kernel sockets, a datagram a message.
    Sendmmsg,
    /// Kernel sockets, a datagram a system call.
    Sendmsg,
}

impl Transmit {
    /// What the kernel's sockets do on this device. GSO needs checksums in the device before Linux 6.11
    /// (`udp_send_skb` in `net/ipv4/udp.c`).
    pub fn by_kernel(send: UdpSend, facts: &DeviceFacts, kernel: (u32, u32)) -> Self {
        match send {
            UdpSend::Sendmsg => Self::Sendmsg,
            UdpSend::Sendmmsg => Self::Sendmmsg,
            UdpSend::Gso if facts.has(UDP_SEGMENTATION) => Self::GsoDevice,
            UdpSend::Gso if facts.has(TX_CHECKSUM) || facts.has(TX_CHECKSUM_V4) || kernel >= (6, 11) => {
                Self::GsoSoftware
            }
            UdpSend::Gso => Self::Sendmmsg,
        }
    }

    /// What an AF_XDP socket bound in that mode does.
    pub fn by_socket(mode: ObtainedMode) -> Self {
        match mode {
            ObtainedMode::ZeroCopy => Self::ZeroCopy,
            ObtainedMode::Copy => Self::Copy,
        }
    }
}

impl fmt::Display for Transmit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GsoDevice => "gso-device",
            Self::ZeroCopy => "zerocopy",
            Self::GsoSoftware => "gso",
            Self::Copy => "copy",
            Self::Sendmmsg => "sendmmsg",
            Self::Sendmsg => "sendmsg",
        })
    }
}

/// The way of sending that a mode takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// The cheaper of the socket's and the kernel's.
    Cheapest,
    /// AF_XDP.
    Xsk,
    /// The kernel's sockets.
    Kernel,
}

/// What is attached, bound and tried for a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How the XDP program is attached.
    pub attach: AttachMode,
    /// How sockets are bound, best first; each next one is a step down.
    pub binds: &'static [BindMode],
    /// How datagrams leave.
    pub sending: Sending,
    /// Whether to step down; else the first failure is an error.
    pub steps_down: bool,
}

/// The plan of a mode; `None` for kernel UDP.
pub fn plan(mode: IoMode, attach: Attach) -> Option<Plan> {
    use BindMode::{Auto, Copy, ZeroCopy};
    let (binds, sending): (&'static [BindMode], Sending) = match mode {
        IoMode::Udp => return None,
        IoMode::Auto => (&[ZeroCopy, Copy], Sending::Cheapest),
        IoMode::ZeroCopy => (&[ZeroCopy], Sending::Xsk),
        IoMode::Copy | IoMode::Generic => (&[Copy], Sending::Xsk),
        IoMode::Hybrid => (&[Auto], Sending::Kernel),
    };
    let attach = match attach {
        Attach::Generic => AttachMode::Generic,
        Attach::Offload => AttachMode::Offload,
        Attach::Auto if mode == IoMode::Generic => AttachMode::Generic,
        Attach::Auto | Attach::Native => AttachMode::Native,
    };
    // Generic XDP works on the stack's buffers.
    let binds = if attach == AttachMode::Generic && mode == IoMode::Auto { &binds[1..] } else { binds };
    Some(Plan { attach, binds, sending, steps_down: mode == IoMode::Auto })
}

/// The mode that an interface obtained, as `ready` and the metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obtained {
    /// AF_XDP zero-copy both ways.
    ZeroCopy,
    /// AF_XDP both ways, somewhere in copy mode.
    Copy,
    /// AF_XDP receive, kernel transmit.
    Hybrid,
    /// As `Copy`, on a generic XDP program.
    Generic,
    /// Kernel sockets.
    Udp,
}

impl Obtained {
    /// The word for an interface whose queues receive and send so.
    pub fn of(attach: AttachMode, queues: &[(Receive, Transmit)]) -> Self {
        let uses_xsk = |transmit| matches!(transmit, Transmit::ZeroCopy | Transmit::Copy);
        if queues.iter().all(|(receive, _)| *receive == Receive::Kernel) {
            Self::Udp
        } else if attach == AttachMode::Generic {
            Self::Generic
        } else if !queues.iter().any(|(_, transmit)| uses_xsk(*transmit)) {
            Self::Hybrid
        } else if queues.iter().all(|(receive, _)| *receive == Receive::ZeroCopy) {
            Self::ZeroCopy
        } else {
            Self::Copy
        }
    }
}

impl fmt::Display for Obtained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroCopy => "zerocopy",
            Self::Copy => "copy",
            Self::Hybrid => "hybrid",
            Self::Generic => "generic",
            Self::Udp => "udp",
        })
    }
}

/// Major and minor number of the running kernel, and the whole release.
pub fn kernel() -> ((u32, u32), String) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    (version(&release), release)
}

/// The model of the processor, as far as it can be read; else the architecture.
pub(crate) fn processor() -> String {
    let architecture = || rustix::system::uname().machine().to_string_lossy().into_owned();
    model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()).unwrap_or_else(architecture)
}

/// The model in `/proc/cpuinfo`: its name on x86; the numbers of maker and part on Arm, where there is none
/// (`c_show` in `arch/*/kernel/cpu*.c`).
fn model(cpuinfo: &str) -> Option<String> {
    let field = |name: &str| {
        let pairs = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        pairs.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    let numbers = || {
        let all = ["CPU implementer", "CPU part", "CPU variant", "CPU revision"].map(field);
        all.into_iter().collect::<Option<Vec<_>>>().map(|numbers| numbers.join(" "))
    };
    field("model name").map(str::to_owned).or_else(numbers)
}

/// The first two numbers of a kernel release; 0 for what is none.
pub(crate) fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use expressway_netio::device::Feature;

    use super::*;

    fn facts(features: &[&str]) -> DeviceFacts {
        let feature = |name: &&str| Feature { name: (*name).to_owned(), active: true, fixed: false };
        DeviceFacts { features: features.iter().map(feature).collect(), ..DeviceFacts::default() }
    }

    #[test]
    fn explicit_modes_try_one_thing_and_never_step_down() {
        for (name, mode) in IoMode::NAMES {
            let Some(plan) = plan(mode, Attach::Auto) else {
                assert_eq!(mode, IoMode::Udp);
                continue;
            };
            assert_eq!(plan.steps_down, mode == IoMode::Auto, "{name}");
            assert_eq!(plan.binds.len(), if mode == IoMode::Auto { 2 } else { 1 }, "{name}");
            assert_eq!(plan.attach == AttachMode::Generic, mode == IoMode::Generic, "{name}");
        }
        assert_eq!(plan(IoMode::Copy, Attach::Offload).unwrap().attach, AttachMode::Offload);
        assert_eq!(plan(IoMode::Auto, Attach::Generic).unwrap().binds, [BindMode::Copy]);
    }

    #[test]
    fn the_kernels_way_follows_the_device() {
        let by_kernel = |send, features: &[&str], kernel| Transmit::by_kernel(send, &facts(features), kernel);
        assert_eq!(by_kernel(UdpSend::Gso, &[UDP_SEGMENTATION], (6, 1)), Transmit::GsoDevice);
        assert_eq!(by_kernel(UdpSend::Gso, &[TX_CHECKSUM], (6, 1)), Transmit::GsoSoftware);
        assert_eq!(by_kernel(UdpSend::Gso, &[], (6, 1)), Transmit::Sendmmsg);
        assert_eq!(by_kernel(UdpSend::Gso, &[], (6, 11)), Transmit::GsoSoftware);
        assert_eq!(by_kernel(UdpSend::Sendmsg, &[UDP_SEGMENTATION], (6, 11)), Transmit::Sendmsg);
    }

    #[test]
    fn an_interface_is_called_by_what_its_queues_do() {
        use Receive as R;
        use Transmit as T;
        let native = |queues: &[(R, T)]| Obtained::of(AttachMode::Native, queues);
        assert_eq!(native(&[(R::ZeroCopy, T::ZeroCopy)]), Obtained::ZeroCopy);
        assert_eq!(native(&[(R::ZeroCopy, T::GsoDevice)]), Obtained::Hybrid);
        assert_eq!(native(&[(R::ZeroCopy, T::ZeroCopy), (R::Copy, T::Copy)]), Obtained::Copy);
        assert_eq!(native(&[(R::Kernel, T::GsoSoftware)]), Obtained::Udp);
        assert_eq!(Obtained::of(AttachMode::Generic, &[(R::Copy, T::Copy)]), Obtained::Generic);
    }

    #[test]
    fn kernel_releases_are_read() {
        assert_eq!(version("6.18.0-rc2+deb13-amd64"), (6, 18));
        assert_eq!(version("5.4"), (5, 4));
        assert_eq!(version("unknown"), (0, 0));
    }

    #[test]
    fn the_processor_is_named_as_its_architecture_does() {
        let x86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7B13\nflags: fpu\n";
        assert_eq!(model(x86).as_deref(), Some("AMD EPYC 7B13"));
        let arm = "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n";
        assert_eq!(model(arm).as_deref(), Some("0x41 0xd0c 0x3 1"));
        assert_eq!(model("CPU implementer : 0x41\n"), None);
        assert!(!processor().is_empty());
    }
}
