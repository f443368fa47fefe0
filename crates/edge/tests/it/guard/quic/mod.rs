//! QUIC: connection IDs, tokens and Retry packets.

mod ids;
mod packets;
mod proofs;
mod retry;

use expressway_wire::siphash::SipKey;
use expressway_xbpf::{GuardKey, GuardOptions, GuardQuic, GuardUnknown};

/// Where QUIC is served.
const PORT: u16 = 443;

fn key(fill: u8) -> [u8; 32] {
    std::array::from_fn(|at| at as u8 ^ fill)
}

fn quic(keys: &[u8]) -> GuardQuic {
    GuardQuic {
        ports: vec![PORT],
        keys: keys.iter().map(|fill| GuardKey(key(*fill))).collect(),
        unknown: GuardUnknown::Drop,
        retry: None,
    }
}

fn with(quic: GuardQuic) -> GuardOptions {
    GuardOptions { quic, ..GuardOptions::default() }
}

/// An ID as a server with the key issues them.
fn issued(fill: u8, number: u8) -> [u8; 16] {
    let mut id = [number; 16];
    id[0] |= 0xe0;
    let hash = SipKey::new(key(fill)[..16].try_into().unwrap()).hash(&id[..14]).to_le_bytes();
    id[14..].copy_from_slice(&hash[..2]);
    id
}
