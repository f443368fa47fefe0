//! A body that arrives, cut into blocks.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use expressway_metrics::count;
use expressway_web::Exchange;
use expressway_web::blocks::{BlockKey, BlockSource, Buffer};

use super::{Plan, within};
use crate::object::Object;
use crate::relay::Relay;

/// Octets that are taken from the origin's exchange at a time, at most.
const CHUNK: usize = 256 << 10;

/// A body that arrives.
pub(super) struct Body<'a> {
    pub(super) plan: &'a Plan,
    pub(super) object: &'a Object,
    pub(super) length: Option<u64>,
    pub(super) start: u64,
    pub(super) done: u64,
    /// It is short enough so far.
    pub(super) is_kept: bool,
    /// The object is found by others once the body is complete.
    pub(super) is_whole: bool,
}

impl Body<'_> {
    /// Takes it to its end: its octets. `None` if it broke off, or was not as long as announced.
    pub(super) async fn take(&mut self, mut exchange: Exchange, relay: &Relay) -> Option<u64> {
        let cache = &self.plan.site.cache;
        let fill = &self.plan.fill;
        let (timeout, block_bytes) = (cache.options.fill_timeout, cache.block_bytes);
        let mut buffer: Option<(Buffer, usize)> = None;
        loop {
            if fill.readers() == 0 && !self.may_go_on_alone() {
                count(&cache.counters.cache_fill_abandoned);
                return None;
            }
            let chunk = within(
                timeout,
                poll_fn(|context| {
                    relay.set_task(context.waker());
                    exchange.poll_body(CHUNK)
                }),
            );
            let mut chunk = match chunk.await? {
                Some(Ok(chunk)) => chunk,
                Some(Err(_)) => return None,
                None => break,
            };
            cache.counters.cache_fill_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            if self.length.is_some_and(|length| self.done + chunk.len() as u64 > length) {
                return None;
            }
            while !chunk.is_empty() {
                let (mut open, filled) =
                    buffer.take().unwrap_or_else(|| (cache.store.blocks().buffer(self.next_block()), 0));
                let more = chunk.len().min(open.octets().len() - filled);
                open.octets()[filled..filled + more].copy_from_slice(&chunk.split_to(more));
                self.done += more as u64;
                if filled + more == open.octets().len() {
                    let is_last = self.length == Some(self.done);
                    self.complete(open, block_bytes, is_last).await?;
                } else {
                    buffer = Some((open, filled + more));
                }
            }
        }
        if self.length.is_some_and(|length| self.done != length) {
            return None;
        }
        if let Some((mut open, filled)) = buffer {
            open.truncate(filled);
            // Of a body of unknown length: the last block has no more memory than it needs.
            let mut last = cache.store.blocks().buffer(filled);
            last.octets().copy_from_slice(open.octets());
            self.complete(last, block_bytes, true).await?;
        } else if self.length.is_none() {
            self.keep_whole();
        }
        Some(self.done)
    }

    /// Has the object found by others, now that it is complete. Before its last reader can know that.
    fn keep_whole(&self) {
        if self.is_whole && self.is_kept {
            self.plan.keep(&Arc::new(Object { length: self.done, ..self.object.clone() }));
        }
    }

    /// Octets of the block that comes next.
    fn next_block(&self) -> usize {
        let block_bytes = self.plan.site.cache.block_bytes;
        let left = self.length.map_or(u64::MAX, |length| length - self.done);
        usize::try_from(left).unwrap_or(usize::MAX).min(block_bytes)
    }

    /// Whether little enough is left for it to be worth having though nobody waits.
    fn may_go_on_alone(&self) -> bool {
        let cache = &self.plan.site.cache;
        let most = cache.slice.max(cache.block_bytes as u64);
        self.length.is_some_and(|length| length - self.done <= most)
    }

    /// Hands a block on: to readers, the block cache and the disk.
    async fn complete(&mut self, buffer: Buffer, block_bytes: usize, is_last: bool) -> Option<()> {
        let cache = &self.plan.site.cache;
        let fill = &self.plan.fill;
        let block = buffer.freeze();
        let at = self.start + self.done - block.len() as u64;
        let index = at / block_bytes as u64;
        let is_too_long =
            self.length.is_none() && (self.done > cache.options.max_whole || !cache.has_room_for(0));
        if self.is_kept && is_too_long {
            // It goes on for those who read it, at the pace of the slowest.
            self.is_kept = false;
            cache.table.forget_head(fill);
        }
        if self.is_kept {
            cache
                .store
                .blocks()
                .keep(BlockKey { source: BlockSource::object(self.object.version), index }, &block);
            if let (Some(disk), Ok(index)) = (&cache.disk, u32::try_from(index)) {
                disk.write_block(self.object.version, index, &block);
            }
            if is_last {
                self.keep_whole();
            }
        }
        fill.push(block);
        if !self.is_kept {
            let most = usize::try_from(cache.slice).unwrap_or(usize::MAX).max(2 * block_bytes);
            within(cache.options.fill_timeout, poll_fn(|context| fill.poll_shrink(most, context.waker())))
                .await?;
        }
        Some(())
    }
}
