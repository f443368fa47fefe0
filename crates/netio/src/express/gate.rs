//! The unix socket at which readers of a UMEM arrive and leave, and what they are handed.
//!
//! A reader that connects gets a [`Hello`] with the UMEM and its own control memory ([`super::loan`]). Its
//! connection is its life: when it ends, however it ends, the kernel closes it and the receiver is told. What
//! this module does not do: it lends nothing ([`super::lender`]) and has no frames.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};
use rustix::net::{
    self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::param::page_size;

use super::config::ShareConfig;
use super::error::ShareError;
use super::loan::{BLOCK, Hello, Loan};
use super::mapped::MappedRing;
use super::mapping::memory_file;

/// Connections that wait to be accepted; more are refused by the kernel.
const BACKLOG: i32 = 32;

/// A new SOCK_SEQPACKET socket of the unix family, and the address of `path`.
pub(super) fn seqpacket(path: &Path, flags: SocketFlags) -> io::Result<(OwnedFd, SocketAddrUnix)> {
    let address = SocketAddrUnix::new(path)?;
    let flags = flags | SocketFlags::CLOEXEC;
    Ok((net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?, address))
}

/// The socket that listens, and what is handed to readers.
#[derive(Debug)]
pub(super) struct Gate {
    listener: OwnedFd,
    umem: OwnedFd,
    config: ShareConfig,
    /// Given up for a moment to turn a reader away when the process has no other descriptor left.
    spare: Option<OwnedFd>,
}

/// What [`Gate::accept`] found.
pub(super) enum Arrival {
    /// Nobody waits.
    Nobody,
    /// A reader that has connected.
    Reader(OwnedFd),
    /// A reader that was closed at once, for want of a descriptor.
    TurnedAway,
}

impl Gate {
    /// Listens for readers of `umem`.
    pub(super) fn open(config: ShareConfig, umem: OwnedFd) -> Result<Self, ShareError> {
        let failed = |step| {
            let path = config.path.clone();
            move |source: io::Error| {
                let advice = match source.raw_os_error() {
                    Some(libc::EADDRINUSE) => {
                        "; another process listens there, or it is no socket: choose another path"
                    }
                    Some(libc::ENOENT) => "; the directory must exist",
                    Some(libc::EACCES) => "; the directory must be writable by this user",
                    _ => "",
                };
                ShareError::Socket { path, step, source, advice }
            }
        };
        let (listener, address) = seqpacket(&config.path, SocketFlags::NONBLOCK).map_err(failed("socket"))?;
        remove_dead(&config.path);
        net::bind(&listener, &address).map_err(|errno| failed("bind")(errno.into()))?;
        // Nobody can connect before `listen`.
        let mode = std::fs::Permissions::from_mode(config.mode);
        let listening = std::fs::set_permissions(&config.path, mode)
            .map_err(failed("chmod"))
            .and_then(|()| net::listen(&listener, BACKLOG).map_err(|errno| failed("listen")(errno.into())));
        let spare = listener.try_clone().ok();
        let gate = Self { listener, umem, config, spare };
        listening.map(|()| gate)
    }

    /// What was configured.
    pub(super) fn config(&self) -> &ShareConfig {
        &self.config
    }

    /// A reader that has connected.
    pub(super) fn accept(&mut self) -> Arrival {
        match self.accept_one() {
            Ok(connection) => Arrival::Reader(connection),
            // Left in the backlog it would keep the listener readable, and its receiver awake, for ever.
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                self.spare = None;
                let arrival = self.accept_one().map_or(Arrival::Nobody, |_| Arrival::TurnedAway);
                self.spare = self.listener.try_clone().ok();
                arrival
            }
            // Of that one connection, which is gone again.
            Err(_) => Arrival::Nobody,
        }
    }

    fn accept_one(&self) -> rustix::io::Result<OwnedFd> {
        net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    /// Tells a reader why it is not admitted.
    pub(super) fn refuse(connection: &OwnedFd, status: u32) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // It may be gone already; then there is nobody to tell.
        let _ = net::send(connection, &Hello::refusal(status).to_bytes(), flags);
    }

    /// Makes a reader's control memory and hands it over with the UMEM. Returns the two rings.
    pub(super) fn admit(
        &self,
        connection: &OwnedFd,
        (frame_size, umem_length): (u32, u64),
    ) -> io::Result<(MappedRing<Loan>, MappedRing<u64>)> {
        let hello = Hello::new(umem_length, frame_size, self.config.quota, page_size() as u64);
        let control = memory_file(c"expressway-reader", hello.control_length as usize, MemfdFlags::empty())?;
        fcntl_add_seals(&control, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let loans = MappedRing::map(control.as_fd(), hello.loans, &BLOCK, hello.entries)?;
        let returns = MappedRing::map(control.as_fd(), hello.returns, &BLOCK, hello.entries)?;
        let descriptors = [self.umem.as_fd(), control.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        net::sendmsg(connection, &[IoSlice::new(&hello.to_bytes())], &mut ancillary, flags)?;
        Ok((loans, returns))
    }
}

/// Wakes a reader that sleeps.
pub(super) fn wake(connection: &OwnedFd) {
    // EAGAIN: as many wake-ups wait already. An end of the connection is noticed where it is waited for.
    let _ = net::send(connection, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// What a connection tells of its reader.
pub(super) enum Liveness {
    /// It is there.
    Alive,
    /// It left or died.
    Gone,
    /// It sent a message, which the protocol has none of.
    Breach,
}

/// Whether a reader is still there.
pub(super) fn liveness(connection: &OwnedFd) -> Liveness {
    let mut byte = [0u8; 1];
    match net::recv(connection, &mut byte[..], RecvFlags::DONTWAIT) {
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Liveness::Alive,
        Ok((0, _)) | Err(_) => Liveness::Gone,
        Ok(_) => Liveness::Breach,
    }
}

/// Removes the socket of a process that is gone: nobody listens there.
fn remove_dead(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|one| one.file_type().is_socket());
    let refused = || {
        let (socket, address) = seqpacket(path, SocketFlags::NONBLOCK).ok()?;
        Some(net::connect(&socket, &address) == Err(rustix::io::Errno::CONNREFUSED))
    };
    if is_socket && refused() == Some(true) {
        // Failing, it makes bind fail, which says so.
        let _ = std::fs::remove_file(path);
    }
}

impl AsFd for Gate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.config.path);
    }
}
