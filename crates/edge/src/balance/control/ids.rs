//! The nodes named by server IDs in QUIC connection IDs.

use std::collections::HashMap;

use expressway_xbpf::Balance;

use super::Error;
use super::member::Active;
use crate::balance::config::Route;

/// Writes the server IDs of a service, and how they are read.
pub(super) fn publish(program: &Balance, active: &Active) -> Result<(), Error> {
    let service = active.slot.number;
    let by_id = active.service.route == Route::QuicLb;
    let configs = if by_id { active.service.quic.as_slice() } else { &[] };
    let mut ids = HashMap::new();
    for config in configs {
        for member in &active.members {
            ids.insert((config.config, member.node.server_id.clone()), member.slot.number);
        }
    }
    for (config, id) in program.server_ids(service)? {
        if !ids.contains_key(&(config, id.clone())) {
            program.remove_server_id(service, config, &id)?;
        }
    }
    for ((config, id), slot) in ids {
        program.set_server_id(service, config, &id, slot)?;
    }
    for codepoint in 0..Balance::QUIC_CONFIGS {
        let config = configs.iter().find(|config| config.config == codepoint);
        program.set_quic(service, codepoint, config.map(|config| &config.quic))?;
    }
    Ok(())
}

/// Leaves nothing of a service in the program but its counters.
pub(super) fn forget(program: &Balance, service: u32) -> Result<(), Error> {
    program.set_ring(service, &[])?;
    for config in 0..Balance::QUIC_CONFIGS {
        program.set_quic(service, config, None)?;
    }
    for (config, id) in program.server_ids(service)? {
        program.remove_server_id(service, config, &id)?;
    }
    Ok(())
}
