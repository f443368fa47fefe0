//! A file that is compressed once for all who ask for it.

use std::sync::Arc;
use std::task::{Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;

use super::Workshop;
use super::decision::recode;
use super::encoder::Encoder;
use crate::blocks::{Block, BlockKey, Hold, hold_block, lend};
use crate::files::{Encoding, FileStore, OpenFile, Reading};
use crate::memory::{Account, Reservation};
use crate::{BodyError, Exchange, ResponseHead};
use expressway_metrics::count;

/// The longest file that is compressed by one job, in octets: some ten milliseconds of a reader thread.
pub(crate) const MAX_WHOLE: u64 = 1 << 20;

/// A response whose body is a file in a coding.
pub(crate) struct Whole {
    /// The response as it is, until it is known whether it can be replaced.
    plain: Option<Box<(Exchange, ResponseHead)>>,
    file: Arc<OpenFile>,
    coding: (Encoding, u8),
    workshop: Workshop,
    reading: Reading,
    /// What the next octets come from, and what counts for it.
    block: Option<Block>,
    hold: Option<Hold>,
    offset: usize,
    length: usize,
}

impl Whole {
    /// Replaces a response, of which nothing but the head was taken, by `file` in a coding.
    pub(crate) fn new(
        plain: (Exchange, ResponseHead),
        file: Arc<OpenFile>,
        coding: (Encoding, u8),
        workshop: &Workshop,
    ) -> Self {
        Self {
            plain: Some(Box::new(plain)),
            file,
            coding,
            workshop: workshop.clone(),
            reading: Reading::default(),
            block: None,
            hold: None,
            offset: 0,
            length: 0,
        }
    }

    /// The head, once. The error is the response as it is, for lack of memory or because the file cannot be read.
    pub(crate) fn poll_head(&mut self) -> Poll<Result<ResponseHead, Box<(Exchange, ResponseHead)>>> {
        if self.plain.is_none() {
            return Poll::Pending;
        }
        let block = ready!(self.poll_block()).ok();
        let Some(plain) = self.plain.take() else { return Poll::Pending };
        let account = self.workshop.account.as_ref();
        let held = block.and_then(|block| {
            let hold = hold_block(block.memory(), block.len(), account)?;
            Some((block, hold))
        });
        let Some((block, hold)) = held else {
            count(&self.workshop.store.compress_counters.compressions_refused);
            return Poll::Ready(Err(plain));
        };
        count(&self.workshop.store.compress_counters.responses_compressed);
        self.length = block.len();
        (self.block, self.hold) = (Some(block), Some(hold));
        let (_, mut head) = *plain;
        recode(&mut head.headers, self.coding.0);
        head.headers.insert(CONTENT_LENGTH, self.length.into());
        head.body_length = Some(self.length as u64);
        Poll::Ready(Ok(head))
    }

    /// The transport takes nothing now.
    pub(crate) fn rest(&mut self) {
        if self.workshop.account.as_ref().is_some_and(Account::is_wasting) {
            self.release();
        }
    }

    pub(crate) fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.offset == self.length {
            return Poll::Ready(None);
        }
        let block = match self.block.take() {
            Some(block) => block,
            None => match ready!(self.poll_block()) {
                Ok(block) if block.len() == self.length => block,
                Ok(_) => return Poll::Ready(Some(Err(BodyError::Changed))),
                Err(error) => return Poll::Ready(Some(Err(error))),
            },
        };
        let end = self.length.min(self.offset.saturating_add(max));
        let is_used_up = end == self.length;
        let account = self.workshop.account.as_ref();
        let (octets, hold) = lend(&block, self.hold.take(), self.offset..end, is_used_up, account);
        self.offset = end;
        self.hold = hold;
        self.block = (!is_used_up).then_some(block);
        Poll::Ready(Some(Ok(octets)))
    }

    pub(crate) fn remaining(&self) -> Option<u64> {
        self.plain.is_none().then_some((self.length - self.offset) as u64)
    }

    /// Lets go of the block. It is in the cache, or is made again for the next octets.
    pub(crate) fn release(&mut self) {
        if let Some(block) = self.block.take() {
            drop(block);
            self.hold = None;
            count(&self.workshop.store.blocks().counters.blocks_released);
        }
    }

    /// The file in its coding, from the cache or from a job.
    fn poll_block(&mut self) -> Poll<Result<Block, BodyError>> {
        let Workshop { store, wake, account } = &self.workshop;
        let (encoding, level) = self.coding;
        let key = BlockKey::coded(self.file.identity, encoding, level);
        if let Some(block) = store.blocks.cached(&key) {
            self.reading = Reading::default();
            return Poll::Ready(Ok(block));
        }
        let (file, coding) = (&self.file, self.coding);
        self.reading.poll(store, key, account.as_ref(), wake, || job(store, file, coding, key))
    }
}

/// What compresses `file`, on a reader thread.
fn job(
    store: &FileStore,
    file: &Arc<OpenFile>,
    (encoding, level): (Encoding, u8),
    key: BlockKey,
) -> impl FnOnce() -> Result<Block, BodyError> + use<> {
    let (blocks, memory) = (Arc::clone(store.blocks()), Arc::clone(store.memory()));
    let (file, counters) = (Arc::clone(file), Arc::clone(&store.compress_counters));
    move || {
        if let Some(block) = blocks.peek(&key) {
            return Ok(block);
        }
        let size = file.identity.size;
        let _place = Reservation::for_a_job(&memory, Encoder::footprint(encoding, level) + size as usize);
        let failed = |error: std::io::Error| {
            tracing::warn!(%error, "compressing a file failed");
            BodyError::Stopped
        };
        let mut encoder = Encoder::new(encoding, level).map_err(failed)?;
        for index in 0..size.div_ceil(blocks.block_bytes() as u64) {
            encoder.write(&blocks.read_once(&file, index)?).map_err(failed)?;
        }
        let coded = encoder.finish().map_err(failed)?;
        count(&counters.files_compressed);
        let mut buffer = blocks.buffer(coded.len());
        buffer.octets().copy_from_slice(&coded);
        let block = buffer.freeze();
        if file.identity.age.is_kept() {
            blocks.keep(key, &block);
        }
        Ok(block)
    }
}
