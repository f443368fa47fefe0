//! A node as the balancing program knows it.

use std::net::IpAddr;

use crate::skeleton::balance::types::{balance_method, balance_node, balance_state};

/// Whether a node gets flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceState {
    /// New and old ones.
    Up,
    /// Those that it has.
    Draining,
    /// None.
    Down,
    /// None: the slot is free.
    Absent,
}

/// How packets are brought to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceMethod {
    /// In a frame to the node's MAC address.
    L2,
    /// IP in IP.
    Ipip,
    /// Generic UDP encapsulation, variant 1.
    Gue,
}

/// A node of one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceNode {
    /// Outer destination in a tunnel.
    pub address: IpAddr,
    /// Outer source, of the same family.
    pub source: IpAddr,
    /// Index of the interface that leads there; 0 while it, or the MAC address, is not known.
    pub ifindex: u32,
    /// Of the next hop.
    pub destination_mac: [u8; 6],
    /// Of the interface.
    pub source_mac: [u8; 6],
    /// Another one than the slot's last node had.
    pub generation: u32,
    /// Of the way there, in bytes of IP packet.
    pub mtu: u32,
    /// Established flows for its weight, in units of `step`.
    pub load: u64,
    /// What one flow adds to `load`.
    pub step: u32,
    /// See [`BalanceMethod`].
    pub method: BalanceMethod,
    /// See [`BalanceState`].
    pub state: BalanceState,
}

const NODE_BYTES: usize = 72;
const LOAD: usize = std::mem::offset_of!(balance_node, load);
const NUMBERS: usize = std::mem::offset_of!(balance_node, ifindex);
const MACS: usize = std::mem::offset_of!(balance_node, destination_mac);
const _: () = {
    assert!(size_of::<balance_node>() == NODE_BYTES);
    assert!(LOAD == 32 && NUMBERS == 40 && MACS == NUMBERS + 16);
    assert!(std::mem::offset_of!(balance_node, state) == 70);
};

/// An address as the shared header has it.
pub(super) fn words(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

pub(super) fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { 4 } else { 6 }
}

impl BalanceNode {
    pub(super) fn bytes(&self) -> [u8; NODE_BYTES] {
        let method = match self.method {
            BalanceMethod::L2 => balance_method::BALANCE_L2,
            BalanceMethod::Ipip => balance_method::BALANCE_IPIP,
            BalanceMethod::Gue => balance_method::BALANCE_GUE,
        };
        let state = match self.state {
            BalanceState::Up => balance_state::BALANCE_UP,
            BalanceState::Draining => balance_state::BALANCE_DRAINING,
            BalanceState::Down => balance_state::BALANCE_DOWN,
            BalanceState::Absent => balance_state::BALANCE_ABSENT,
        };
        let mut bytes = [0; NODE_BYTES];
        bytes[..16].copy_from_slice(&words(self.address));
        bytes[16..32].copy_from_slice(&words(self.source));
        bytes[LOAD..NUMBERS].copy_from_slice(&self.load.to_ne_bytes());
        let numbers = [self.ifindex, self.generation, self.mtu, self.step];
        for (place, number) in bytes[NUMBERS..MACS].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        bytes[MACS..MACS + 6].copy_from_slice(&self.destination_mac);
        bytes[MACS + 6..MACS + 12].copy_from_slice(&self.source_mac);
        bytes[MACS + 12..MACS + 15].copy_from_slice(&[family(self.address), method.0 as u8, state.0 as u8]);
        bytes
    }
}
