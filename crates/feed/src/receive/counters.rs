//! The counters of a receiver.

use expressway_netio::io::TimeSource;
use expressway_netio::{Datagram, stats};

stats::counters! {
    /// Counters of one receiver since it was made. Those of packet I/O, losses among them, are apart
    /// ([`expressway_netio::IoStats`]).
    pub struct Counters {
        /// Datagrams handed to the handler.
        pub datagrams: u64,
        /// Their payload bytes.
        pub bytes: u64,
        /// Times that datagrams came together.
        pub batches: u64,
        /// Of the datagrams, those stamped by the NIC.
        pub stamped_nic: u64,
        /// Of the datagrams, those stamped by the XDP program.
        pub stamped_xdp: u64,
        /// Of the datagrams, those stamped by the kernel.
        pub stamped_kernel: u64,
        /// Datagrams from other sources than those wanted.
        pub dropped_source: u64,
        /// Datagrams that came together with the last one wanted, behind it.
        pub dropped_surplus: u64,
        /// Datagrams sent back.
        pub echoed: u64,
        /// Datagrams that could not be sent back: no room, or longer than what may be sent.
        pub dropped_echo: u64,
    }
}

impl Counters {
    /// Counts a datagram that the handler gets.
    #[inline]
    pub(super) fn count(&mut self, datagram: &Datagram<'_>) {
        self.datagrams += 1;
        self.bytes += datagram.payload.len() as u64;
        match datagram.hints.timestamp.map(|stamp| stamp.source) {
            Some(TimeSource::Device) => self.stamped_nic += 1,
            Some(TimeSource::Program) => self.stamped_xdp += 1,
            Some(TimeSource::Kernel) => self.stamped_kernel += 1,
            None => {}
        }
    }

    /// Datagrams that nobody stamped.
    pub fn unstamped(&self) -> u64 {
        self.datagrams - self.stamped_nic - self.stamped_xdp - self.stamped_kernel
    }
}
