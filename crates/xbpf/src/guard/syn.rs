//! SYN cookies: the ports of TCP whose SYNs the program answers.

use super::quic::port_words;
use super::{Maps, monotonic, numbered, write};
use crate::error::Error;
use crate::skeleton::guard::types::guard_limit;

/// Listeners of this host whose SYNs are answered with cookies, as `net.ipv4.tcp_syncookies` says: 2, each of them; 1, when
/// the listener's queue is full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardSyn {
    /// Their ports; without any, nothing of this counts.
    pub ports: Vec<u16>,
    /// Drop packets with ACK that neither belong to a connection nor have a cookie, beyond 1000 a second, which the stack
    /// refuses.
    pub check_acks: bool,
}

impl GuardSyn {
    pub(super) fn fill(&self, maps: &Maps) -> Result<(), Error> {
        if self.ports.is_empty() {
            return Ok(());
        }
        write(&maps.tcp_port_map, "tcp_port_map", numbered(port_words(&self.ports).into_iter()))?;
        let now = monotonic() << guard_limit::GUARD_TIME_SHIFT.0;
        let bucket = [now.to_ne_bytes(), now.to_ne_bytes()].concat();
        write(&maps.stray_map, "stray_map", numbered(std::iter::once(bucket)))
    }
}
