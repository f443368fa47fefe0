//! The ring: the framed stream of the last few megabytes, written once and read by every subscriber.
//!
//! ```text
//!   Ring (producer) ──append, publish──▶ │ block n-2 │ block n-1 │ block n ▒▒▒        │
//!                                              ▲            ▲           ▲
//!   View (a shard's) ──refresh──▶              │            │           │
//!   cursors of its clients ────────────────────┴────────────┴───────────┘
//! ```
//!
//! A [`Cursor`] is a block's number and an offset in it. It holds nothing: the oldest block is released when
//! the ring exceeds its limit, even if a subscriber still needs it. A shard holds the blocks known to its
//! view by `Arc` until it refreshes, so the data that it is sending stays. For a shard that is not
//! scheduled, this is at most one more ring in memory. The list of blocks is behind a mutex, which is taken
//! once per block. Whether there is anything new is an atomic.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::block::{Appender, Block, BlockPosition};
use super::framing::{Framing, MAX_HEADER};

/// Bytes of a block. A frame of the longest datagram takes a quarter of it.
pub const BLOCK_BYTES: usize = 256 << 10;

/// Frames of a block: so many of 64 bytes fill it. Its index takes 12 bytes for each.
const BLOCK_FRAMES: usize = BLOCK_BYTES / 64;

/// Blocks kept for reuse in addition to the retained ones; readers still hold recently released ones for a
/// while.
const SPARE: usize = 2;

/// Where a subscriber is in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor {
    pub(crate) block: u64,
    pub(crate) offset: usize,
}

/// What all sides see.
pub(crate) struct Shared {
    framing: Framing,
    /// The retained blocks, oldest first; the last is being written. Never empty.
    blocks: Mutex<VecDeque<Arc<Block>>>,
    /// Published frames and bytes of the stream.
    frames: AtomicU64,
    bytes: AtomicU64,
}

impl Shared {
    /// Published frames since the beginning.
    pub(crate) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Acquire)
    }

    /// Published bytes since the beginning.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn blocks(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Block>>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The producer's side.
pub(crate) struct Ring {
    shared: Arc<Shared>,
    appender: Appender,
    /// The most blocks that are retained.
    limit: usize,
    /// Blocks made ahead, until the ring has been full once.
    stock: Option<Receiver<Arc<Block>>>,
    /// Blocks that were retained once and may be used again when nobody holds them.
    spare: Vec<Arc<Block>>,
    unpublished: u64,
    block_bytes: usize,
    block_frames: usize,
}

impl Ring {
    /// An empty ring that retains at least `bytes` of stream and at most a block more. A thread takes its memory right
    /// away: a block of new memory costs the kernel up to milliseconds, which no datagram is to wait for.
    pub(crate) fn new(framing: Framing, bytes: usize) -> Self {
        let limit = bytes.div_ceil(BLOCK_BYTES) + 1;
        let mut ring = Self::with_blocks(framing, limit, BLOCK_BYTES, BLOCK_FRAMES);
        let (made, stock) = channel();
        let make = move || {
            // The first there is; nobody reads any more once the ring is gone.
            let mut blocks = (1..limit + SPARE).map(|_| Block::touched(BLOCK_BYTES, BLOCK_FRAMES));
            while blocks.next().is_some_and(|block| made.send(Arc::new(block)).is_ok()) {}
        };
        match thread::Builder::new().name("expressway-ring".into()).spawn(make) {
            Ok(_) => ring.stock = Some(stock),
            Err(error) => tracing::debug!(%error, "ring memory is not preallocated: allocated as it fills"),
        }
        ring
    }

    fn with_blocks(framing: Framing, limit: usize, block_bytes: usize, block_frames: usize) -> Self {
        let appender = Appender::new(Block::new(BlockPosition::default(), block_bytes, block_frames));
        let shared = Shared {
            framing,
            blocks: Mutex::new([appender.block().clone()].into()),
            frames: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        let shared = Arc::new(shared);
        Self {
            shared,
            appender,
            limit,
            stock: None,
            spare: Vec::new(),
            unpublished: 0,
            block_bytes,
            block_frames,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A reader.
    pub(crate) fn view(&self) -> View {
        View::new(self.shared.clone())
    }

    /// Appends a datagram received at `time`, unseen by readers until [`Self::publish`]. False when it leaves no
    /// trace in this framing (empty) or is longer than any UDP payload, which this framing cannot tell.
    pub(crate) fn push(&mut self, payload: &[u8], time: u64) -> bool {
        if (payload.is_empty() && !self.shared.framing.tells_empty())
            || payload.len() >= usize::from(u16::MAX)
        {
            return false;
        }
        let mut header = [0; MAX_HEADER];
        let length = self.shared.framing.header(payload.len(), &mut header);
        if !self.appender.fits(length + payload.len()) {
            self.next_block();
        }
        self.appender.append([&header[..length], payload], time);
        self.unpublished += 1;
        true
    }

    /// The number that the next frame pushed will have.
    pub(crate) fn next_frame(&self) -> u64 {
        self.shared.frames() + self.unpublished
    }

    /// Shows everything pushed to readers. True when there was anything.
    pub(crate) fn publish(&mut self) -> bool {
        if self.unpublished == 0 {
            return false;
        }
        self.appender.publish();
        let place = self.appender.block().place();
        self.shared.bytes.store(place.first_byte + self.appender.bytes() as u64, Ordering::Relaxed);
        self.shared.frames.fetch_add(self.unpublished, Ordering::Release);
        self.unpublished = 0;
        true
    }

    /// Seals the block, which is what entering its successor says to readers, and lets the oldest go.
    fn next_block(&mut self) {
        self.publish();
        let place = self.appender.next_place();
        let mut blocks = self.shared.blocks();
        let full = blocks.len() >= self.limit;
        while blocks.len() >= self.limit {
            self.spare.extend(blocks.pop_front());
        }
        drop(blocks);
        let again = recycle(&mut self.spare, place);
        if full && again.is_some() {
            self.stock = None;
        }
        let made = |stock: &Receiver<Arc<Block>>| stock.try_recv().ok();
        self.appender = again
            .or_else(|| Appender::reuse(self.stock.as_ref().and_then(made)?, place))
            .unwrap_or_else(|| Appender::new(Block::new(place, self.block_bytes, self.block_frames)));
        self.shared.blocks().push_back(self.appender.block().clone());
        // What shards that are behind still hold is theirs to free.
        self.spare.truncate(SPARE);
    }
}

fn recycle(spare: &mut Vec<Arc<Block>>, place: BlockPosition) -> Option<Appender> {
    let free = spare.iter().position(|block| Arc::strong_count(block) == 1)?;
    Appender::reuse(spare.swap_remove(free), place)
}

/// A reader's side: the blocks as a shard last saw them.
pub(crate) struct View {
    shared: Arc<Shared>,
    blocks: VecDeque<Arc<Block>>,
    /// Published frames as last looked at.
    seen: u64,
}

impl View {
    fn new(shared: Arc<Shared>) -> Self {
        let (seen, blocks) = (shared.frames(), shared.blocks().clone());
        Self { shared, blocks, seen }
    }

    pub(crate) fn framing(&self) -> Framing {
        self.shared.framing
    }

    /// Published frames of the stream now.
    pub(crate) fn frames(&self) -> u64 {
        self.shared.frames()
    }

    /// Whether there are frames that were published after the last [`Self::refresh`] or [`Self::is_behind`].
    pub(crate) fn is_behind(&mut self) -> bool {
        let frames = self.shared.frames();
        std::mem::replace(&mut self.seen, frames) != frames
    }

    /// Learns of new blocks. Those that it knows stay until [`Self::trim`]. True when there were some.
    pub(crate) fn refresh(&mut self) -> bool {
        self.seen = self.shared.frames();
        let known = self.newest().place();
        // Anything behind the newest block known shows as frames that it does not hold.
        if self.seen <= known.first_frame + self.newest().frames() as u64 {
            return false;
        }
        for block in self.shared.blocks().iter().filter(|block| block.place().number > known.number) {
            // A shard that slept over a whole ring has a hole here: its cursors in the old blocks are too old.
            self.blocks.push_back(block.clone());
        }
        self.newest().place().number != known.number
    }

    /// Releases blocks that the ring has released, except from `oldest` on.
    pub(crate) fn trim(&mut self, oldest: u64) {
        if self.blocks.len() == 1 {
            return;
        }
        let retained = self.shared.blocks().front().map_or(u64::MAX, |block| block.place().number);
        while self.blocks.len() > 1 && self.blocks[0].place().number < retained.min(oldest) {
            self.blocks.pop_front();
        }
    }

    fn newest(&self) -> &Arc<Block> {
        // Never empty: made with at least one, and `trim` leaves one.
        &self.blocks[self.blocks.len() - 1]
    }

    /// Whether the block that `cursor` is in has the newest frames, as far as this view has been refreshed.
    pub(crate) fn is_newest(&self, cursor: Cursor) -> bool {
        self.newest().place().number == cursor.block
    }

    fn find(&self, number: u64) -> Option<usize> {
        // Nearly all look for the newest.
        if self.newest().place().number == number {
            return Some(self.blocks.len() - 1);
        }
        self.blocks.binary_search_by_key(&number, |block| block.place().number).ok()
    }

    /// The boundary behind the newest frame, as far as this view has been refreshed.
    pub(crate) fn head(&self) -> Cursor {
        let newest = self.newest();
        Cursor { block: newest.place().number, offset: newest.published() }
    }

    /// Frames of the stream before the boundary `cursor`, which [`Self::head`] returned, or the frame that
    /// it is in.
    pub(crate) fn frame_of(&self, cursor: Cursor) -> Option<u64> {
        let block = &self.blocks[self.find(cursor.block)?];
        Some(block.place().first_frame + block.frame_at(cursor.offset) as u64)
    }

    /// Bytes of the stream before `cursor`.
    pub(crate) fn byte_of(&self, cursor: Cursor) -> Option<u64> {
        Some(self.blocks[self.find(cursor.block)?].place().first_byte + cursor.offset as u64)
    }

    /// The contiguous bytes from `cursor` on, and the cursor normalised to them; empty at the head. `None`
    /// if the ring has released them.
    pub(crate) fn next(&self, cursor: Cursor) -> Option<(Cursor, &[u8])> {
        let index = self.find(cursor.block)?;
        let bytes = self.blocks[index].bytes(cursor.offset, BLOCK_BYTES);
        if !bytes.is_empty() {
            return Some((cursor, bytes));
        }
        let Some(next) = self.blocks.get(index + 1) else { return Some((cursor, bytes)) };
        if next.place().number != cursor.block + 1 {
            return None;
        }
        let cursor = Cursor { block: next.place().number, offset: 0 };
        Some((cursor, next.bytes(0, BLOCK_BYTES)))
    }

    /// What is missing at `cursor` to the end of the frame that it is in; empty at a boundary.
    pub(crate) fn rest_of_frame(&self, cursor: Cursor) -> Option<&[u8]> {
        let block = &self.blocks[self.find(cursor.block)?];
        if block.is_boundary(cursor.offset) {
            return Some(&[]);
        }
        Some(block.bytes(cursor.offset, block.end(block.frame_at(cursor.offset))))
    }

    /// When the frame at `cursor` was received; `None` at the head.
    pub(crate) fn time_of(&self, cursor: Cursor) -> Option<u64> {
        let (cursor, bytes) = self.next(cursor)?;
        let block = &self.blocks[self.find(cursor.block)?];
        (!bytes.is_empty()).then(|| block.time(block.frame_at(cursor.offset)))
    }

    /// Where frame `frame` of the stream begins, or the oldest retained one behind it.
    pub(crate) fn cursor_of_frame(&self, frame: u64) -> Cursor {
        let index = self.blocks.partition_point(|block| block.place().first_frame <= frame).saturating_sub(1);
        let block = &self.blocks[index];
        let frames = frame.saturating_sub(block.place().first_frame).min(block.frames() as u64) as usize;
        let offset = if frames == 0 { 0 } else { block.end(frames - 1) };
        Cursor { block: block.place().number, offset }
    }

    /// The oldest frame that is retained.
    pub(crate) fn oldest_frame(&self) -> u64 {
        self.blocks[0].place().first_frame
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn small(framing: Framing) -> Ring {
        Ring::with_blocks(framing, 3, 32, 4)
    }

    fn read_all(view: &View, mut cursor: Cursor) -> (Vec<u8>, Cursor) {
        let mut out = Vec::new();
        while let Some((at, bytes)) = view.next(cursor) {
            cursor = Cursor { offset: at.offset + bytes.len(), ..at };
            if bytes.is_empty() {
                break;
            }
            out.extend_from_slice(bytes);
        }
        (out, cursor)
    }

    #[test]
    fn a_reader_starts_at_the_next_frame() {
        let mut ring = small(Framing::Len16);
        ring.push(b"old", 1);
        ring.publish();
        let mut view = ring.view();
        let cursor = view.head();
        ring.push(b"unpublished", 2);
        view.refresh();
        assert_eq!(read_all(&view, cursor).0, b"");
        ring.publish();
        view.refresh();
        assert_eq!(read_all(&view, cursor).0, b"\0\x0bunpublished");
    }

    #[test]
    fn what_no_framing_can_tell_is_refused() {
        assert!(!small(Framing::None).push(b"", 0));
        assert!(small(Framing::Len16).push(b"", 0));
        assert!(!small(Framing::Len16).push(&[0; 65_535], 0));
    }

    #[test]
    fn a_cursor_whose_block_has_gone_says_so() {
        let mut ring = small(Framing::None);
        let mut view = ring.view();
        let cursor = view.head();
        for _ in 0..4 {
            ring.push(&[1; 32], 0);
            ring.publish();
        }
        view.refresh();
        // The view still holds the first block, and knows that what follows it is not the next.
        view.trim(u64::MAX);
        assert!(view.next(cursor).is_none());
        assert_eq!(view.oldest_frame(), 1);
        assert_eq!(view.cursor_of_frame(0), Cursor { block: 1, offset: 0 });
    }

    #[test]
    fn the_ring_never_holds_more_than_its_bound() {
        let mut ring = small(Framing::None);
        for round in 0..100 {
            ring.push(&[round; 20], 0);
            ring.publish();
            assert!(ring.shared.blocks().len() <= 3 && ring.spare.len() <= 2);
        }
    }

    #[test]
    fn memory_is_taken_before_it_is_needed_and_none_twice() {
        const BLOCKS: usize = 4;
        let mut ring = Ring::new(Framing::None, (BLOCKS - 1) * BLOCK_BYTES);
        let stock: Vec<_> = ring.stock.take().unwrap().iter().collect();
        let (made, again) = channel();
        let mut known: Vec<_> = stock.iter().map(Arc::as_ptr).collect();
        known.push(Arc::as_ptr(ring.appender.block()));
        assert_eq!(known.len(), BLOCKS + SPARE);
        stock.into_iter().for_each(|block| made.send(block).unwrap());
        ring.stock = Some(again);
        // A reader that keeps up releases a block once it has seen the next.
        let mut view = ring.view();
        for _ in 0..4 * BLOCKS {
            ring.push(&[0; 1 << 10], 0);
            ring.next_block();
            assert!(known.contains(&Arc::as_ptr(ring.appender.block())), "of those made ahead");
            ring.push(b"next", 0);
            ring.publish();
            view.refresh();
            view.trim(view.head().block);
        }
        assert!(ring.stock.is_none());
    }

    #[test]
    fn the_rest_of_a_frame_ends_at_its_end() {
        let mut ring = small(Framing::None);
        ring.push(b"abc", 7);
        ring.push(b"def", 8);
        ring.publish();
        let view = ring.view();
        let at = |offset| Cursor { block: 0, offset };
        assert_eq!(view.rest_of_frame(at(1)), Some(&b"bc"[..]));
        assert_eq!(view.rest_of_frame(at(3)), Some(&b""[..]));
        assert_eq!(view.rest_of_frame(at(5)), Some(&b"f"[..]));
        assert_eq!((view.time_of(at(2)), view.time_of(at(3)), view.time_of(at(6))), (Some(7), Some(8), None));
        assert_eq!(view.frame_of(at(5)), Some(1));
    }

    proptest! {
        /// Whatever is pushed, published and read in whatever order: a reader gets the stream from its start
        /// without a missing or repeated byte, as long as it keeps up.
        #[test]
        fn readers_that_keep_up_get_the_whole_stream(
            frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..14), any::<bool>(), any::<bool>()), 0..80),
            start in 0usize..20,
        ) {
            let mut ring = small(Framing::Len16);
            let mut reader: Option<(View, Cursor)> = None;
            let (mut expected, mut got) = (Vec::new(), Vec::new());
            for (index, (payload, publish, read)) in frames.iter().enumerate() {
                if index == start {
                    ring.publish();
                    let view = ring.view();
                    let head = view.head();
                    reader = Some((view, head));
                }
                prop_assert!(ring.push(payload, index as u64));
                if reader.is_some() {
                    Framing::Len16.append_frame(payload, &mut expected);
                }
                if *publish {
                    ring.publish();
                }
                if let Some((view, cursor)) = &mut reader && (*read || index % 3 == 0) {
                    ring.publish();
                    view.refresh();
                    let (bytes, at) = read_all(view, *cursor);
                    got.extend(bytes);
                    *cursor = at;
                    view.trim(at.block);
                }
            }
            ring.publish();
            if let Some((mut view, cursor)) = reader {
                view.refresh();
                got.extend(read_all(&view, cursor).0);
                prop_assert_eq!(got, expected);
            }
        }

        /// Wherever a cursor is cut: the rest of its frame, then the following frames, are what was pushed.
        #[test]
        fn every_cut_is_mended_at_a_boundary(
            sizes in prop::collection::vec(1usize..10, 1..4),
            cut in 0usize..40,
        ) {
            let mut ring = small(Framing::None);
            for (index, size) in sizes.iter().enumerate() {
                ring.push(&vec![index as u8; *size], 0);
            }
            ring.publish();
            let view = ring.view();
            let total: usize = sizes.iter().sum();
            let offset = cut.min(total);
            let cursor = Cursor { block: 0, offset };
            let rest = view.rest_of_frame(cursor).unwrap().len();
            let frame = view.frame_of(cursor).unwrap() as usize;
            let boundary: usize = sizes[..frame].iter().sum();
            if rest == 0 {
                prop_assert_eq!(boundary, offset);
            } else {
                prop_assert_eq!(boundary + sizes[frame], offset + rest);
            }
            prop_assert_eq!(view.cursor_of_frame(frame as u64).offset, boundary);
        }
    }
}
