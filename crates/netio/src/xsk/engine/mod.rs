//! One UMEM, the XSKs on it and its readers: who has which frame, and how frames move between them.
//!
//! ```text
//!                 ┌────────────────────── free ◀───────────────────────────┐
//!                 │                        ▲  ▲                            │
//!         refill  │             completion │  │ the last reader returned   │
//!                 ▼                        │  │ it, or went                │
//!    XSK A: fill ──▶ RX ──▶ program ──▶ TX of any XSK                      │
//!                              │  └──▶ lent to one reader or several ──────┘
//!                              └─────▶ back to A's fill ring, at once
//! ```
//!
//! One thread owns everything: there is no lock, and a frame received by one XSK is sent by another without a copy. The
//! entitlements of XSKs and readers never exceed the UMEM ([`Umem::unreserved`]). A frame is put back by a guard
//! ([`RxFrame`], [`TxFrame`]), so code that unwinds or returns early loses none.
//!
//! [`super::XskBinding`] works on datagrams by an engine with one XSK, [`super::SharedUmem`] on whole packets by one with several.
//! All XSKs are brought up by [`open`]. Everything is generic over [`Kernel`], so that it runs over a fake one in tests.

mod assembly;
#[cfg(all(test, not(loom)))]
pub(crate) mod fake;
mod fd;
mod frames;
mod kick;
mod open;
mod rx;
mod tx;
mod xsk;

use super::config::ObtainedMode;
use crate::readers::ReaderTable;
use crate::umem::{Umem, XskId};

pub(crate) use frames::{RxBatch, RxFrame, TxFrame};
pub(crate) use kick::{KICK_AGAIN, Outcome};
pub(crate) use open::{Bind, Opened, adopt, bring_up, can_open};
pub(crate) use xsk::{Kernel, Xsk};

#[cfg(all(test, not(loom)))]
pub(crate) use open::check_mode;

/// A UMEM and all who use it.
pub(crate) struct Engine<K: Kernel> {
    /// The memory, with the record of owners and the free frames.
    pub(crate) umem: Umem,
    /// The sockets, by [`XskId`].
    pub(crate) xsks: Vec<Xsk<K>>,
    /// Who of the readers in other processes has which frame.
    pub(crate) readers: ReaderTable<K>,
}

impl<K: Kernel> Engine<K> {
    /// Takes a UMEM and the sockets that were brought up on it.
    pub(crate) fn new(umem: Umem, xsks: Vec<Xsk<K>>) -> Self {
        let readers = ReaderTable::new(umem.count());
        Self { umem, xsks, readers }
    }

    /// An XSK, and the UMEM that its frames are of.
    #[inline]
    pub(crate) fn xsk(&mut self, id: XskId) -> (&mut Xsk<K>, &mut Umem) {
        (&mut self.xsks[id.0 as usize], &mut self.umem)
    }

    /// Up to `limit` packets that an XSK has received.
    #[inline]
    pub(crate) fn receive(&mut self, from: XskId, limit: usize) -> RxBatch<'_, K> {
        RxBatch::new(self, from, limit)
    }

    /// A frame to build a packet in, to leave by that XSK; `None` if it has its share in flight, or none is free.
    #[inline]
    pub(crate) fn alloc(&mut self, by: XskId) -> Option<TxFrame<'_, K>> {
        let (xsk, umem) = self.xsk(by);
        xsk.alloc(umem).map(|frame| TxFrame::new(umem, xsk, frame))
    }
}

#[cfg(all(test, not(loom)))]
mod frame_tests;
#[cfg(all(test, not(loom)))]
mod packet_tests;
