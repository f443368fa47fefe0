//! A received packet of a [`super::SharedUmem`], and where it may go.

use super::engine::RxFrame;
use crate::readers::{PacketInfo, Readers};
use crate::ring::Mapped;
use crate::umem::XskId;

/// One of the sockets on a [`super::SharedUmem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketId {
    pub(super) umem: u32,
    pub(super) xsk: XskId,
}

/// The socket is not one of this UMEM's, so its frames cannot go there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("AF_XDP socket {} is bound to another UMEM: a frame can only be sent by a socket of its own UMEM", .0.xsk.0)]
pub struct ForeignSocket(pub SocketId);

/// Why a received packet was not sent on. It is dropped, its frame receives again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// As many packets as the TX ring has entries are on their way: flush, and let them go.
    #[error("the TX ring is full")]
    Full,
    /// The socket is of another UMEM.
    #[error(transparent)]
    Foreign(#[from] ForeignSocket),
}

/// A received packet in its frame. Dropped, it is done with and its frame receives again.
pub struct Received<'a> {
    pub(super) frame: RxFrame<'a, Mapped>,
    pub(super) umem: u32,
}

impl Received<'_> {
    /// The packet, from its Ethernet header on. It may be changed in place.
    #[inline]
    pub fn bytes(&mut self) -> &mut [u8] {
        self.frame.bytes()
    }

    /// Sends the packet as it is now by a socket on the same UMEM, its own included, without a copy. It leaves
    /// with [`super::SharedUmem::flush`].
    ///
    /// # Errors
    /// [`NotSent`]: the packet is dropped, and counted with the socket that it was to leave by.
    pub fn send(self, by: SocketId) -> Result<(), NotSent> {
        if by.umem != self.umem {
            return Err(NotSent::Foreign(ForeignSocket(by)));
        }
        if self.frame.send(by.xsk) { Ok(()) } else { Err(NotSent::Full) }
    }

    /// Lends the packet to `readers`. Those who are gone or hold their quota are left out; the others are
    /// returned and see it after [`super::SharedUmem::flush`]. `timestamp` and `flags` are for them to read.
    pub fn lend(mut self, readers: Readers, timestamp: u64, flags: u16) -> Readers {
        let whole = 0..self.frame.bytes().len();
        Readers(self.frame.lend(whole, readers.0, PacketInfo { timestamp, flags }))
    }
}
