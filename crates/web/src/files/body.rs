//! The body of a response from a file, block by block or piece by piece.
//!
//! A body holds the block of its next bytes as long as its connection's [`Account`] has room for a whole
//! block, even if little of it is used; otherwise it hands out copies. A block that is not cached is read
//! only for a client that uses enough of it; for others, only the needed piece is read.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Poll, ready};

use bytes::{Buf, Bytes};

use super::exchange::Wait;
use super::open::OpenFile;
use super::pool::Blocked;
use super::store::{FileStore, Job, Outcome};
use crate::blocks::{Block, BlockKey, Hold, hold_block, lend};
use crate::memory::{Account, Charge};
use crate::parts::{BodyParts, Part};
use crate::{BodyError, Wake};
use expressway_metrics::count;

/// Blocks are read for a response only up to this multiple of what its client receives; beyond that only the
/// needed pieces are read. Otherwise scattered single bytes would cost a block each.
const READ_SHARE: u64 = 16;

/// Pieces of a multipart body up to this many octets are gathered into one chunk, as they would else be as many chunks.
const GATHERED_PIECE: u64 = 512;

/// Pieces that a chunk gathers at most, each of which may take a read: what bounds the work of one poll.
const GATHERED_PIECES: usize = 16;

/// What a body is read with.
#[derive(Clone, Copy)]
pub(super) struct ReadContext<'a> {
    pub(super) store: &'a FileStore,
    pub(super) wake: &'a Wake,
    pub(super) account: Option<&'a Account>,
}

/// Where in the file's parts the body is.
pub(super) struct FileBody {
    file: Arc<OpenFile>,
    part: Part,
    rest: BodyParts,
    /// Octets not yet handed out.
    remaining: u64,
    /// The block that the next octets come from.
    current: Option<Current>,
    wait: Wait<Expected>,
    /// The last block came from the disk, so the next ones are read ahead.
    cold: bool,
    /// Octets of the file handed out, and octets of blocks read for it.
    handed: u64,
    read: u64,
    failed: Option<BodyError>,
}

/// A block that a body reads from.
struct Current {
    index: u64,
    block: Block,
    hold: Hold,
}

/// What a reader was asked for, and what counts for it until it is there.
enum Expected {
    Block(Hold),
    Piece { _charge: Option<Charge> },
}

/// The next octets of a span, all of one block.
struct Next {
    /// Of the block in the file.
    index: u64,
    /// Within the file.
    range: Range<u64>,
    /// Within the block.
    within: Range<usize>,
    /// They are the last of the span.
    is_last: bool,
    /// Octets of the span that this block has.
    wanted: usize,
    /// Of the span's last block.
    last_index: u64,
}

/// What comes next, and where it is.
enum Found {
    Octets(Bytes),
    /// Octets of a block, which is held already or may have to be.
    Block(Block, Option<Hold>, Next),
}

impl Next {
    fn of(span: &Range<u64>, max: usize, block_bytes: usize) -> Self {
        let size = block_bytes as u64;
        let index = span.start / size;
        let end_here = span.end.min((index + 1) * size);
        let end = end_here.min(span.start.saturating_add(max as u64));
        let start = (span.start - index * size) as usize;
        Self {
            index,
            range: span.start..end,
            within: start..start + (end - span.start) as usize,
            is_last: end == span.end,
            wanted: (end_here - span.start) as usize,
            last_index: (span.end - 1) / size,
        }
    }
}

impl FileBody {
    pub(super) fn new(file: Arc<OpenFile>, parts: BodyParts) -> Self {
        Self {
            file,
            part: Part::Octets(Bytes::new()),
            remaining: parts.length(),
            rest: parts,
            current: None,
            wait: Wait::Nothing,
            cold: false,
            handed: 0,
            read: 0,
            failed: None,
        }
    }

    /// The file, if the body is all of it and nothing has been handed out.
    pub(super) fn whole(&self) -> Option<&Arc<OpenFile>> {
        let is_whole = !self.rest.are_many() && self.remaining == self.file.identity.size;
        is_whole.then_some(&self.file)
    }

    pub(super) fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Bytes of memory in addition to its own size and blocks.
    pub(super) fn footprint(&self) -> usize {
        self.rest.footprint()
    }

    /// See [`FileExchange::is_current`](super::FileExchange::is_current).
    pub(super) fn is_current(&mut self, store: &FileStore) -> bool {
        let Some(start) = self.rest.first_offset() else { return true };
        let index = start / store.blocks.block_bytes() as u64;
        match store.blocks.cached(&self.key(index)) {
            Some(block) => {
                self.current = Some(Current { index, block, hold: Hold::uncounted() });
                true
            }
            None => self.file.is_unchanged().unwrap_or(false),
        }
    }

    fn key(&self, index: u64) -> BlockKey {
        BlockKey::file(self.file.identity, index)
    }

    /// The next chunk of up to `max` octets, for which one block is read at most, or as many pieces as are gathered.
    pub(super) fn poll(
        &mut self,
        max: usize,
        around: ReadContext<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.gathers() {
            return self.poll_gathered(max, around);
        }
        let chunk = match ready!(self.poll_found(max, around)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            Some(Ok(Found::Octets(octets))) => own(octets, around.account),
            Some(Ok(Found::Block(block, hold, next))) => self.lend(block, hold, &next, around.account),
        };
        self.advance(chunk.len());
        Poll::Ready(Some(Ok(chunk)))
    }

    /// Whether the next piece is small and one of many.
    fn gathers(&mut self) -> bool {
        self.failed.is_none()
            && self.rest.are_many()
            && self.has_part()
            && self.part.length() <= GATHERED_PIECE
    }

    /// The next pieces in one chunk, as far as they are small and can be had at once.
    fn poll_gathered(
        &mut self,
        max: usize,
        around: ReadContext<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        let mut octets = Vec::new();
        for _ in 0..GATHERED_PIECES {
            let end = match self.poll_copy(max - octets.len(), &mut octets, around) {
                Poll::Ready(Some(Ok(()))) if octets.len() < max && self.gathers() => continue,
                Poll::Ready(Some(Ok(()))) => break,
                Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            };
            // What ends the chunk is found again by the next poll.
            if octets.is_empty() {
                return end;
            }
            break;
        }
        Poll::Ready(Some(Ok(own(octets.into(), around.account))))
    }

    /// Makes sure that something is left of the current part; false at the end of the body.
    fn has_part(&mut self) -> bool {
        while self.part.length() == 0 {
            let Some(part) = self.rest.next() else { return false };
            self.part = part;
        }
        true
    }

    /// The same, copied to the end of `out`.
    pub(super) fn poll_copy(
        &mut self,
        max: usize,
        out: &mut Vec<u8>,
        around: ReadContext<'_>,
    ) -> Poll<Option<Result<(), BodyError>>> {
        let before = out.len();
        match ready!(self.poll_found(max, around)) {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            Some(Ok(Found::Octets(octets))) => out.extend_from_slice(&octets),
            Some(Ok(Found::Block(block, _, next))) => out.extend_from_slice(&block[next.within]),
        }
        self.advance(out.len() - before);
        Poll::Ready(Some(Ok(())))
    }

    /// Takes note that so many octets were handed out.
    fn advance(&mut self, octets: usize) {
        self.remaining -= octets as u64;
        match &mut self.part {
            Part::Octets(rest) => rest.advance(octets),
            Part::Span(span) => {
                span.start += octets as u64;
                self.handed += octets as u64;
            }
        }
    }

    /// Hands out bytes of a block: a slice of it, or a copy if it may not be held or that is cheaper. It
    /// remains the current block as long as more of it is needed.
    fn lend(&mut self, block: Block, hold: Option<Hold>, next: &Next, account: Option<&Account>) -> Bytes {
        let is_used_up = next.is_last || next.within.end == block.len();
        let (chunk, hold) = lend(&block, hold, next.within.clone(), is_used_up, account);
        self.current = hold.map(|hold| Current { index: next.index, block, hold });
        chunk
    }

    /// The transport currently accepts nothing: releases the block that it reads from unless its connection
    /// has room for it.
    pub(super) fn rest(&mut self, account: &Account, store: &FileStore) {
        let is_counted = self.current.as_ref().is_none_or(|current| current.hold.is_counted());
        if !is_counted || account.is_wasting() {
            self.release(store);
        }
    }

    /// Lets go of the block that it reads from or waits for.
    pub(super) fn release(&mut self, store: &FileStore) {
        if let Wait::Ticket(_, Expected::Block(_)) = &self.wait {
            self.wait = Wait::Nothing;
            count(&store.blocks.counters.blocks_released);
        }
        if self.current.take().is_some() {
            count(&store.blocks.counters.blocks_released);
        }
    }

    /// Finds the next octets, without taking them.
    fn poll_found(&mut self, max: usize, around: ReadContext<'_>) -> Poll<Option<Result<Found, BodyError>>> {
        if let Some(error) = &self.failed {
            return Poll::Ready(Some(Err(error.clone())));
        }
        if !self.has_part() {
            return Poll::Ready(None);
        }
        let next = match &self.part {
            Part::Octets(octets) => {
                return Poll::Ready(Some(Ok(Found::Octets(octets.slice(..octets.len().min(max))))));
            }
            Part::Span(span) => Next::of(span, max, around.store.blocks.block_bytes()),
        };
        let found = ready!(self.poll_span(next, around));
        if let Err(error) = &found {
            self.current = None;
            self.failed = Some(error.clone());
        }
        Poll::Ready(Some(found))
    }

    fn poll_span(&mut self, next: Next, around: ReadContext<'_>) -> Poll<Result<Found, BodyError>> {
        if let Some(current) = self.current.take()
            && current.index == next.index
        {
            return Poll::Ready(Ok(Found::Block(current.block, Some(current.hold), next)));
        }
        let blocked = match self.wait.take() {
            Wait::Ticket(ticket, expected) => {
                let Some(outcome) = ticket.poll() else {
                    self.wait = Wait::Ticket(ticket, expected);
                    return Poll::Pending;
                };
                return Poll::Ready(self.take_in(outcome, expected, next, around));
            }
            Wait::Blocked(blocked) => Some(blocked),
            Wait::Nothing => None,
        };
        if let Some(block) = around.store.blocks.cached(&self.key(next.index)) {
            self.read_ahead(&next, around);
            return Poll::Ready(Ok(Found::Block(block, None, next)));
        }
        if blocked.is_none() {
            count(&around.store.blocks.counters.block_cache_misses);
        }
        match self.hold_unread(&next, around) {
            Some(hold) => self.poll_block(next, hold, blocked, around),
            None => self.poll_piece(next, blocked, around),
        }
    }

    /// Takes what a reader has read.
    fn take_in(
        &mut self,
        outcome: Outcome,
        expected: Expected,
        next: Next,
        around: ReadContext<'_>,
    ) -> Result<Found, BodyError> {
        match (outcome, expected) {
            (Outcome::Block(block), Expected::Block(hold)) => {
                self.cold = true;
                self.read_ahead(&next, around);
                block.map(|block| Found::Block(block, Some(hold), next))
            }
            (Outcome::Piece(octets), Expected::Piece { .. }) => {
                // The transport may accept less by now; the rest is read again.
                let most = next.within.len();
                octets.map(|octets| Found::Octets(octets.slice(..octets.len().min(most))))
            }
            _ => Err(BodyError::Stopped),
        }
    }

    /// How a block is to be held that is not read yet. `None`: it is not worth reading, or may not be held.
    fn hold_unread(&self, next: &Next, around: ReadContext<'_>) -> Option<Hold> {
        let memory = around.store.blocks.memory_of(&self.file, next.index);
        // A range that needs little of the block is no reason to read it, whatever was handed out before.
        let is_wanted = next.wanted as u64 * READ_SHARE >= memory as u64;
        (is_wanted && self.deserves(memory, next.within.len()))
            .then(|| hold_block(memory, next.within.len(), around.account))?
    }

    /// Whether a block of so many octets may be read if the client takes so many of it.
    fn deserves(&self, block: usize, taken: usize) -> bool {
        self.read + block as u64 <= READ_SHARE * (self.handed + taken as u64)
    }

    /// Reads the block, or has it read.
    fn poll_block(
        &mut self,
        next: Next,
        hold: Hold,
        blocked: Option<Blocked<Job, Outcome>>,
        around: ReadContext<'_>,
    ) -> Poll<Result<Found, BodyError>> {
        let ReadContext { store, wake, account } = around;
        let key = Job::Block(self.key(next.index));
        if let Some(ticket) = store.pool.join(&key, wake) {
            self.wait = Wait::Ticket(ticket, Expected::Block(hold));
            return Poll::Pending;
        }
        self.read += store.blocks.memory_of(&self.file, next.index) as u64;
        let read = if store.try_on_worker { store.blocks.read_now(&self.file, next.index) } else { Ok(None) };
        match read {
            Ok(Some(block)) => {
                self.cold = false;
                return Poll::Ready(Ok(Found::Block(block, Some(hold), next)));
            }
            Ok(None) => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
        let (blocks, file) = (Arc::clone(&store.blocks), Arc::clone(&self.file));
        let work = move || Outcome::Block(blocks.read(&file, next.index));
        let submitted = store.pool.submit(key, account.map_or(0, Account::id), wake, blocked, work);
        self.wait = Wait::of(submitted, Expected::Block(hold));
        Poll::Pending
    }

    /// Reads the octets alone, or has them read.
    fn poll_piece(
        &mut self,
        next: Next,
        blocked: Option<Blocked<Job, Outcome>>,
        around: ReadContext<'_>,
    ) -> Poll<Result<Found, BodyError>> {
        let ReadContext { store, wake, account } = around;
        if store.try_on_worker {
            match store.blocks.read_piece_now(&self.file, next.range.clone()) {
                Ok(Some(octets)) => return Poll::Ready(Ok(Found::Octets(octets))),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let (blocks, file, range) = (Arc::clone(&store.blocks), Arc::clone(&self.file), next.range.clone());
        let work = move || Outcome::Piece(blocks.read_piece(&file, range));
        let key = Job::Piece(self.file.identity, next.range);
        let charge = account.map(|account| account.charge(next.within.len()));
        let submitted = store.pool.submit(key, account.map_or(0, Account::id), wake, blocked, work);
        self.wait = Wait::of(submitted, Expected::Piece { _charge: charge });
        Poll::Pending
    }

    /// Has the blocks behind `next` read if the file comes from the disk.
    fn read_ahead(&mut self, next: &Next, around: ReadContext<'_>) {
        if !self.cold || !self.file.identity.age.is_kept() {
            return;
        }
        let ReadContext { store, account, .. } = around;
        for ahead in next.index + 1..=next.last_index.min(next.index + store.readahead) {
            if store.blocks.holds(&self.key(ahead)) {
                continue;
            }
            let memory = store.blocks.memory_of(&self.file, ahead);
            if !self.deserves(memory, next.within.len()) {
                break;
            }
            let (blocks, file) = (Arc::clone(&store.blocks), Arc::clone(&self.file));
            let work = move || Outcome::Block(blocks.read(&file, ahead));
            if store.pool.prefetch(Job::Block(self.key(ahead)), account.map_or(0, Account::id), work) {
                self.read += memory as u64;
            }
        }
    }
}

/// Counts octets as on their way.
fn own(octets: Bytes, account: Option<&Account>) -> Bytes {
    match account {
        None => octets,
        Some(account) => account.own(octets),
    }
}
