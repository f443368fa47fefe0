//! I/O modes as steps to try, and what each is made of.

use std::fmt;

use expressway_gateway::config::IoMode;
use expressway_netio::express::{BindMode, TransmitVia};
use expressway_xbpf::AttachMode;

/// One way to move packets over an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// How the XDP program is attached.
    pub(crate) attach: AttachMode,
    /// How the sockets are bound.
    pub(crate) bind: BindMode,
    /// Which way datagrams leave.
    pub(crate) transmit: TransmitVia,
}

/// The mode that an interface obtained, as `ready` and the metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obtained {
    ZeroCopy,
    Copy,
    Hybrid,
    Generic,
    Udp,
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

impl Step {
    /// What is reported when this step worked and the kernel gave `zero_copy`.
    pub(crate) fn obtained(self, zero_copy: bool) -> Obtained {
        match (self.attach, self.transmit) {
            (AttachMode::Generic, _) => Obtained::Generic,
            (AttachMode::Native, TransmitVia::Kernel) => Obtained::Hybrid,
            (AttachMode::Native, TransmitVia::Express) if zero_copy => Obtained::ZeroCopy,
            (AttachMode::Native, TransmitVia::Express) => Obtained::Copy,
        }
    }
}

/// The steps to try for a mode, best first; kernel UDP stands behind the last one of `auto`, and behind no
/// other. `device_segments` says whether the interface segments UDP itself (`tx-udp-segmentation`).
///
/// The order for `auto` follows the cost of transmission: GSO with segmentation in the device, AF_XDP
/// zero-copy, GSO in software, AF_XDP copy. Receiving is cheaper by AF_XDP in either mode, so without
/// zero-copy `auto` is the hybrid: AF_XDP receive, GSO transmit.
pub(crate) fn steps(mode: IoMode, device_segments: bool) -> Vec<Step> {
    let native = |bind, transmit| Step { attach: AttachMode::Native, bind, transmit };
    match mode {
        IoMode::Udp => Vec::new(),
        IoMode::ZeroCopy => vec![native(BindMode::ZeroCopy, TransmitVia::Express)],
        IoMode::Copy => vec![native(BindMode::Copy, TransmitVia::Express)],
        IoMode::Hybrid => vec![native(BindMode::Auto, TransmitVia::Kernel)],
        IoMode::Generic => {
            vec![Step { attach: AttachMode::Generic, bind: BindMode::Copy, transmit: TransmitVia::Express }]
        }
        IoMode::Auto if device_segments => vec![native(BindMode::Auto, TransmitVia::Kernel)],
        IoMode::Auto => vec![
            native(BindMode::ZeroCopy, TransmitVia::Express),
            native(BindMode::Copy, TransmitVia::Kernel),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explicit_modes_have_one_step_and_say_what_they_are() {
        for (mode, zero_copy, obtained) in [
            (IoMode::ZeroCopy, true, Obtained::ZeroCopy),
            (IoMode::Copy, false, Obtained::Copy),
            (IoMode::Hybrid, false, Obtained::Hybrid),
            (IoMode::Hybrid, true, Obtained::Hybrid),
            (IoMode::Generic, false, Obtained::Generic),
        ] {
            let steps = steps(mode, true);
            assert_eq!(steps.len(), 1);
            assert_eq!(steps[0].obtained(zero_copy), obtained);
        }
        assert!(steps(IoMode::Udp, false).is_empty());
    }

    #[test]
    fn auto_sends_by_the_device_where_it_segments() {
        assert!(steps(IoMode::Auto, true).iter().all(|step| step.transmit == TransmitVia::Kernel));
        let [first, second] = steps(IoMode::Auto, false)[..] else { panic!("two steps") };
        assert_eq!((first.bind, first.transmit), (BindMode::ZeroCopy, TransmitVia::Express));
        assert_eq!(second.obtained(false), Obtained::Hybrid);
    }
}
