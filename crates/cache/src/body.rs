//! The body of a response from a stored object, block by block.
//!
//! A block comes from where it is cheapest: the fetch that is being read from, the block cache, a fetch of the same slice,
//! the disk, and last a fetch of its own.

use std::cell::OnceCell;
use std::sync::Arc;
use std::task::{Poll, Waker, ready};

use bytes::{Buf, Bytes};
use expressway_metrics::count;
use expressway_web::blocks::{Block, BlockKey, BlockSource, Hold, lend};
use expressway_web::files::Reading;
use expressway_web::memory::Account;
use expressway_web::parts::{BodyParts, Part};
use expressway_web::{BodyError, RequestHead, Wake};

use crate::disk::Id;
use crate::fill::{Joined, Kind, Plan, Progress, Ticket};
use crate::key::Key;
use crate::object::Object;
use crate::respond::UNKNOWN;
use crate::site::SiteShared;

/// What a body is read with.
#[derive(Clone, Copy)]
pub(crate) struct ReadContext<'a> {
    pub(crate) site: &'a Arc<SiteShared>,
    pub(crate) key: &'a Key,
    /// To fetch what is missing with; without it what is missing is lost.
    pub(crate) request: Option<&'a Arc<RequestHead>>,
    pub(crate) wake: &'a Wake,
    /// Made when something is waited for.
    pub(crate) waker: &'a OnceCell<Waker>,
    pub(crate) account: Option<&'a Account>,
}

/// Where in an object's parts the body is.
pub(crate) struct ObjectBody {
    object: Arc<Object>,
    part: Part,
    rest: BodyParts,
    /// Octets not yet handed out; `None` while the object's length is not known.
    remaining: Option<u64>,
    current: Option<Current>,
    /// A fetch that is read from.
    ticket: Option<Ticket>,
    reading: Option<(u64, Reading)>,
    /// The block that was fetched last, or could not be read: it is fetched once.
    tried: Option<u64>,
    failed: Option<BodyError>,
}

struct Current {
    index: u64,
    block: Block,
    hold: Option<Hold>,
}

impl ObjectBody {
    pub(crate) fn new(object: Arc<Object>, parts: Option<BodyParts>, ticket: Option<Ticket>) -> Self {
        let remaining = parts.as_ref().map(BodyParts::length);
        Self {
            object,
            part: Part::Octets(Bytes::new()),
            // An object of unknown length is read until its end is found.
            rest: parts.unwrap_or_else(|| BodyParts::single(0..UNKNOWN)),
            remaining,
            current: None,
            ticket,
            reading: None,
            tried: None,
            failed: None,
        }
    }

    pub(crate) fn remaining(&self) -> Option<u64> {
        self.remaining
    }

    /// The block that the body begins with, if that is all it needs of the object.
    pub(crate) fn set_first(&mut self, index: u64, block: Block) {
        self.current = Some(Current { index, block, hold: None });
    }

    pub(crate) fn poll(
        &mut self,
        max: usize,
        context: ReadContext<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(error) = &self.failed {
            return Poll::Ready(Some(Err(error.clone())));
        }
        if !self.has_part() {
            return Poll::Ready(None);
        }
        let chunk = match &self.part {
            Part::Octets(octets) => {
                let octets = octets.slice(..octets.len().min(max));
                context.account.map_or_else(|| octets.clone(), |account| account.own(octets.clone()))
            }
            Part::Span(span) => {
                let span = span.clone();
                match ready!(self.poll_span(span, max, context)) {
                    Ok(Some(chunk)) => chunk,
                    Ok(None) => {
                        self.part = Part::Octets(Bytes::new());
                        self.remaining = Some(0);
                        return Poll::Ready(None);
                    }
                    Err(error) => {
                        count(&context.site.cache.counters.cache_body_lost);
                        self.release();
                        self.failed = Some(error.clone());
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
        };
        self.advance(chunk.len(), context);
        Poll::Ready(Some(Ok(chunk)))
    }

    /// The same, copied to the end of `out`. A block that is there is not held for it.
    pub(crate) fn poll_copy(
        &mut self,
        max: usize,
        out: &mut Vec<u8>,
        context: ReadContext<'_>,
    ) -> Poll<Option<Result<(), BodyError>>> {
        let block_bytes = context.site.cache.block_bytes as u64;
        if self.has_part()
            && let Part::Span(span) = &self.part
            && let Some(current) = &self.current
            && current.index == span.start / block_bytes
        {
            let within = (span.start % block_bytes) as usize;
            let octets = usize::try_from(span.end - span.start).unwrap_or(usize::MAX).min(max);
            if let Some(octets) = current.block.get(within..within.saturating_add(octets)) {
                out.extend_from_slice(octets);
                let octets = octets.len();
                self.advance(octets, context);
                return Poll::Ready(Some(Ok(())));
            }
        }
        self.poll(max, context).map_ok(|chunk| out.extend_from_slice(&chunk))
    }

    /// Makes sure that something is left of the current part; false at the end of the body.
    fn has_part(&mut self) -> bool {
        while self.part.length() == 0 {
            let Some(part) = self.rest.next() else { return false };
            self.part = part;
        }
        true
    }

    /// Takes note that so many octets were handed out.
    fn advance(&mut self, octets: usize, context: ReadContext<'_>) {
        self.remaining = self.remaining.map(|remaining| remaining - octets as u64);
        match &mut self.part {
            Part::Octets(rest) => rest.advance(octets),
            Part::Span(span) => span.start += octets as u64,
        }
        let served = &context.site.cache.counters.cache_served_bytes;
        served.fetch_add(octets as u64, std::sync::atomic::Ordering::Relaxed);
    }

    /// Octets of a span; `None` if an object of unknown length turned out to end before it.
    fn poll_span(
        &mut self,
        span: std::ops::Range<u64>,
        max: usize,
        context: ReadContext<'_>,
    ) -> Poll<Result<Option<Bytes>, BodyError>> {
        let block_bytes = context.site.cache.block_bytes as u64;
        let index = span.start / block_bytes;
        let (block, hold) = match self.current.take() {
            Some(current) if current.index == index => (current.block, current.hold),
            _ => match ready!(self.poll_block(index, &span, context)) {
                Ok(Some(block)) => (block, None),
                Ok(None) => return Poll::Ready(Ok(None)),
                Err(error) => return Poll::Ready(Err(error)),
            },
        };
        let within = (span.start - index * block_bytes) as usize;
        let end = within.saturating_add(max).min(block.len());
        let end = (end as u64).min(span.end - index * block_bytes) as usize;
        if within >= end {
            // A block that is shorter than its place: of an object of unknown length it is the last one.
            return Poll::Ready(if self.object.length == UNKNOWN {
                Ok(None)
            } else {
                Err(BodyError::Changed)
            });
        }
        let is_used_up = end == block.len() || index * block_bytes + end as u64 == span.end;
        let (chunk, hold) = lend(&block, hold, within..end, is_used_up, context.account);
        self.current = hold.map(|hold| Current { index, block, hold: Some(hold) });
        Poll::Ready(Ok(Some(chunk)))
    }

    /// The block of that index, of which `span` is needed. `None`: the object ends before it.
    fn poll_block(
        &mut self,
        index: u64,
        span: &std::ops::Range<u64>,
        context: ReadContext<'_>,
    ) -> Poll<Result<Option<Block>, BodyError>> {
        let cache = &context.site.cache;
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let key = BlockKey { source: BlockSource::object(self.object.version), index };
        let extent = cache.extent(&self.object, index);
        let is_unknown = self.object.length == UNKNOWN;
        let is_right = |block: &Block| is_unknown || block.len() as u64 == extent;
        loop {
            if let Some(ticket) = &self.ticket {
                match ready!(ticket.poll_block(
                    number,
                    cache.block_bytes as u64,
                    context.waker.get_or_init(|| context.wake.waker())
                )) {
                    Progress::Block(block) => return Poll::Ready(Ok(Some(block))),
                    Progress::End if self.object.length == UNKNOWN => return Poll::Ready(Ok(None)),
                    Progress::Broken if self.object.length == UNKNOWN => {
                        return Poll::Ready(Err(BodyError::Stopped));
                    }
                    Progress::End | Progress::Elsewhere | Progress::Broken => self.ticket = None,
                }
            }
            if let Some((of, mut reading)) = self.reading.take()
                && of == index
            {
                let work = || disk_read(context, Id::Block(self.object.version, number));
                match reading.poll(&cache.store, key, context.account, context.wake, work) {
                    Poll::Pending => {
                        self.reading = Some((of, reading));
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(block)) if is_right(&block) => {
                        cache.store.blocks().keep(key, &block);
                        return Poll::Ready(Ok(Some(block)));
                    }
                    // Then it is fetched.
                    Poll::Ready(_) => {}
                }
            }
            if let Some(block) = cache.store.blocks().cached(&key)
                && is_right(&block)
            {
                return Poll::Ready(Ok(Some(block)));
            }
            let slice = span.start / cache.slice.max(1);
            if self.object.is_sliced
                && let Some(ticket) = cache.table.find_slice(self.object.version, slice)
            {
                // One that is over has put its blocks where they could not be found.
                if self.tried == Some(index) {
                    return Poll::Ready(Err(BodyError::Changed));
                }
                self.tried = Some(index);
                count(&cache.counters.cache_collapsed);
                self.ticket = Some(ticket);
                continue;
            }
            if cache.disk.as_ref().is_some_and(|disk| disk.has(Id::Block(self.object.version, number))) {
                self.reading = Some((index, Reading::default()));
                continue;
            }
            if !self.object.is_sliced || self.tried == Some(index) {
                if !self.object.is_sliced {
                    cache.heads.remove_version(context.key, self.object.version);
                }
                return Poll::Ready(Err(BodyError::Changed));
            }
            self.tried = Some(index);
            if !self.fetch(slice, span, context) {
                return Poll::Ready(Err(BodyError::Stopped));
            }
        }
    }

    /// Fetches a slice, and the next one ahead if it is needed as well.
    fn fetch(&mut self, slice: u64, span: &std::ops::Range<u64>, context: ReadContext<'_>) -> bool {
        let cache = &context.site.cache;
        let Some(request) = context.request else { return false };
        for slice in [slice, slice + 1] {
            let is_ahead = self.ticket.is_some();
            if is_ahead && (slice * cache.slice >= span.end || cache.has_slice(&self.object, slice)) {
                break;
            }
            let ticket = match cache.table.join_slice(context.key, self.object.version, slice) {
                Joined::First(fill, ticket) => {
                    let (ticket, background) =
                        if is_ahead { (None, Some(ticket)) } else { (Some(ticket), None) };
                    Plan {
                        site: Arc::clone(context.site),
                        fill,
                        request: Arc::clone(request),
                        kind: Kind::Slice { object: Arc::clone(&self.object), slice },
                        _background: background,
                    }
                    .start();
                    ticket
                }
                Joined::Another(ticket) if !is_ahead => Some(ticket),
                Joined::Another(_) | Joined::Full => None,
            };
            if !is_ahead {
                if ticket.is_none() {
                    return false;
                }
                self.ticket = ticket;
            }
        }
        true
    }

    /// The transport accepts nothing for now: lets go of the block unless the account has room for it.
    pub(crate) fn rest(&mut self, account: Option<&Account>) {
        let is_counted =
            self.current.as_ref().is_none_or(|current| current.hold.as_ref().is_some_and(Hold::is_counted));
        if !is_counted || account.is_some_and(Account::is_wasting) {
            self.current = None;
        }
    }

    /// Lets go of the block that it reads from. A fetch is kept: what it holds is bounded by itself.
    pub(crate) fn release(&mut self) {
        self.current = None;
        self.reading = None;
    }
}

fn disk_read(context: ReadContext<'_>, id: Id) -> Box<dyn FnOnce() -> Result<Block, BodyError> + Send> {
    match &context.site.cache.disk {
        Some(disk) => Box::new(disk.read(id, context.site.cache.store.blocks())),
        None => Box::new(|| Err(BodyError::Changed)),
    }
}
