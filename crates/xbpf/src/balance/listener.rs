//! Where services are reached, as the balancing program knows it.

use std::net::SocketAddr;
use std::time::Duration;

use crate::skeleton::balance::types::{balance_flag, balance_listener, balance_service};

use super::node::{family, words};

/// The protocol of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BalanceProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Where a service is reached, and how its flows are routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceListener {
    /// Number of the service, below [`super::Balance::SERVICES`].
    pub service: u32,
    /// Route by QUIC-LB connection ID where it can be read.
    pub quic_lb: bool,
    /// All flows of a source address go to one node.
    pub affinity: bool,
    /// Of two candidates, a new flow goes to the one with the fewer flows for its weight.
    pub least_connections: bool,
    /// Time without a packet after which a flow is over, in whole seconds.
    pub idle: Duration,
}

const KEY: usize = 20;
const VALUE: usize = 12;
const _: () = {
    assert!(size_of::<balance_listener>() == KEY && size_of::<balance_service>() == VALUE);
};

/// The longest time that `balance_service.idle` can say: two clocks' difference is signed there.
const IDLE: u32 = i32::MAX as u32;

impl BalanceListener {
    /// As `struct balance_service`.
    pub(super) fn bytes(&self) -> [u8; VALUE] {
        let flag = |set: bool, flag: balance_flag| if set { flag.0 } else { 0 };
        let flags = flag(self.quic_lb, balance_flag::BALANCE_QUIC_LB)
            | flag(self.affinity, balance_flag::BALANCE_AFFINITY)
            | flag(self.least_connections, balance_flag::BALANCE_LEAST);
        let idle = u32::try_from(self.idle.as_secs()).unwrap_or(u32::MAX).min(IDLE);
        let mut bytes = [0; VALUE];
        for (place, number) in bytes.chunks_exact_mut(4).zip([self.service, flags, idle]) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }
}

/// `struct balance_listener`.
pub(super) fn listener_key(address: SocketAddr, protocol: BalanceProtocol) -> [u8; KEY] {
    let mut key = [0; KEY];
    key[..16].copy_from_slice(&words(address.ip()));
    key[16..18].copy_from_slice(&address.port().to_be_bytes());
    key[18] = family(address.ip());
    key[19] = match protocol {
        BalanceProtocol::Tcp => libc::IPPROTO_TCP as u8,
        BalanceProtocol::Udp => libc::IPPROTO_UDP as u8,
    };
    key
}
