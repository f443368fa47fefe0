//! The flags of records that `expressway recv --broadcast` publishes: what a record is, and who timestamped it.
//!
//! The ring itself gives flags no meaning; other writers may define their own. `include/expressway/broadcast.h` names
//! them for C.

use crate::io::TimeSource;

/// A message out of order: its gap had been announced.
pub const LATE: u16 = 1;
/// A gap: the data is the number of missing messages, 8 bytes in the machine's order, from the record's number on.
pub const GAP: u16 = 2;
/// A new session: the data is its name, 10 bytes.
pub const SESSION: u16 = 4;
/// Messages are numbered anew from the record's number on.
pub const RESET: u16 = 8;
/// The session is over; the number is that behind its last message.
pub const END: u16 = 16;
/// The time stamp is the device's, by its own clock.
pub const STAMP_NIC: u16 = 32;
/// The time stamp is the XDP program's, by CLOCK_TAI.
pub const STAMP_XDP: u16 = 64;
/// The time stamp is the kernel's, by CLOCK_REALTIME.
pub const STAMP_KERNEL: u16 = 128;

/// The flag that says so of a time stamp.
#[must_use]
pub const fn of_source(source: TimeSource) -> u16 {
    match source {
        TimeSource::Device => STAMP_NIC,
        TimeSource::Program => STAMP_XDP,
        TimeSource::Kernel => STAMP_KERNEL,
    }
}

/// Who stamped the record with these flags; `None`: nobody did, and its time stamp is 0.
#[must_use]
pub const fn time_source(flags: u16) -> Option<TimeSource> {
    match flags & (STAMP_NIC | STAMP_XDP | STAMP_KERNEL) {
        STAMP_NIC => Some(TimeSource::Device),
        STAMP_XDP => Some(TimeSource::Program),
        STAMP_KERNEL => Some(TimeSource::Kernel),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_tell_who_stamped_whatever_else_they_say() {
        for source in [TimeSource::Device, TimeSource::Program, TimeSource::Kernel] {
            assert_eq!(time_source(of_source(source) | LATE), Some(source));
        }
        assert_eq!(time_source(LATE | GAP | SESSION | RESET | END), None);
        assert_eq!(time_source(STAMP_NIC | STAMP_XDP), None, "nobody says so");
    }
}
