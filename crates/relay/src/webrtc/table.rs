//! All WebRTC sessions of the process, for the HTTP workers: their number is limited, and each has an unguessable URL.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use expressway_web::Wake;

use super::answer::{Agreed, Role};
use super::crypto::random;

/// The unguessable part of a session's URL.
pub type Name = [u8; 16];

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Unique in this process.
    pub number: u64,
    /// Its room, by index.
    pub room: usize,
    /// Whether it publishes or receives.
    pub role: Role,
}

/// The sessions of a process.
#[derive(Debug)]
pub struct SessionTable {
    most: usize,
    numbers: AtomicU64,
    sessions: Mutex<HashMap<Name, Entry>>,
}

impl SessionTable {
    /// A table of at most `most` sessions at a time.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, numbers: AtomicU64::new(0), sessions: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Entry>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session; `None` if the table is full.
    pub fn admit(self: &Arc<Self>, room: usize, role: Role) -> Option<Registration> {
        let mut sessions = self.lock();
        if sessions.len() >= self.most {
            return None;
        }
        let (name, number) = (random(), self.numbers.fetch_add(1, Ordering::Relaxed));
        sessions.insert(name, Entry { number, room, role });
        Some(Registration { table: Arc::clone(self), name, number })
    }

    /// The session of that name.
    pub fn find(&self, name: &Name) -> Option<Entry> {
        self.lock().get(name).copied()
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Keeps a session in the table until it is dropped.
#[derive(Debug)]
pub struct Registration {
    table: Arc<SessionTable>,
    /// Of its URL.
    pub name: Name,
    /// See [`Entry::number`].
    pub number: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.table.lock().remove(&self.name);
    }
}

/// Why a room rejects a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has a publisher.
    Conflict,
    /// It has as many players as it may.
    Full,
    /// Its worker is overloaded, or has ended.
    Busy,
}

/// A session for a room's worker.
#[derive(Debug)]
pub struct Join {
    /// Its room, by index.
    pub room: usize,
    /// What it is for.
    pub role: Role,
    /// What was agreed on.
    pub agreed: Agreed,
    /// Its entry in the table.
    pub registration: Registration,
    /// Where the result goes.
    pub reply: ReplySender,
}

/// Sends the worker's result once. Dropped without, it sends [`Refused::Busy`].
#[derive(Debug)]
pub struct ReplySender {
    said: Arc<Mutex<Option<Result<(), Refused>>>>,
    wake: Wake,
}

/// Receives it.
#[derive(Debug)]
pub struct ReplyReceiver(Arc<Mutex<Option<Result<(), Refused>>>>);

impl ReplySender {
    /// Both ends. `wake` is called when there is a result.
    pub fn new(wake: Wake) -> (Self, ReplyReceiver) {
        let said = Arc::default();
        (Self { said: Arc::clone(&said), wake }, ReplyReceiver(said))
    }

    /// Sends the result.
    pub fn send(&self, what: Result<(), Refused>) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
        self.wake.wake();
    }
}

impl Drop for ReplySender {
    fn drop(&mut self) {
        self.send(Err(Refused::Busy));
    }
}

impl ReplyReceiver {
    /// The result, once there is one.
    pub fn try_recv(&self) -> Option<Result<(), Refused>> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let table = SessionTable::new(2);
        let one = table.admit(0, Role::Publish).unwrap();
        let other = table.admit(1, Role::Play).unwrap();
        assert!(table.admit(1, Role::Play).is_none());
        assert_eq!(table.find(&other.name), Some(Entry { number: 1, room: 1, role: Role::Play }));
        let name = one.name;
        drop(one);
        assert_eq!((table.find(&name), table.len()), (None, 1));
        assert!(table.admit(1, Role::Play).is_some());
    }

    #[test]
    fn a_worker_that_says_nothing_says_no() {
        struct Count(AtomicU64);
        impl expressway_web::Notify for Count {
            fn notify(&self, _: u64) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::new(Count(AtomicU64::new(0)));
        let (reply, receiver) = ReplySender::new(Wake::new(Arc::clone(&count) as Arc<_>, 0));
        assert_eq!(receiver.try_recv(), None);
        drop(reply);
        assert_eq!((receiver.try_recv(), count.0.load(Ordering::Relaxed)), (Some(Err(Refused::Busy)), 1));
        let (reply, receiver) = ReplySender::new(Wake::new(count, 0));
        reply.send(Ok(()));
        drop(reply);
        assert_eq!(receiver.try_recv(), Some(Ok(())));
    }
}
