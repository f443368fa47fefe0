//! A path being looked up and a file being served.

use std::sync::Arc;
use std::task::{Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

use super::block::BlockKey;
use super::lookup::{LookupError, Tree};
use super::open::OpenFile;
use super::pool::{Blocked, Submitted, Ticket};
use super::respond::{Answer, Part, Question, error, respond};
use super::store::{FileStore, Job, Outcome};
use crate::metrics::count;
use crate::{BodyError, ResponseHead, Wake};

/// A slice shorter than this part of its block is copied: it would keep the whole block in memory until the
/// client acknowledges it, and a request for many small ranges would pin as many blocks.
const PINNED_SHARE: usize = 16;

/// What an exchange waits for in the reader pool.
enum Wait {
    Nothing,
    Ticket(Ticket<Job, Outcome>),
    Blocked(Blocked<Job, Outcome>),
}

/// One request for a file.
pub(crate) struct FileExchange {
    store: Arc<FileStore>,
    wake: Wake,
    wait: Wait,
    head: Option<ResponseHead>,
    state: State,
}

enum State {
    /// A reader thread looks the path up.
    Looking(Box<Looking>),
    /// The body is in memory.
    Fixed(Bytes),
    /// The body is in a file.
    File(FileBody),
}

/// What is needed to answer once the path is found.
struct Looking {
    tree: Arc<Tree>,
    path: Arc<[u8]>,
    method: Method,
    headers: HeaderMap,
    query: Option<String>,
}

/// Where in the file's parts the body is.
struct FileBody {
    file: Arc<OpenFile>,
    part: Part,
    rest: std::vec::IntoIter<Part>,
    /// Octets not yet handed out.
    remaining: u64,
    /// The block that the next octets come from.
    current: Option<(u64, Bytes)>,
    /// The last block came from the disk, so the next ones are read ahead.
    cold: bool,
    failed: Option<BodyError>,
}

impl FileExchange {
    /// An exchange whose answer is known.
    pub(crate) fn new(store: Arc<FileStore>, wake: Wake, answer: Answer) -> Self {
        let (head, state) = State::new(answer);
        Self { store, wake, wait: Wait::Nothing, head: Some(head), state }
    }

    /// An exchange whose path a reader thread has to look up.
    pub(crate) fn looking(
        store: Arc<FileStore>,
        tree: Arc<Tree>,
        wake: Wake,
        question: Question<'_>,
        path: &[u8],
    ) -> Self {
        let looking = Looking {
            tree,
            path: path.into(),
            method: question.method.clone(),
            headers: question.headers.clone(),
            query: question.query.map(str::to_owned),
        };
        Self { store, wake, wait: Wait::Nothing, head: None, state: State::Looking(Box::new(looking)) }
    }

    /// Whether the answer, which rests on an open file found earlier, still describes that file: its first
    /// block is cached under its identity, or the file says so now.
    ///
    /// Keeps a file that is rewritten in place within the open-file cache's validity from being announced
    /// with validators that its content would then contradict.
    pub(crate) fn is_current(&mut self) -> bool {
        let State::File(body) = &mut self.state else { return true };
        let Some(start) = body.first_offset() else { return true };
        let index = start / self.store.blocks.block_bytes() as u64;
        let key = BlockKey { file: body.file.identity, index };
        match self.store.blocks.cached(&key) {
            Some(block) => {
                body.current = Some((index, block));
                true
            }
            None => body.file.is_unchanged().unwrap_or(false),
        }
    }

    pub(crate) fn poll_head(&mut self) -> Poll<ResponseHead> {
        if let State::Looking(looking) = &self.state {
            let answer = ready!(looking.poll(&self.store, &self.wake, &mut self.wait));
            let (head, state) = State::new(answer);
            self.state = state;
            self.head = Some(head);
        }
        self.head.take().map_or(Poll::Pending, Poll::Ready)
    }

    pub(crate) fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        match &mut self.state {
            State::Looking(_) => Poll::Pending,
            State::Fixed(body) if body.is_empty() => Poll::Ready(None),
            State::Fixed(body) => Poll::Ready(Some(Ok(body.split_to(body.len().min(max))))),
            State::File(body) => body.poll(max, &self.store, &self.wake, &mut self.wait),
        }
    }

    pub(crate) fn release(&mut self) {
        if let State::File(body) = &mut self.state {
            body.current = None;
        }
    }

    pub(crate) fn remaining(&self) -> Option<u64> {
        match &self.state {
            State::Looking(_) => None,
            State::Fixed(body) => Some(body.len() as u64),
            State::File(body) => Some(body.remaining),
        }
    }
}

impl State {
    fn new(answer: Answer) -> (ResponseHead, Self) {
        match answer {
            Answer::Fixed(head, body) => (head, Self::Fixed(body)),
            Answer::File(head, file, parts) => {
                let remaining = parts.iter().map(Part::length).sum();
                let rest = parts.into_iter();
                let part = Part::Octets(Bytes::new());
                let body = FileBody { file, part, rest, remaining, current: None, cold: false, failed: None };
                (head, Self::File(body))
            }
        }
    }
}

impl Looking {
    fn poll(&self, store: &FileStore, wake: &Wake, wait: &mut Wait) -> Poll<Answer> {
        let blocked = match std::mem::replace(wait, Wait::Nothing) {
            Wait::Nothing => None,
            Wait::Blocked(blocked) => Some(blocked),
            Wait::Ticket(ticket) => {
                let Some(outcome) = ticket.poll() else {
                    *wait = Wait::Ticket(ticket);
                    return Poll::Pending;
                };
                return Poll::Ready(self.answer(outcome));
            }
        };
        let key = Job::Lookup(self.tree.root.id, Arc::clone(&self.path));
        *wait = store.pool.submit(key, wake, blocked, store.lookup_job(&self.tree, &self.path)).into();
        Poll::Pending
    }

    fn answer(&self, outcome: Outcome) -> Answer {
        let status = match outcome {
            Outcome::Found(Ok(found)) => {
                let question =
                    Question { method: &self.method, headers: &self.headers, query: self.query.as_deref() };
                return respond(&self.tree.config, question, &found);
            }
            Outcome::Found(Err(LookupError::Status(status))) => status,
            Outcome::Found(Err(LookupError::Exhausted | LookupError::WouldBlock))
            | Outcome::Block(_)
            | Outcome::Lost => StatusCode::SERVICE_UNAVAILABLE,
        };
        error(&self.method, status, HeaderMap::new())
    }
}

impl FileBody {
    /// The offset in the file of the first octet to come from it.
    fn first_offset(&self) -> Option<u64> {
        self.rest.as_slice().iter().find_map(|part| match part {
            Part::Span(span) => Some(span.start),
            Part::Octets(_) => None,
        })
    }

    fn poll(
        &mut self,
        max: usize,
        store: &FileStore,
        wake: &Wake,
        wait: &mut Wait,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(error) = &self.failed {
            return Poll::Ready(Some(Err(error.clone())));
        }
        while self.part.length() == 0 {
            let Some(part) = self.rest.next() else { return Poll::Ready(None) };
            self.part = part;
        }
        let chunk = match &mut self.part {
            Part::Octets(octets) => octets.split_to(octets.len().min(max)),
            Part::Span(span) => {
                let span = span.clone();
                let block_bytes = store.blocks.block_bytes() as u64;
                let index = span.start / block_bytes;
                let last = (span.end - 1) / block_bytes;
                match ready!(self.poll_block(index, last, store, wake, wait)) {
                    Ok(block) => self.advance(&block, (span.start % block_bytes) as usize, max),
                    Err(error) => {
                        self.current = None;
                        self.failed = Some(error.clone());
                        return Poll::Ready(Some(Err(error)));
                    }
                }
            }
        };
        self.remaining -= chunk.len() as u64;
        Poll::Ready(Some(Ok(chunk)))
    }

    /// Takes the next chunk from `block`, and lets the block go once it is used up.
    fn advance(&mut self, block: &Bytes, offset: usize, max: usize) -> Bytes {
        let Part::Span(span) = &mut self.part else { return Bytes::new() };
        let rest = usize::try_from(span.end - span.start).unwrap_or(usize::MAX);
        let length = max.min(rest).min(block.len() - offset);
        span.start += length as u64;
        if offset + length == block.len() || length == rest {
            self.current = None;
        }
        if length < block.len() / PINNED_SHARE {
            return Bytes::copy_from_slice(&block[offset..offset + length]);
        }
        block.slice(offset..offset + length)
    }

    /// The block of that index; `last` bounds how far is read ahead.
    fn poll_block(
        &mut self,
        index: u64,
        last: u64,
        store: &FileStore,
        wake: &Wake,
        wait: &mut Wait,
    ) -> Poll<Result<Bytes, BodyError>> {
        if let Some((current, block)) = &self.current
            && *current == index
        {
            return Poll::Ready(Ok(block.clone()));
        }
        let key = BlockKey { file: self.file.identity, index };
        let blocked = match std::mem::replace(wait, Wait::Nothing) {
            Wait::Ticket(ticket) => {
                let Some(outcome) = ticket.poll() else {
                    *wait = Wait::Ticket(ticket);
                    return Poll::Pending;
                };
                let Outcome::Block(result) = outcome else { return Poll::Ready(Err(BodyError::Stopped)) };
                self.cold = true;
                return Poll::Ready(result.inspect(|block| self.enter(index, block, last, store)));
            }
            Wait::Blocked(blocked) => Some(blocked),
            Wait::Nothing => None,
        };
        let retried = blocked.is_some();
        if let Some(block) = store.blocks.cached(&key) {
            self.enter(index, &block, last, store);
            return Poll::Ready(Ok(block));
        }
        if !retried {
            count(&store.blocks.counters.block_cache_misses);
        }
        if let Some(ticket) = store.pool.join(&Job::Block(key), wake) {
            *wait = Wait::Ticket(ticket);
            return Poll::Pending;
        }
        let read = if store.try_on_worker { store.blocks.read_now(&self.file, index) } else { Ok(None) };
        match read {
            Ok(Some(block)) => {
                self.cold = false;
                self.enter(index, &block, last, store);
                return Poll::Ready(Ok(block));
            }
            Ok(None) => {}
            Err(error) => return Poll::Ready(Err(error)),
        }
        let (blocks, file) = (Arc::clone(&store.blocks), Arc::clone(&self.file));
        let work = move || Outcome::Block(blocks.read(&file, index));
        *wait = store.pool.submit(Job::Block(key), wake, blocked, work).into();
        Poll::Pending
    }

    /// Makes `block` the current one and, if the file comes from the disk, has the next ones read ahead.
    fn enter(&mut self, index: u64, block: &Bytes, last: u64, store: &FileStore) {
        self.current = Some((index, block.clone()));
        if !self.cold {
            return;
        }
        for ahead in index + 1..=last.min(index + store.readahead) {
            let key = BlockKey { file: self.file.identity, index: ahead };
            if !store.blocks.holds(&key) {
                let (blocks, file) = (Arc::clone(&store.blocks), Arc::clone(&self.file));
                store.pool.prefetch(Job::Block(key), move || Outcome::Block(blocks.read(&file, ahead)));
            }
        }
    }
}

impl From<Submitted<Job, Outcome>> for Wait {
    fn from(submitted: Submitted<Job, Outcome>) -> Self {
        match submitted {
            Submitted::Ticket(ticket) => Self::Ticket(ticket),
            Submitted::Full(blocked) => Self::Blocked(blocked),
        }
    }
}
