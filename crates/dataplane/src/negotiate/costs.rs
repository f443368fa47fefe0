//! The cost of each method of sending.

use expressway_netio::xsk::Calibration;
use serde::{Deserialize, Serialize};

use super::Transmit;

/// Measured costs that differ by less are as good as equal: the order by capability stands. Runs on one machine
/// differ by about that much.
const MARGIN_PERCENT: u64 = 25;

/// Nanoseconds of CPU a datagram, as far as measured on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// AF_XDP copy.
    pub copy: Option<u64>,
    /// GSO in software.
    pub gso: Option<u64>,
    /// A datagram a message.
    pub single: Option<u64>,
}

impl From<Calibration> for Costs {
    fn from(measured: Calibration) -> Self {
        Self { copy: Some(measured.xsk), gso: measured.gso, single: measured.single }
    }
}

impl Costs {
    /// Whether the order of the two is uncertain enough to be measured: AF_XDP copy against what kernel sockets
    /// do in software. Segmentation in the device and zero-copy are far from everything else, and what zero-copy
    /// costs is spent in interrupts where the sender does not see it.
    pub fn are_wanted(socket: Transmit, kernel: Transmit) -> bool {
        socket == Transmit::Copy && matches!(kernel, Transmit::GsoSoftware | Transmit::Sendmmsg)
    }

    /// True if the socket's way is cheaper than the kernel's.
    pub fn prefer_socket(&self, socket: Transmit, kernel: Transmit) -> bool {
        match (self.of(socket), self.of(kernel)) {
            (Some(socket), Some(kernel)) if apart(socket, kernel) => socket < kernel,
            _ => socket < kernel,
        }
    }

    fn of(&self, way: Transmit) -> Option<u64> {
        match way {
            Transmit::Copy => self.copy,
            Transmit::GsoSoftware => self.gso,
            Transmit::Sendmmsg => self.single,
            Transmit::GsoDevice | Transmit::ZeroCopy | Transmit::Sendmsg => None,
        }
    }
}

fn apart(one: u64, other: u64) -> bool {
    one.abs_diff(other).saturating_mul(100) >= one.min(other).saturating_mul(MARGIN_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmeasured_ways_are_ordered_by_capability() {
        let costs = Costs::default();
        assert!(costs.prefer_socket(Transmit::ZeroCopy, Transmit::GsoSoftware));
        assert!(!costs.prefer_socket(Transmit::ZeroCopy, Transmit::GsoDevice));
        assert!(!costs.prefer_socket(Transmit::Copy, Transmit::GsoSoftware));
        assert!(costs.prefer_socket(Transmit::Copy, Transmit::Sendmmsg));
    }

    #[test]
    fn a_clear_measurement_overrules_the_order_and_a_close_one_does_not() {
        let costs = |copy, gso| Costs { copy: Some(copy), gso: Some(gso), single: Some(900) };
        assert!(costs(400, 500).prefer_socket(Transmit::Copy, Transmit::GsoSoftware));
        assert!(!costs(401, 500).prefer_socket(Transmit::Copy, Transmit::GsoSoftware));
        assert!(!costs(2000, 500).prefer_socket(Transmit::Copy, Transmit::Sendmmsg));
        // Never measured, always by capability.
        assert!(costs(1, 9000).prefer_socket(Transmit::ZeroCopy, Transmit::GsoSoftware));
        assert!(!costs(1, 9000).prefer_socket(Transmit::Copy, Transmit::GsoDevice));
    }

    #[test]
    fn only_what_is_uncertain_is_measured() {
        assert!(Costs::are_wanted(Transmit::Copy, Transmit::GsoSoftware));
        assert!(Costs::are_wanted(Transmit::Copy, Transmit::Sendmmsg));
        assert!(!Costs::are_wanted(Transmit::Copy, Transmit::GsoDevice));
        assert!(!Costs::are_wanted(Transmit::ZeroCopy, Transmit::GsoSoftware));
    }
}
