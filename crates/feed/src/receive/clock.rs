//! The clocks of timestamps.

use expressway_netio::io::TimeSource;
use rustix::time::{ClockId, clock_gettime};

/// A clock of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// CLOCK_TAI: what PTP keeps NICs to, and what the XDP program reads.
    #[default]
    Tai,
    /// CLOCK_REALTIME: what the kernel stamps by, and probes.
    Realtime,
}

impl Clock {
    /// The clock to compare a timestamp with; that of a NIC is synchronised to `nic` by someone (`phc2sys`).
    pub(super) fn of(source: TimeSource, nic: Self) -> Self {
        match source {
            TimeSource::Device => nic,
            TimeSource::Program => Self::Tai,
            TimeSource::Kernel => Self::Realtime,
        }
    }

    /// Nanoseconds now; 0 before 1970.
    #[inline]
    pub fn now(self) -> u64 {
        let now = clock_gettime(match self {
            Self::Tai => ClockId::Tai,
            Self::Realtime => ClockId::Realtime,
        });
        let part = |value: i64| u64::try_from(value).unwrap_or(0);
        part(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(now.tv_nsec))
    }
}
