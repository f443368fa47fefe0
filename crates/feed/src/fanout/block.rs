//! One block of the ring: bytes that are appended once and never change.
//!
//! ```text
//!   data   │ frame 0 │ frame 1 │  frame 2  │▒▒ written, unpublished ▒▒│      free      │
//!   ends             ▲         ▲           ▲                          ▲
//!   frames = 3 ────────────────────────────┘ (published: Release by the producer, Acquire by readers)
//! ```
//!
//! Only the producer appends, behind everything published, and readers only look at what is published. So no byte
//! is ever read and written at the same time, and a slice that a reader holds does not change while it holds the
//! block. A frame lies completely in one block.
#![allow(unsafe_code)] // The free part is written while the published part is read.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::Arc;

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Where a block stands in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockPosition {
    /// Counts blocks from 0.
    pub(crate) number: u64,
    /// Frames of the stream before it.
    pub(crate) first_frame: u64,
    /// Bytes of the stream before it.
    pub(crate) first_byte: u64,
}

/// A block. Shared by `Arc`; [`Appender`] is the exclusive right to append to it.
pub(crate) struct Block {
    place: BlockPosition,
    data: Box<[UnsafeCell<u8>]>,
    /// Where each published frame ends.
    ends: Box<[AtomicU32]>,
    /// When each frame was received, in the ring's clock.
    times: Box<[AtomicU64]>,
    /// Published frames.
    frames: AtomicU32,
    /// Lets loom track accesses to each byte.
    #[cfg(all(test, loom))]
    watch: Box<[loom::cell::UnsafeCell<()>]>,
}

// SAFETY: bytes are written only through the one `Appender`, behind the published end, and read only before it;
// the Release store and Acquire loads of `frames` order the two.
unsafe impl Sync for Block {}

/// The one right to append to a block, with the position that it has come to.
pub(crate) struct Appender {
    block: Arc<Block>,
    bytes: usize,
    frames: usize,
}

impl Block {
    /// An empty block of `bytes` bytes and at most `frames` frames.
    pub(crate) fn new(place: BlockPosition, bytes: usize, frames: usize) -> Self {
        Self {
            place,
            data: (0..bytes).map(|_| UnsafeCell::new(0)).collect(),
            ends: (0..frames).map(|_| AtomicU32::new(0)).collect(),
            times: (0..frames).map(|_| AtomicU64::new(0)).collect(),
            frames: AtomicU32::new(0),
            #[cfg(all(test, loom))]
            watch: (0..bytes).map(|_| loom::cell::UnsafeCell::new(())).collect(),
        }
    }

    /// An empty block whose pages are there: zeroed memory of an allocator need have none before it is written to.
    pub(crate) fn touched(bytes: usize, frames: usize) -> Self {
        const PAGE: usize = 4096;
        let mut block = Self::new(BlockPosition::default(), bytes, frames);
        // A zero that the compiler does not know to be one.
        block.data.iter_mut().step_by(PAGE).for_each(|byte| *byte.get_mut() = black_box(0));
        let (ends, times) = (block.ends.iter(), block.times.iter());
        ends.step_by(PAGE / size_of::<u32>()).for_each(|end| end.store(black_box(0), Ordering::Relaxed));
        times.step_by(PAGE / size_of::<u64>()).for_each(|time| time.store(black_box(0), Ordering::Relaxed));
        block
    }

    pub(crate) fn place(&self) -> BlockPosition {
        self.place
    }

    /// Published frames.
    pub(crate) fn frames(&self) -> usize {
        self.frames.load(Ordering::Acquire) as usize
    }

    /// Where frame `index` ends; it must be below what [`Self::frames`] has said.
    pub(crate) fn end(&self, index: usize) -> usize {
        self.ends[index].load(Ordering::Relaxed) as usize
    }

    /// When frame `index` was received; as [`Self::end`].
    pub(crate) fn time(&self, index: usize) -> u64 {
        self.times[index].load(Ordering::Relaxed)
    }

    /// Published bytes.
    pub(crate) fn published(&self) -> usize {
        match self.frames() {
            0 => 0,
            frames => self.end(frames - 1),
        }
    }

    /// The index of the frame that contains byte `offset`: the number of published frames that end at or
    /// before it.
    pub(crate) fn frame_at(&self, offset: usize) -> usize {
        let ends_before = |index: usize| self.end(index) <= offset;
        // Nearly all readers are near the end: from there, in steps that double, and then halves of the last step.
        let mut high = self.frames();
        let mut step = 1;
        let mut low = high.saturating_sub(step);
        while low > 0 && !ends_before(low - 1) {
            high = low - 1;
            step *= 2;
            low = high.saturating_sub(step);
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if ends_before(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// Whether a frame begins at `offset`, which lies in the published part.
    pub(crate) fn is_boundary(&self, offset: usize) -> bool {
        offset == 0 || matches!(self.frame_at(offset), index @ 1.. if self.end(index - 1) == offset)
    }

    /// Published bytes from `start` to `end`, cut to what is published.
    pub(crate) fn bytes(&self, start: usize, end: usize) -> &[u8] {
        let end = end.min(self.published());
        let start = start.min(end);
        #[cfg(all(test, loom))]
        self.watch[start..end].iter().for_each(|cell| cell.with(|_| ()));
        let cells = &self.data[start..end];
        // SAFETY: published bytes are not written again while the block is shared, `UnsafeCell<u8>` has the
        // layout of `u8`, and the range was checked by slicing.
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast::<u8>(), cells.len()) }
    }
}

impl Appender {
    /// Appends to `block`, which nobody else can have seen.
    pub(crate) fn new(block: Block) -> Self {
        Self { block: Arc::new(block), bytes: 0, frames: 0 }
    }

    /// Appends from the beginning to a used block, now at `place`, if no reader holds it any more.
    pub(crate) fn reuse(mut block: Arc<Block>, place: BlockPosition) -> Option<Self> {
        let inner = Arc::get_mut(&mut block)?;
        inner.place = place;
        inner.frames = AtomicU32::new(0);
        Some(Self { block, bytes: 0, frames: 0 })
    }

    /// The block, for readers.
    pub(crate) fn block(&self) -> &Arc<Block> {
        &self.block
    }

    /// Whether a frame of `length` bytes still fits.
    pub(crate) fn fits(&self, length: usize) -> bool {
        length <= self.block.data.len() - self.bytes && self.frames < self.block.ends.len()
    }

    /// The place of the block that follows this one.
    pub(crate) fn next_place(&self) -> BlockPosition {
        let place = self.block.place;
        BlockPosition {
            number: place.number + 1,
            first_frame: place.first_frame + self.frames as u64,
            first_byte: place.first_byte + self.bytes as u64,
        }
    }

    /// Bytes written, published or not.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes a frame of two parts, unseen by readers. [`Self::fits`] must have said that it fits; else it panics.
    pub(crate) fn append(&mut self, parts: [&[u8]; 2], time: u64) {
        let block = &*self.block;
        let mut at = self.bytes;
        for part in parts {
            let cells = &block.data[at..at + part.len()];
            #[cfg(all(test, loom))]
            block.watch[at..at + part.len()].iter().for_each(|cell| cell.with_mut(|_| ()));
            if !cells.is_empty() {
                let to = UnsafeCell::raw_get(cells.as_ptr());
                // SAFETY: the cells lie behind the published end, where only this appender goes, and `self` is
                // borrowed alone; the range was checked by slicing; `part` cannot overlap what nobody may see.
                unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
            }
            at += part.len();
        }
        block.ends[self.frames].store(at as u32, Ordering::Relaxed);
        block.times[self.frames].store(time, Ordering::Relaxed);
        self.bytes = at;
        self.frames += 1;
    }

    /// Shows everything written to readers.
    pub(crate) fn publish(&self) {
        self.block.frames.store(self.frames as u32, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_all_that_readers_see() {
        let mut appender = Appender::new(Block::new(BlockPosition::default(), 16, 3));
        let block = appender.block().clone();
        appender.append([b"ab", b"cd"], 1);
        assert_eq!((block.frames(), block.published()), (0, 0));
        assert_eq!(block.bytes(0, 100), b"");
        appender.publish();
        appender.append([b"", b"e"], 2);
        assert_eq!(block.bytes(1, 100), b"bcd");
        appender.publish();
        assert_eq!(block.bytes(0, 100), b"abcde");
        assert_eq!((block.time(0), block.time(1)), (1, 2));
    }

    #[test]
    fn boundaries_are_where_frames_end() {
        let mut appender = Appender::new(Block::new(BlockPosition::default(), 16, 3));
        appender.append([b"ab", b"c"], 0);
        appender.append([b"", b"d"], 0);
        appender.publish();
        let block = appender.block();
        let boundaries: Vec<usize> = (0..=4).filter(|offset| block.is_boundary(*offset)).collect();
        assert_eq!(boundaries, [0, 3, 4]);
        assert_eq!([0, 2, 3, 4].map(|offset| block.frame_at(offset)), [0, 0, 1, 2]);
    }

    #[test]
    fn the_frame_at_any_byte_is_found() {
        for frames in 0..40 {
            let mut appender = Appender::new(Block::new(BlockPosition::default(), 200, frames));
            let mut ends = Vec::new();
            for frame in 0..frames {
                appender.append([b"", &b"12345"[..1 + frame % 5]], 0);
                ends.push(appender.bytes());
            }
            appender.publish();
            for offset in 0..=appender.bytes() {
                let expected = ends.iter().filter(|end| **end <= offset).count();
                assert_eq!(appender.block().frame_at(offset), expected, "{offset} of {frames} frames");
            }
        }
    }

    #[test]
    fn a_block_is_full_by_bytes_or_by_frames() {
        let mut appender = Appender::new(Block::new(BlockPosition::default(), 4, 2));
        assert!(appender.fits(4) && !appender.fits(5));
        appender.append([b"", b"a"], 0);
        assert!(appender.fits(3) && !appender.fits(4));
        appender.append([b"", b"b"], 0);
        assert!(!appender.fits(1));
        let next = BlockPosition { number: 1, first_frame: 2, first_byte: 2 };
        assert_eq!(appender.next_place(), next);
    }

    #[test]
    fn a_block_that_somebody_holds_is_not_used_again() {
        let mut appender = Appender::new(Block::new(BlockPosition::default(), 4, 2));
        appender.append([b"", b"abcd"], 0);
        appender.publish();
        let held = appender.block().clone();
        let block = appender.block().clone();
        drop(appender);
        let place = BlockPosition { number: 9, ..BlockPosition::default() };
        assert!(Appender::reuse(block, place).is_none());
        let again = Appender::reuse(held, place).expect("nobody else holds it");
        assert_eq!((again.block().frames(), again.block().place().number), (0, 9));
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;

    #[test]
    fn loom_readers_see_whole_frames_only() {
        loom::model(|| {
            let mut appender = Appender::new(Block::new(BlockPosition::default(), 4, 2));
            let block = appender.block().clone();
            let reader = loom::thread::spawn(move || {
                let seen = block.bytes(0, 4).to_vec();
                assert!(matches!(&seen[..], b"" | b"ab" | b"abcd"), "{seen:?}");
            });
            appender.append([b"a", b"b"], 1);
            appender.publish();
            appender.append([b"", b"cd"], 2);
            appender.publish();
            reader.join().unwrap();
        });
    }
}
