//! Reading blocks of files: from the page cache at once, or waiting for the disk.

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use super::open::OpenFile;
use crate::BodyError;
use crate::blocks::{Block, BlockKey, Blocks, Buffer, held_bytes};
use crate::log_limit::LogLimit;
use expressway_metrics::count;

/// Errors of reading.
static UNREAD: LogLimit = LogLimit::new();

impl Blocks {
    /// Octets of memory that a block takes once it is read.
    pub(crate) fn memory_of(&self, file: &OpenFile, index: u64) -> usize {
        held_bytes(self.extent(file, index).1, self.block_bytes())
    }

    /// Reads a block if the page cache has all of it; `None` if a thread that may block has to read it.
    pub(crate) fn read_now(&self, file: &OpenFile, index: u64) -> Result<Option<Block>, BodyError> {
        let (offset, length) = self.extent(file, index);
        let mut buffer = self.buffer(length);
        if !self.fill_now(file, buffer.octets(), offset)? {
            return Ok(None);
        }
        count(&self.counters.block_reads_now);
        self.complete(file, index, buffer).map(Some)
    }

    /// Reads a block, waiting for the disk; or returns it if it was cached since the job was queued.
    pub(crate) fn read(&self, file: &OpenFile, index: u64) -> Result<Block, BodyError> {
        let key = BlockKey::file(file.identity, index);
        if let Some(block) = self.peek(&key) {
            return Ok(block);
        }
        let (offset, length) = self.extent(file, index);
        let mut buffer = self.buffer(length);
        self.fill(file, buffer.octets(), offset)?;
        count(&self.counters.block_reads_pooled);
        self.complete(file, index, buffer)
    }

    /// A block that is cached, or else is read, waiting for the disk, and not kept.
    pub(crate) fn read_once(&self, file: &OpenFile, index: u64) -> Result<Block, BodyError> {
        if let Some(block) = self.peek(&BlockKey::file(file.identity, index)) {
            return Ok(block);
        }
        let (offset, length) = self.extent(file, index);
        let mut buffer = self.buffer(length);
        self.fill(file, buffer.octets(), offset)?;
        count(&self.counters.block_reads_pooled);
        self.check(file, length)?;
        Ok(buffer.freeze())
    }

    /// Reads the octets in `range` alone, if the page cache has them.
    pub(crate) fn read_piece_now(
        &self,
        file: &OpenFile,
        range: Range<u64>,
    ) -> Result<Option<Bytes>, BodyError> {
        let mut octets = vec![0; (range.end - range.start) as usize];
        if !self.fill_now(file, &mut octets, range.start)? {
            return Ok(None);
        }
        count(&self.counters.piece_reads_now);
        self.check(file, octets.len())?;
        Ok(Some(octets.into()))
    }

    /// Reads the octets in `range` alone, waiting for the disk.
    pub(crate) fn read_piece(&self, file: &OpenFile, range: Range<u64>) -> Result<Bytes, BodyError> {
        let mut octets = vec![0; (range.end - range.start) as usize];
        self.fill(file, &mut octets, range.start)?;
        count(&self.counters.piece_reads_pooled);
        self.check(file, octets.len())?;
        Ok(octets.into())
    }

    /// Fills `octets` from `offset` if the page cache has all of it.
    fn fill_now(&self, file: &OpenFile, octets: &mut [u8], offset: u64) -> Result<bool, BodyError> {
        if !file.nowait.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let length = octets.len();
        let mut slices = [IoSliceMut::new(octets)];
        loop {
            match preadv2(&file.fd, &mut slices, offset, ReadWriteFlags::NOWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::OPNOTSUPP) => {
                    file.nowait.store(false, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(error) => return Err(self.failed(error)),
                // Either the page cache has only a part, or the file is shorter now: the reader finds out.
                Ok(read) => return Ok(read == length),
            }
        }
    }

    /// Fills `octets` from `offset`, waiting for the disk.
    fn fill(&self, file: &OpenFile, octets: &mut [u8], offset: u64) -> Result<(), BodyError> {
        let mut filled = 0;
        while filled < octets.len() {
            match pread(&file.fd, &mut octets[filled..], offset + filled as u64) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.failed(error)),
                Ok(0) => {
                    count(&self.counters.file_changed);
                    return Err(BodyError::Changed);
                }
                Ok(read) => filled += read,
            }
        }
        Ok(())
    }

    /// Where a block lies in its file: offset and length.
    fn extent(&self, file: &OpenFile, index: u64) -> (u64, usize) {
        let offset = index * self.block_bytes() as u64;
        let rest = file.identity.size.saturating_sub(offset);
        (offset, usize::try_from(rest).unwrap_or(usize::MAX).min(self.block_bytes()))
    }

    /// Checks that the file is still the one announced. The check comes after the read, so data affected by
    /// a change is never handed out.
    fn check(&self, file: &OpenFile, length: usize) -> Result<(), BodyError> {
        match file.is_unchanged() {
            Ok(true) => {
                self.counters.block_read_bytes.fetch_add(length as u64, Ordering::Relaxed);
                Ok(())
            }
            Ok(false) => {
                count(&self.counters.file_changed);
                Err(BodyError::Changed)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Checks the file, then shares and caches the block.
    fn complete(&self, file: &OpenFile, index: u64, mut buffer: Buffer) -> Result<Block, BodyError> {
        self.check(file, buffer.octets().len())?;
        let block = buffer.freeze();
        if file.identity.age.is_kept() {
            self.keep(BlockKey::file(file.identity, index), &block);
        }
        Ok(block)
    }

    fn failed(&self, error: Errno) -> BodyError {
        count(&self.counters.file_read_errors);
        if let Some(unsaid) = UNREAD.is_due() {
            tracing::warn!(%error, unsaid, "reading a file failed");
        }
        BodyError::Read(error.raw_os_error())
    }
}
