//! How a burst is sent: by a binding and its path, or through the kernel socket and why.

use std::net::SocketAddr;

use super::XskIo;
use crate::io::{Flow, IoError, PacketIo, Sent};
use crate::route::{Path, Resolution};
use crate::xsk::binding::XskBinding;
use crate::xsk::config::HEADER_SPACE;
use crate::xsk::path_cache::Routes;

/// Why a burst takes the kernel socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    Neighbour,
    Route,
    Socket,
    /// The bindings of that interface leave sending to the kernel: nothing has gone wrong.
    Chosen,
}

impl<K: PacketIo, R: Routes> XskIo<K, R> {
    /// Which binding and path a burst takes, or why the kernel's.
    pub(super) fn plan(&mut self, flow: &Flow, segment: usize, hash: u64) -> Result<(usize, Path), Fallback> {
        // Which interface a link-local address means is the kernel socket's to know.
        if is_link_local(&flow.remote) {
            return Err(Fallback::Route);
        }
        let path = match self.routes.resolve(flow.local.ip(), flow.remote.ip()) {
            Resolution::Ready(path) => path,
            Resolution::Unresolved { .. } => return Err(Fallback::Neighbour),
            Resolution::NotDirect { .. } | Resolution::Unreachable => return Err(Fallback::Route),
        };
        let binding = self.choose(&path, hash)?;
        if segment > self.bindings[binding].max_payload().min(self.staging_room(binding)) {
            return Err(Fallback::Socket);
        }
        if path.stale && self.reminders.is_due(&path, self.now) {
            return Err(Fallback::Neighbour);
        }
        Ok((binding, path))
    }

    /// The largest payload that this worker can build for a binding: a frame's, or what the staging buffer holds.
    fn staging_room(&self, binding: usize) -> usize {
        self.staging.len().saturating_sub(HEADER_SPACE).max(self.bindings[binding].max_in_frame())
    }

    /// A binding of the path's interface that sends and is up; of several, always the same for a flow.
    fn choose(&self, path: &Path, hash: u64) -> Result<usize, Fallback> {
        let here = |binding: &&XskBinding| binding.ifindex() == path.ifindex && binding.transmits();
        let usable = self.bindings.iter().filter(here).filter(|binding| binding.is_up()).count();
        if usable == 0 {
            let mut own = self.bindings.iter().filter(|binding| binding.ifindex() == path.ifindex);
            return Err(match (self.bindings.iter().any(|binding| here(&binding)), own.next()) {
                (true, _) => Fallback::Socket,
                (false, Some(_)) => Fallback::Chosen,
                (false, None) => Fallback::Route,
            });
        }
        let chosen = (hash >> 32) as usize % usable;
        self.bindings
            .iter()
            .enumerate()
            .filter(|(_, binding)| here(binding) && binding.is_up())
            .nth(chosen)
            .map(|(index, _)| index)
            .ok_or(Fallback::Socket)
    }

    /// Sends a burst by the kernel socket.
    pub(super) fn fall_back(
        &mut self,
        reason: Fallback,
        flow: &Flow,
        segment: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<Sent, IoError> {
        let sent = self.kernel.transmit(flow, segment, fill)?;
        let counter = match reason {
            Fallback::Chosen => return Ok(sent),
            Fallback::Neighbour => &mut self.stats.tx_fallback_neighbour,
            Fallback::Route => &mut self.stats.tx_fallback_route,
            Fallback::Socket => &mut self.stats.tx_fallback_socket,
        };
        *counter += sent.packets as u64;
        Ok(sent)
    }
}

pub(super) fn is_link_local(address: &SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local())
}
