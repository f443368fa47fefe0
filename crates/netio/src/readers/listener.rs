//! The unix socket to which readers connect, and what is passed over their connections.
//!
//! A connection lasts as long as its reader: whenever the reader ends, the kernel closes the connection and notifies
//! the other side. This module knows no messages and no memory.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::ReaderAccessError;
use crate::unix;

/// Connections that wait to be accepted; more are refused by the kernel.
const BACKLOG: i32 = 32;

/// A new SOCK_SEQPACKET socket of the unix family, and the address of `path`.
pub(crate) fn seqpacket(path: &Path, flags: SocketFlags) -> io::Result<(OwnedFd, SocketAddrUnix)> {
    let address = SocketAddrUnix::new(path)?;
    let flags = flags | SocketFlags::CLOEXEC;
    Ok((net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?, address))
}

/// A socket that listens for readers. Its path goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: OwnedFd,
    path: PathBuf,
    /// Given up for a moment to turn a reader away when the process has no other descriptor left.
    spare: Option<OwnedFd>,
}

/// What [`Listener::accept`] found.
pub(crate) enum Arrival {
    /// Nobody waits.
    Nobody,
    /// A reader that has connected.
    Reader(OwnedFd),
    /// A reader that was closed at once, for want of a descriptor.
    TurnedAway,
}

impl Listener {
    /// Listens at `path`, a socket with the permissions `mode`. One that a dead process left there is replaced.
    pub(crate) fn open(path: &Path, mode: u32) -> Result<Self, ReaderAccessError> {
        let failed = |step| {
            let path = path.to_owned();
            move |source: io::Error| {
                let advice = match source.raw_os_error() {
                    Some(libc::EADDRINUSE) => {
                        "; another process is listening there, or it is not a socket: choose another path"
                    }
                    Some(libc::ENOENT) => "; the directory must exist",
                    Some(libc::EACCES) => "; the directory must be writable by this user",
                    _ => "",
                };
                ReaderAccessError::Socket { path, step, source, advice }
            }
        };
        let (listener, address) = seqpacket(path, SocketFlags::NONBLOCK).map_err(failed("socket"))?;
        // What is not removed makes bind fail, which says so.
        let _ = unix::remove_stale(path, SocketType::SEQPACKET);
        net::bind(&listener, &address).map_err(|errno| failed("bind")(errno.into()))?;
        // Nobody can connect before `listen`.
        let mode = std::fs::Permissions::from_mode(mode);
        let listening = std::fs::set_permissions(path, mode)
            .map_err(failed("chmod"))
            .and_then(|()| net::listen(&listener, BACKLOG).map_err(|errno| failed("listen")(errno.into())));
        let spare = listener.try_clone().ok();
        let open = Self { listener, path: path.to_owned(), spare };
        listening.map(|()| open)
    }

    /// A reader that has connected.
    pub(crate) fn accept(&mut self) -> Arrival {
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
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Sends a message, with two descriptors or without. A reader that is gone is no error to whoever sends a refusal.
pub(crate) fn greet(
    connection: impl AsFd,
    message: &[u8],
    descriptors: Option<[BorrowedFd<'_>; 2]>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptors) = &descriptors {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    net::sendmsg(connection, &[IoSlice::new(message)], &mut ancillary, flags)?;
    Ok(())
}

/// The first message of a connection, of at most `length` bytes, and the descriptors that came with it. Empty if
/// it is longer.
pub(crate) fn receive_greeting(
    connection: &OwnedFd,
    length: usize,
) -> io::Result<(Vec<u8>, [Option<OwnedFd>; 2])> {
    let mut message = vec![0u8; length];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut message)];
    let received = net::recvmsg(connection, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = [None, None];
    for one in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = one {
            fds.zip(&mut descriptors).for_each(|(fd, place)| *place = Some(fd));
        }
    }
    let length = if received.flags.contains(ReturnFlags::TRUNC) { 0 } else { received.bytes };
    message.truncate(length);
    Ok((message, descriptors))
}

/// Wakes a reader that sleeps.
pub(crate) fn wake(connection: &OwnedFd) {
    // EAGAIN: as many wake-ups wait already. An end of the connection is noticed where it is waited for.
    let _ = net::send(connection, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// What a connection tells of its reader.
pub(crate) enum Liveness {
    /// It is there.
    Alive,
    /// It left or died.
    Gone,
    /// It sent a message, which the protocol has none of.
    Breach,
}

/// Whether a reader is still there.
pub(crate) fn liveness(connection: &OwnedFd) -> Liveness {
    let mut byte = [0u8; 1];
    match net::recv(connection, &mut byte[..], RecvFlags::DONTWAIT) {
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Liveness::Alive,
        Ok((0, _)) | Err(_) => Liveness::Gone,
        Ok(_) => Liveness::Breach,
    }
}
