//! A reader: packets that another process received, read where they lie.
//!
//! The receiver ([`super::SharedUmem`]) lends packets; a reader sees them in a read-only mapping of the
//! receiver's UMEM and gives each back when it is done. It needs no privilege but access to the receiver's
//! socket. `include/expressway/umem.h` is the same for C.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketFlags};

use super::error::ReaderError;
use super::gate::seqpacket;
use super::loan::{self, BLOCK, Hello, Loan};
use super::mapped::MappedRing;
use super::ring::{Consumer, Producer};
use super::view::View;

/// A packet in the receiver's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentPacket<'a> {
    /// Its bytes, from the Ethernet header on.
    pub data: &'a [u8],
    /// The receiver's time of it, as given to [`super::Received::lend`].
    pub timestamp: u64,
    /// Number of the packet among those meant for this reader. A gap is packets that were dropped because the
    /// reader held its whole quota.
    pub sequence: u64,
    /// What the receiver says of it.
    pub flags: u16,
    /// The receiver's socket that it came in on, numbered from 0 in the order of binding.
    pub source: u16,
}

/// A connection to a receiver.
///
/// ```no_run
/// use expressway_netio::express::UmemReader;
///
/// # fn main() -> Result<(), expressway_netio::express::ReaderError> {
/// let mut reader = UmemReader::connect("/run/feed/umem.sock")?;
/// loop {
///     reader.receive(64, |packet| println!("{} {} bytes", packet.sequence, packet.data.len()))?;
///     reader.wait(None)?;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct UmemReader {
    loans: Consumer<MappedRing<Loan>>,
    returns: Producer<MappedRing<u64>>,
    view: View,
    connection: OwnedFd,
    path: PathBuf,
    quota: u32,
}

impl UmemReader {
    /// Connects to the receiver that listens at `path`. What it lends is to be trusted as far as the receiver
    /// is: that it leaves lent frames alone is its part.
    ///
    /// # Errors
    /// [`ReaderError`] says whether nobody listens, the receiver refuses, or speaks another version.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ReaderError> {
        let path = path.as_ref().to_owned();
        let failed = |step| {
            let path = path.clone();
            move |source: io::Error| ReaderError::Socket { path, step, source }
        };
        let foreign = |what: &str| ReaderError::Foreign { path: path.clone(), what: what.to_owned() };
        let (connection, address) = seqpacket(&path, SocketFlags::empty()).map_err(failed("socket"))?;
        net::connect(&connection, &address).map_err(|errno| failed("connect")(errno.into()))?;
        let (message, descriptors) = receive_hello(&connection).map_err(failed("recvmsg"))?;
        let hello = Hello::from_bytes(&message).map_err(|version| match version {
            Some(version) => foreign(&format!("it has version {version}, this is {}", loan::VERSION)),
            None => foreign("its first message is no greeting"),
        })?;
        let reason = match hello.status {
            loan::ACCEPTED => None,
            loan::TOO_MANY_READERS => Some("as many as it admits are connected"),
            loan::NO_FRAMES => Some("its UMEM has not enough frames for another quota"),
            _ => Some("it could not make the memory for it; its log says more"),
        };
        if let Some(reason) = reason {
            return Err(ReaderError::Refused { path, reason });
        }
        let [Some(umem), Some(control)] = descriptors else {
            return Err(foreign("it passed no descriptors"));
        };
        if !hello.is_sound() {
            return Err(foreign("its rings lie outside their memory"));
        }
        let length =
            usize::try_from(hello.umem_length).map_err(|_| foreign("a UMEM of impossible length"))?;
        let view = View::map(umem.as_fd(), length).map_err(failed("mapping of the UMEM"))?;
        // The control memory is sealed too: this mapping is dropped again, the rings make their own.
        let control_length = usize::try_from(hello.control_length).unwrap_or(usize::MAX);
        View::map(control.as_fd(), control_length).map_err(failed("mapping of the rings"))?;
        let loans = MappedRing::map(control.as_fd(), hello.loans, &BLOCK, hello.entries);
        let returns = MappedRing::map(control.as_fd(), hello.returns, &BLOCK, hello.entries);
        Ok(Self {
            loans: Consumer::new(loans.map_err(failed("mapping of the rings"))?),
            returns: Producer::new(returns.map_err(failed("mapping of the rings"))?),
            view,
            connection,
            quota: hello.quota,
            path,
        })
    }

    /// Frames that this reader may hold. What is lent beyond it is dropped by the receiver.
    pub fn quota(&self) -> u32 {
        self.quota
    }

    /// Hands up to `limit` packets to `handle` and gives each back when that returns, or unwinds. No system
    /// call, no copy. Returns how many.
    ///
    /// # Errors
    /// [`ReaderError::Gone`] if the receiver wrote what cannot be.
    pub fn receive<F: FnMut(LentPacket<'_>)>(
        &mut self,
        limit: usize,
        mut handle: F,
    ) -> Result<usize, ReaderError> {
        let batch = Batch { loans: &mut self.loans, returns: &mut self.returns };
        let (mut packets, mut whole) = (0, true);
        while packets < limit && whole {
            let Some(loan) = batch.loans.pop() else { break };
            let lent = Return { returns: batch.returns, addr: loan.addr };
            let Loan { timestamp, sequence, flags, source, .. } = loan;
            match self.view.slice(loan.addr, loan.len) {
                Some(data) => handle(LentPacket { data, timestamp, sequence, flags, source }),
                None => whole = false,
            }
            drop(lent);
            packets += usize::from(whole);
        }
        drop(batch);
        whole &= !self.loans.is_corrupt() && !self.returns.is_corrupt();
        if whole { Ok(packets) } else { Err(self.gone()) }
    }

    /// Sleeps until packets wait or `timeout` is over (`None`: for ever). True if packets wait.
    ///
    /// # Errors
    /// [`ReaderError::Gone`] when the receiver closed the connection and nothing waits any more.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, ReaderError> {
        let waiting = self.loans.want_wakeup(true);
        let outcome = if waiting { Ok(()) } else { self.sleep(timeout) };
        let waiting = self.loans.want_wakeup(false);
        if waiting { Ok(true) } else { outcome.map(|()| false) }
    }

    fn sleep(&self, timeout: Option<Duration>) -> Result<(), ReaderError> {
        let timeout = timeout.and_then(|time| Timespec::try_from(time).ok());
        let mut fds = [PollFd::new(&self.connection, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(errno) => {
                let (path, step) = (self.path.clone(), "poll");
                return Err(ReaderError::Socket { path, step, source: errno.into() });
            }
        }
        // All wake-ups that wait are one; as many as fit a socket buffer.
        loop {
            let mut byte = [0u8; 1];
            match net::recv(&self.connection, &mut byte[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(self.gone()),
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(()),
                Err(_) => return Err(self.gone()),
            }
        }
    }

    fn gone(&self) -> ReaderError {
        ReaderError::Gone { path: self.path.clone() }
    }
}

impl AsFd for UmemReader {
    /// The connection. It is readable after [`UmemReader::wait`] has asked for a wake-up, and at the end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// Shows the receiver what was taken and returned in a batch, however that ends.
struct Batch<'a> {
    loans: &'a mut Consumer<MappedRing<Loan>>,
    returns: &'a mut Producer<MappedRing<u64>>,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.loans.release();
        self.returns.publish();
    }
}

/// Gives one frame back, however its handling ends.
struct Return<'a> {
    returns: &'a mut Producer<MappedRing<u64>>,
    addr: u64,
}

impl Drop for Return<'_> {
    fn drop(&mut self) {
        // Full only if the receiver spoiled the ring: as many entries as a quota are there.
        let _ = self.returns.push(self.addr);
    }
}

/// The first message and the descriptors that came with it.
fn receive_hello(connection: &OwnedFd) -> io::Result<(Vec<u8>, [Option<OwnedFd>; 2])> {
    let mut message = vec![0u8; Hello::SIZE];
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
