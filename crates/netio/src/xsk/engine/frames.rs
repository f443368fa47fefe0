//! Guards of the frames that the program holds: a frame is always put back, whatever happens to the code that uses it.

use std::cmp::Ordering;
use std::ops::Range;

use super::rx::Popped;
use super::{Engine, Kernel, Umem, Xsk, XskId};
use crate::readers::{PacketInfo, ReaderTable};
use crate::umem::Frame;

/// An engine whose fields are borrowed one by one, and one of its XSKs beside the others.
struct SplitEngine<'a, K: Kernel> {
    umem: &'a mut Umem,
    /// The XSK that it came by, the ones before that and the ones behind.
    own: &'a mut Xsk<K>,
    before: &'a mut [Xsk<K>],
    after: &'a mut [Xsk<K>],
    readers: &'a mut ReaderTable<K>,
}

impl<K: Kernel> SplitEngine<'_, K> {
    #[inline]
    fn reborrow(&mut self) -> SplitEngine<'_, K> {
        SplitEngine {
            umem: &mut *self.umem,
            own: &mut *self.own,
            before: &mut *self.before,
            after: &mut *self.after,
            readers: &mut *self.readers,
        }
    }

    /// An XSK, and the UMEM that its frames are of.
    #[inline]
    fn xsk(&mut self, id: XskId) -> (&mut Xsk<K>, &mut Umem) {
        let (at, own) = (usize::from(id.0), self.before.len());
        let xsk = match at.cmp(&own) {
            Ordering::Less => &mut self.before[at],
            Ordering::Equal => &mut *self.own,
            Ordering::Greater => &mut self.after[at - own - 1],
        };
        (xsk, &mut *self.umem)
    }
}

/// Received packets, one after the other. Dropped, the fill ring of their XSK is full again and shown to the kernel.
pub(crate) struct RxBatch<'a, K: Kernel> {
    engine: SplitEngine<'a, K>,
    limit: usize,
    /// A packet may take several descriptors, and a hostile kernel could send none but bad ones: one ring's worth of
    /// descriptors is the bound.
    descriptors: u32,
    packets: usize,
}

impl<'a, K: Kernel> RxBatch<'a, K> {
    #[inline]
    pub(super) fn new(engine: &'a mut Engine<K>, from: XskId, limit: usize) -> Self {
        let Engine { umem, xsks, readers } = engine;
        let (before, rest) = xsks.split_at_mut(usize::from(from.0));
        let (own, after) = rest.split_first_mut().expect("an id is that of an XSK of its engine");
        let descriptors = own.available(limit);
        Self { engine: SplitEngine { umem, own, before, after, readers }, limit, descriptors, packets: 0 }
    }

    /// The next packet. If it is neither sent nor lent, its frame goes back to the fill ring.
    // Called from elsewhere, it would write the guard to memory for each packet: a third more time.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<RxFrame<'_, K>> {
        while self.packets < self.limit && self.descriptors > 0 {
            let popped = self.engine.own.pop(self.engine.umem)?;
            self.descriptors -= 1;
            let (frame, range) = match popped {
                Popped::Packet(frame, range) => (Some(frame), range),
                Popped::Assembled(length) => (None, 0..length),
                Popped::Nothing => continue,
            };
            self.packets += 1;
            return Some(RxFrame { engine: self.engine.reborrow(), frame, range });
        }
        None
    }

    /// How many there were so far.
    pub(crate) fn packets(&self) -> usize {
        self.packets
    }
}

impl<K: Kernel> Drop for RxBatch<'_, K> {
    #[inline]
    fn drop(&mut self) {
        self.engine.own.end_batch(self.engine.umem);
    }
}

/// A received packet, in its frame or put together from several. Dropped, its frame goes back to the fill ring that it
/// came from.
pub(crate) struct RxFrame<'a, K: Kernel> {
    engine: SplitEngine<'a, K>,
    /// `None`: the packet came in several frames and lies in the buffer of its XSK.
    frame: Option<Frame>,
    range: Range<usize>,
}

impl<K: Kernel> RxFrame<'_, K> {
    /// The packet. It may be changed in place.
    #[inline(always)]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let bytes = match &mut self.frame {
            Some(frame) => self.engine.umem.bytes_mut(frame),
            None => self.engine.own.assembled(),
        };
        &mut bytes[self.range.clone()]
    }

    /// Sends the packet by an XSK, and counts that there. False if that has its share of frames in flight, or the packet
    /// came in several frames: it is dropped.
    #[inline]
    pub(crate) fn send(mut self, to: XskId) -> bool {
        let (xsk, umem) = self.engine.xsk(to);
        let Some(frame) = self.frame.take() else {
            xsk.stats.dropped_no_buffer += 1;
            return false;
        };
        if xsk.is_exhausted() {
            xsk.complete(umem);
        }
        match xsk.submit(umem, frame, self.range.clone()) {
            Ok(()) => {
                xsk.count_sent(self.range.len());
                true
            }
            Err(frame) => {
                xsk.stats.dropped_no_buffer += 1;
                self.frame = Some(frame);
                false
            }
        }
    }

    /// Lends `part` of the packet to those of `readers`, a bit each, who are there and have not used up their quota.
    /// Returns the set of them; nobody else may write the frame until they all have returned it. A packet that came in
    /// several frames is lent to nobody, and counted.
    #[inline]
    pub(crate) fn lend(mut self, part: Range<usize>, readers: u32, info: PacketInfo) -> u32 {
        let SplitEngine { umem, own, readers: table, .. } = &mut self.engine;
        let Some(frame) = self.frame.take() else {
            table.count_not_lent();
            return 0;
        };
        let range = self.range.start + part.start..self.range.start + part.end;
        match table.lend(umem, (frame, range), own.id, readers, info) {
            Ok(lent) => lent,
            Err(frame) => {
                self.frame = Some(frame);
                0
            }
        }
    }
}

impl<K: Kernel> Drop for RxFrame<'_, K> {
    #[inline]
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.engine.own.recycle(self.engine.umem, frame);
        }
    }
}

/// A frame in which a packet is being built. Dropped without [`TxFrame::submit`] it is free again.
pub(crate) struct TxFrame<'a, K: Kernel> {
    umem: &'a mut Umem,
    xsk: &'a mut Xsk<K>,
    frame: Option<Frame>,
}

impl<'a, K: Kernel> TxFrame<'a, K> {
    #[inline]
    pub(super) fn new(umem: &'a mut Umem, xsk: &'a mut Xsk<K>, frame: Frame) -> Self {
        Self { umem, xsk, frame: Some(frame) }
    }

    /// The whole frame.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match &mut self.frame {
            Some(frame) => self.umem.bytes_mut(frame),
            None => &mut [],
        }
    }

    /// Puts the packet that lies at `range` of the frame into the TX ring. False if it does not lie within the frame or
    /// the ring has no room; the frame is free again then.
    #[inline]
    pub(crate) fn submit(mut self, range: Range<usize>) -> bool {
        let Some(frame) = self.frame.take() else { return false };
        match self.xsk.submit(self.umem, frame, range) {
            Ok(()) => true,
            Err(frame) => {
                self.frame = Some(frame);
                false
            }
        }
    }
}

impl<K: Kernel> Drop for TxFrame<'_, K> {
    #[inline]
    fn drop(&mut self) {
        if let Some(frame) = self.frame.take() {
            self.umem.free(frame);
        }
    }
}
