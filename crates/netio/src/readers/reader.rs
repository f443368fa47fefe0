//! A reader: reads packets that another process received, in place.
//!
//! The receiver ([`crate::xsk::SharedUmem`]) lends packets. A reader sees them in a read-only mapping of the receiver's
//! UMEM, and returns each when it is done. It needs no privileges except access to the receiver's socket.
//! `include/expressway/umem.h` is the same for C.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use super::abi::{self, BLOCK, Hello, PacketDescriptor};
use super::{Connection, ReaderError};
use crate::io::TimeSource;
use crate::ring::{Consumer, MappedRing, Producer};
use crate::sys::view::View;

/// A packet in the receiver's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmemPacket<'a> {
    /// Its bytes, from the Ethernet header on.
    pub data: &'a [u8],
    /// The receiver's time of it: as given to [`crate::xsk::Received::lend`], or as [`UmemPacket::time_source`] says.
    pub timestamp: u64,
    /// Number of the packet among those meant for this reader. A gap is packets that were dropped because the
    /// reader held its whole quota.
    pub sequence: u64,
    /// What the receiver says of it.
    pub flags: u16,
    /// The receiver's socket that it came in on, numbered from 0 in the order of binding.
    pub source: u16,
}

impl<'a> UmemPacket<'a> {
    /// The UDP payload of a packet that [`crate::xsk::XskIo`] lent ([`crate::xsk::XskConfig::lend`]), as `expressway recv
    /// --lend` does: its flags say where the payload starts, and the packet ends where that does. `None` of another.
    pub fn payload(&self) -> Option<&'a [u8]> {
        let start = self.flags & abi::PAYLOAD;
        self.data.get(usize::from(start)..).filter(|_| start > 0)
    }

    /// Who stamped a packet that [`crate::xsk::XskIo`] lent; `None`: nobody did, and its time stamp is 0.
    pub fn time_source(&self) -> Option<TimeSource> {
        match self.flags & (abi::STAMP_NIC | abi::STAMP_XDP) {
            abi::STAMP_NIC => Some(TimeSource::Device),
            abi::STAMP_XDP => Some(TimeSource::Program),
            _ => None,
        }
    }
}

/// A connection to a receiver.
///
/// ```no_run
/// use expressway_netio::xsk::UmemReader;
///
/// # fn main() -> Result<(), expressway_netio::xsk::ReaderError> {
/// let mut reader = UmemReader::connect("/run/feed/umem.sock")?;
/// loop {
///     reader.receive(64, |packet| println!("{} {} bytes", packet.sequence, packet.data.len()))?;
///     reader.wait(None)?;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct UmemReader {
    packets: Consumer<MappedRing<PacketDescriptor>>,
    returns: Producer<MappedRing<u64>>,
    view: View,
    connection: Connection,
    quota: u32,
}

impl UmemReader {
    /// Connects to the receiver that listens at `path`. What it lends is to be trusted as far as the receiver
    /// is: that it leaves lent frames alone is its part.
    ///
    /// # Errors
    /// [`ReaderError`] says whether nobody listens, the receiver refuses, or speaks another version.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ReaderError> {
        let (connection, (message, descriptors)) = Connection::dial(path.as_ref(), Hello::SIZE)?;
        let hello = Hello::from_bytes(&message).map_err(|version| match version {
            Some(version) => connection.foreign(format!("version {version}, expected {}", abi::VERSION)),
            None => connection.foreign("unexpected first message"),
        })?;
        let reason = match hello.status {
            abi::ACCEPTED => None,
            abi::TOO_MANY_READERS => Some("too many readers"),
            abi::NO_FRAMES => Some("not enough UMEM frames for another reader's quota"),
            _ => Some("it could not allocate memory for this reader; see its log"),
        };
        if let Some(reason) = reason {
            return Err(connection.refused(reason));
        }
        let [Some(umem), Some(control)] = descriptors else {
            return Err(connection.foreign("no descriptors received"));
        };
        if !hello.is_sound() {
            return Err(connection.foreign("ring offsets outside the shared memory"));
        }
        let length =
            usize::try_from(hello.umem_length).map_err(|_| connection.foreign("invalid UMEM length"))?;
        let failed = |step| connection.failed(step);
        let view = View::map(umem.as_fd(), length).map_err(failed("mapping the UMEM"))?;
        // The control memory is sealed too: this mapping is dropped again, the rings make their own.
        let control_length = usize::try_from(hello.control_length).unwrap_or(usize::MAX);
        View::map(control.as_fd(), control_length).map_err(failed("mapping the rings"))?;
        let packets = MappedRing::map(control.as_fd(), hello.packets, &BLOCK, hello.entries);
        let returns = MappedRing::map(control.as_fd(), hello.returns, &BLOCK, hello.entries);
        Ok(Self {
            packets: Consumer::new(packets.map_err(failed("mapping the rings"))?),
            returns: Producer::new(returns.map_err(failed("mapping the rings"))?),
            view,
            quota: hello.quota,
            connection,
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
    pub fn receive<F: FnMut(UmemPacket<'_>)>(
        &mut self,
        limit: usize,
        mut handle: F,
    ) -> Result<usize, ReaderError> {
        let batch = Batch { packets: &mut self.packets, returns: &mut self.returns };
        let (mut packets, mut whole) = (0, true);
        while packets < limit && whole {
            let Some(packet) = batch.packets.pop() else { break };
            let lent = Return { returns: batch.returns, addr: packet.addr };
            let PacketDescriptor { timestamp, sequence, flags, source, .. } = packet;
            match self.view.slice(packet.addr, packet.len) {
                Some(data) => handle(UmemPacket { data, timestamp, sequence, flags, source }),
                None => whole = false,
            }
            drop(lent);
            packets += usize::from(whole);
        }
        drop(batch);
        whole &= !self.packets.is_corrupt() && !self.returns.is_corrupt();
        if whole { Ok(packets) } else { Err(self.connection.gone()) }
    }

    /// Sleeps until packets wait or `timeout` is over (`None`: for ever). True if packets wait.
    ///
    /// # Errors
    /// [`ReaderError::Gone`] when the receiver closed the connection and nothing waits any more.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, ReaderError> {
        let waiting = self.packets.want_wakeup(true);
        let outcome = if waiting { Ok(()) } else { self.connection.sleep(timeout) };
        let waiting = self.packets.want_wakeup(false);
        if waiting { Ok(true) } else { outcome.map(|()| false) }
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
    packets: &'a mut Consumer<MappedRing<PacketDescriptor>>,
    returns: &'a mut Producer<MappedRing<u64>>,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.packets.release();
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
