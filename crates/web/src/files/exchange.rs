//! A path being looked up and a file being served.

use std::sync::Arc;
use std::task::{Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

use super::body::{FileBody, ReadContext};
use super::lookup::{LookupError, Tree};
use super::open::OpenFile;
use super::pool::{Blocked, Submitted, Ticket};
use super::respond::{Answer, Question, error, respond};
use super::store::{FileStore, Job, Outcome};
use crate::memory::{Account, Charge};
use crate::{BodyError, ResponseHead, Wake};

/// A request that takes no more than so many octets beyond the usual is not counted by itself.
const USUAL: usize = 1 << 10;

/// What an exchange waits for in the reader pool.
#[derive(Default)]
pub(super) enum Wait<T> {
    #[default]
    Nothing,
    /// The outcome, and what is known of it.
    Ticket(Ticket<Job, Outcome>, T),
    Blocked(Blocked<Job, Outcome>),
}

impl<T> Wait<T> {
    /// Where a submission ended up.
    pub(super) fn of(submitted: Submitted<Job, Outcome>, about: T) -> Self {
        match submitted {
            Submitted::Ticket(ticket) => Self::Ticket(ticket, about),
            Submitted::Full(blocked) => Self::Blocked(blocked),
        }
    }

    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Nothing)
    }
}

/// One request for a file.
pub(crate) struct FileExchange {
    store: Arc<FileStore>,
    wake: Wake,
    head: Option<ResponseHead>,
    state: State,
    account: Option<Account>,
    /// What the request takes beyond the usual.
    charge: Option<Charge>,
}

#[expect(clippy::large_enum_variant, reason = "an exchange is boxed, and most are of a file")]
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
    wait: Wait<()>,
}

impl FileExchange {
    /// An exchange whose answer is known.
    pub(crate) fn new(store: Arc<FileStore>, wake: Wake, answer: Answer) -> Self {
        let (head, state) = State::new(answer);
        Self { store, wake, head: Some(head), state, account: None, charge: None }
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
            wait: Wait::Nothing,
        };
        let state = State::Looking(Box::new(looking));
        Self { store, wake, head: None, state, account: None, charge: None }
    }

    /// Whether the answer, which rests on an open file found earlier, still describes that file: its first
    /// block is cached under its identity, or the file says so now.
    ///
    /// Keeps a file that is rewritten in place within the open-file cache's validity from being announced
    /// with validators that its content would then contradict.
    pub(crate) fn is_current(&mut self) -> bool {
        match &mut self.state {
            State::File(body) => body.is_current(&self.store),
            State::Looking(_) | State::Fixed(_) => true,
        }
    }

    /// The file, if the body is all of it and nothing has been handed out.
    pub(crate) fn whole(&self) -> Option<&Arc<OpenFile>> {
        match &self.state {
            State::File(body) => body.whole(),
            State::Looking(_) | State::Fixed(_) => None,
        }
    }

    pub(crate) fn charge_to(&mut self, account: &Account) {
        self.account = Some(account.clone());
        self.count();
    }

    /// Counts what the request takes, if that is more than usual.
    fn count(&mut self) {
        self.charge = None;
        let footprint = self.state.footprint();
        if let Some(account) = &self.account
            && footprint > USUAL
        {
            self.charge = Some(account.charge_request(footprint));
        }
    }

    pub(crate) fn poll_head(&mut self) -> Poll<ResponseHead> {
        if let State::Looking(looking) = &mut self.state {
            let answer = ready!(looking.poll(&self.store, &self.wake, self.account.as_ref()));
            let (head, state) = State::new(answer);
            self.state = state;
            self.head = Some(head);
            self.count();
        }
        self.head.take().map_or(Poll::Pending, Poll::Ready)
    }

    pub(crate) fn poll_body(&mut self, max: usize) -> Poll<Option<Result<Bytes, BodyError>>> {
        let account = self.account.as_ref();
        match &mut self.state {
            State::Looking(_) => Poll::Pending,
            State::Fixed(body) if body.is_empty() => Poll::Ready(None),
            State::Fixed(body) => {
                let octets = body.split_to(body.len().min(max));
                Poll::Ready(Some(Ok(match account {
                    None => octets,
                    Some(account) => account.own(octets),
                })))
            }
            State::File(body) => {
                body.poll(max, ReadContext { store: &self.store, wake: &self.wake, account })
            }
        }
    }

    pub(crate) fn poll_copy(&mut self, max: usize, out: &mut Vec<u8>) -> Poll<Option<Result<(), BodyError>>> {
        match &mut self.state {
            State::Looking(_) => Poll::Pending,
            State::Fixed(body) if body.is_empty() => Poll::Ready(None),
            State::Fixed(body) => {
                out.extend_from_slice(&body.split_to(body.len().min(max)));
                Poll::Ready(Some(Ok(())))
            }
            State::File(body) => {
                let account = self.account.as_ref();
                body.poll_copy(max, out, ReadContext { store: &self.store, wake: &self.wake, account })
            }
        }
    }

    pub(crate) fn rest(&mut self) {
        if let (State::File(body), Some(account)) = (&mut self.state, &self.account) {
            body.rest(account, &self.store);
        }
    }

    pub(crate) fn release(&mut self) {
        if let State::File(body) = &mut self.state {
            body.release(&self.store);
        }
    }

    pub(crate) fn remaining(&self) -> Option<u64> {
        match &self.state {
            State::Looking(_) => None,
            State::Fixed(body) => Some(body.len() as u64),
            State::File(body) => Some(body.remaining()),
        }
    }
}

impl State {
    fn new(answer: Answer) -> (ResponseHead, Self) {
        match answer {
            Answer::Fixed(head, body) => (head, Self::Fixed(body)),
            Answer::File(head, file, parts) => (head, Self::File(FileBody::new(file, parts))),
        }
    }

    /// Bytes of memory in addition to its own size.
    fn footprint(&self) -> usize {
        match self {
            Self::Looking(looking) => looking.footprint(),
            Self::Fixed(body) => body.len(),
            Self::File(body) => body.footprint(),
        }
    }
}

impl Looking {
    fn poll(&mut self, store: &FileStore, wake: &Wake, account: Option<&Account>) -> Poll<Answer> {
        let blocked = match self.wait.take() {
            Wait::Nothing => None,
            Wait::Blocked(blocked) => Some(blocked),
            Wait::Ticket(ticket, ()) => {
                let Some(outcome) = ticket.poll() else {
                    self.wait = Wait::Ticket(ticket, ());
                    return Poll::Pending;
                };
                return Poll::Ready(self.answer(outcome));
            }
        };
        let key = Job::Lookup(self.tree.root.id, Arc::clone(&self.path));
        let (work, owner) = (store.lookup_job(&self.tree, &self.path), account.map_or(0, Account::id));
        self.wait = Wait::of(store.pool.submit(key, owner, wake, blocked, work), ());
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
            | Outcome::Piece(_)
            | Outcome::Task
            | Outcome::Lost => StatusCode::SERVICE_UNAVAILABLE,
        };
        error(&self.method, status, HeaderMap::new())
    }

    fn footprint(&self) -> usize {
        let query = self.query.as_ref().map_or(0, String::capacity);
        size_of::<Self>() + self.path.len() + query + crate::request::footprint(&self.headers)
    }
}
