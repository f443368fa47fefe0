//! The multicast groups that rooms receive.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use expressway_dataplane::WorkerIo;
use expressway_netio::udp::group::{Keeper, Membership, own_groups_only};
use expressway_relay::{Config, service};

use crate::fail::Failure;

/// Memberships, each with a descriptor of the kernel socket that has it.
pub(super) struct Groups(Vec<(Keeper, OwnedFd)>);

impl Groups {
    /// Joins every room's groups, on the socket of the worker that the room belongs to: the kernel gives a datagram to all sockets
    /// that are members.
    pub(super) fn join(config: &Config, ios: &[WorkerIo]) -> Result<Self, Failure> {
        let listen = config.listen();
        let mut kept = Vec::new();
        for (index, room) in config.rooms.iter().enumerate() {
            for address in room.listen().into_iter().filter(|address| address.ip().is_multicast()) {
                let failed = |error: std::io::Error| {
                    Failure::run_time(format!("room `{}`: joining {}: {error}", room.name, address.ip()))
                };
                for (worker, io) in ios.iter().enumerate() {
                    let Some(socket) = socket(io, &listen, address) else { continue };
                    if worker != service::owner(index, ios.len()) {
                        own_groups_only(socket.as_fd(), address.ip()).map_err(failed)?;
                        continue;
                    }
                    let socket = socket.try_clone_to_owned().map_err(failed)?;
                    let (interface, sources) = (room.interface.clone(), room.sources.clone());
                    let membership = Membership { group: address.ip(), interface, sources };
                    kept.push((Keeper::join(membership, socket.as_fd()).map_err(failed)?, socket));
                }
            }
        }
        Ok(Self(kept))
    }

    /// Joins again what was lost with an interface.
    pub(super) fn look_after(&mut self) {
        for (keeper, socket) in &mut self.0 {
            keeper.look_after(socket.as_fd());
        }
    }
}

/// The kernel socket of a worker that is bound to that address.
fn socket<'a>(
    io: &'a WorkerIo,
    listen: &[SocketAddr],
    address: SocketAddr,
) -> Option<std::os::fd::BorrowedFd<'a>> {
    io.kernel().socket(listen.iter().position(|one| *one == address)?)
}
