//! Which way a burst takes: a port and its path, or the kernel socket and why.

use std::net::SocketAddr;

use super::ExpressIo;
use crate::express::config::HEADER_SPACE;
use crate::express::path_cache::Routes;
use crate::express::port::Port;
use crate::io::{Flow, IoError, PacketIo, Sent};
use crate::route::{Path, Resolution};

/// Why a burst takes the kernel socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    Neighbour,
    Route,
    Socket,
    /// The ports of that interface leave sending to the kernel: nothing has gone wrong.
    Chosen,
}

impl<K: PacketIo, R: Routes> ExpressIo<K, R> {
    /// Which port and path a burst takes, or why the kernel's.
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
        let port = self.choose(&path, hash)?;
        if segment > self.ports[port].max_payload().min(self.staging_room(port)) {
            return Err(Fallback::Socket);
        }
        if path.stale && self.reminders.is_due(&path, self.now) {
            return Err(Fallback::Neighbour);
        }
        Ok((port, path))
    }

    /// The largest payload that this worker can build for a port: a frame's, or what the staging buffer holds.
    fn staging_room(&self, port: usize) -> usize {
        self.staging.len().saturating_sub(HEADER_SPACE).max(self.ports[port].max_in_frame())
    }

    /// A port of the path's interface that sends and is up; of several, always the same for a flow.
    fn choose(&self, path: &Path, hash: u64) -> Result<usize, Fallback> {
        let here = |port: &&Port| port.ifindex() == path.ifindex && port.transmits();
        let usable = self.ports.iter().filter(here).filter(|port| port.is_up()).count();
        if usable == 0 {
            let mut own = self.ports.iter().filter(|port| port.ifindex() == path.ifindex);
            return Err(match (self.ports.iter().any(|port| here(&port)), own.next()) {
                (true, _) => Fallback::Socket,
                (false, Some(_)) => Fallback::Chosen,
                (false, None) => Fallback::Route,
            });
        }
        let chosen = (hash >> 32) as usize % usable;
        self.ports
            .iter()
            .enumerate()
            .filter(|(_, port)| here(port) && port.is_up())
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
